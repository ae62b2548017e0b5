"""Seals of groups under attack: agents that are killed again and again, two with one id, records that go back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
from nats.js import JetStreamContext
from ringcast.dispatch import ConsumerError, Delivery
from ringcast.groups import HeldPartition
from ringcast_core import row_partition
from ringcast_testkit import AgentProcess, NatsServer, until
from ringcast_testkit.dispatch import following, status_until, unsettled, until_sealed
from ringcast_wire import names

PARTITIONS = 16
ROWS = [f"r{number}" for number in range(24)]
SEED = 20261126
LIVES = 3
Answer = tuple[str, int]
"""A row id, and the version of it that was answered."""


class SealRecords:
    """The seals of a store's groups, in the hands of one who may do everything with the bucket."""

    def __init__(self, js: JetStreamContext, bucket: str) -> None:
        self._js = js
        self._bucket = bucket

    async def read(self) -> dict[str, bytes]:
        """What they say, by key."""
        kv = await self._js.key_value(self._bucket)
        return {key: (await kv.get(key)).value or b"" for key in await kv.keys()}

    async def put(self, key: str, value: bytes) -> None:
        """Has one say what it said before."""
        await (await self._js.key_value(self._bucket)).put(key, value)

    async def remove(self, key: str) -> None:
        """Removes one; the stream permits no purge."""
        await (await self._js.key_value(self._bucket)).delete(key)


@asynccontextmanager
async def seals_of(url: str, store: str) -> AsyncIterator[SealRecords]:
    """Over a connection that ends with the block."""
    connection = await nats.connect(url)
    try:
        yield SealRecords(connection.jetstream(), names.groups_bucket(store))
    finally:
        await connection.close()


def changes(chance: random.Random, now: dict[str, str | None], value: str, count: int) -> dict[str, str | None]:
    """So many rows with a new value, or deleted if they are there."""
    return {row: None if now.get(row) and chance.random() < 0.5 else value for row in chance.sample(ROWS, count)}


def settling(answers: set[Answer]) -> Callable[[tuple[HeldPartition, ...]], bool]:
    """Whether seals say that all of these count."""

    def condition(seals: tuple[HeldPartition, ...]) -> bool:
        seal_of = {seal.partition: seal for seal in seals}
        found = ((seal_of.get(row_partition(row, PARTITIONS)), version) for row, version in answers)
        return all(seal and version <= seal.revision and version not in seal.pending for seal, version in found)

    return condition


class Flights:
    """Which host has a row in flight: a delivery counts until its answer, or until its host is killed."""

    def __init__(self) -> None:
        self.answered: dict[str, str | None] = {}
        self.problems: list[str] = []
        self.of: Counter[str] = Counter()
        """Deliveries by host."""
        self.answers: defaultdict[str, set[Answer]] = defaultdict(set)
        """By the host that took them."""
        self._held: dict[str, str] = {}
        self._settled: set[Answer] = set()
        self._versions: dict[str, int] = {}

    async def take(self, host: str, delivery: Delivery) -> None:
        """A delivery at a host, which is answered a little later."""
        row = delivery.row_id
        self.of[host] += 1
        if (row, delivery.version) in self._settled:
            self.problems.append(f"{row} in version {delivery.version} came to {host} again, which was settled")
        if row in self._held:
            self.problems.append(f"{row} came to {host} while {self._held[row]} had it")
        if delivery.version < self._versions.get(row, 0):
            self.problems.append(f"{row} went back to version {delivery.version} at {host}")
        self._held[row], self._versions[row] = host, delivery.version
        await asyncio.sleep(0.002)
        if self._held.get(row) == host:
            del self._held[row]
            self.answered[row] = delivery.value
            self.answers[host].add((row, delivery.version))
            delivery.ack()

    def has_answers(self, host: str, count: int) -> bool:
        """Whether so many deliveries of a host were answered."""
        return len(self.answers[host]) >= count

    def settled(self, answers: set[Answer]) -> None:
        """Seals say that these count: none of the rows may come again in that version, to any host."""
        self._settled |= answers

    def killed(self, host: str) -> None:
        """What it had counts no more: nobody takes an answer to it."""
        self._held = {row: other for row, other in self._held.items() if other != host}


class Taking:
    """Answers the deliveries of several hosts, and follows which have which row."""

    def __init__(self) -> None:
        self.flights = Flights()
        self._tasks: set[asyncio.Task[None]] = set()

    def at(self, host: str) -> Callable[[Delivery], None]:
        """For the consumer of a host."""

        def take(delivery: Delivery) -> None:
            task = asyncio.create_task(self.flights.take(host, delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return take

    async def over(self) -> None:
        """Waits until all that was taken is answered; nothing of what was found may be wrong."""
        await until(lambda: not self._tasks)
        assert not self.flights.problems


async def test_no_row_is_in_flight_twice_while_hosts_are_killed_again_and_again(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """Under changes and deletions all the time, of which none is lost. Each killed host is followed by another. Nothing
    comes again that the seals read before the kill say is settled."""
    chance, taking = random.Random(SEED), Taking()
    flights = taking.flights
    now: dict[str, str | None] = {}
    stopped = False

    async def change() -> None:
        number = 0
        while not stopped:
            number += 1
            some = changes(chance, now, f"{number}", 4)
            await write(**some)
            now.update(some)

    @asynccontextmanager
    async def host(name: str) -> AsyncIterator[AgentProcess]:
        with AgentProcess(tmp_path / name, nats_url=shared_nats.url, options=("--id", name)) as agent:
            async with following(agent, store_name, name, answer=taking.at(name), changes_only=True):
                await status_until(agent, store_name, lambda group: group["partitions_held"] > 0)
                yield agent

    async with host("stays"):
        changing = asyncio.create_task(change())
        try:
            for life in range(LIVES):
                name = f"falls{life}"
                async with host(name) as agent:
                    await until(partial(flights.has_answers, name, 5))
                    answers = set(flights.answers[name])
                    await until_sealed(shared_nats.url, store_name, settling(answers))
                    flights.settled(answers)
                    await asyncio.to_thread(agent.kill)
                    flights.killed(name)
        finally:
            stopped = True
            await changing
        # What was written after a kill comes once the lease of the killed host has ended: its seals have nothing open.
        await until(lambda: {row: flights.answered.get(row) for row in now} == now)
        await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
        await taking.over()


async def test_seals_that_go_back_or_are_removed_while_the_group_goes_on(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """The process that holds the partitions knows better: nothing is delivered again, and it writes what it knows."""
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--id", "back")) as agent:
        async with (
            following(agent, store_name, changes_only=True) as one,
            seals_of(shared_nats.url, store_name) as seals,
        ):
            await write(**dict.fromkeys(ROWS, "1"))
            await one.values(dict.fromkeys(ROWS, "1"))
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            old = await seals.read()
            await write(**dict.fromkeys(ROWS, "2"))
            await one.values(dict.fromkeys(ROWS, "2"))
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            for number, (key, value) in enumerate(old.items()):
                if number % 2:
                    await seals.put(key, value)
                else:
                    await seals.remove(key)
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            changed: dict[str, str | None] = {**dict.fromkeys(ROWS, "3"), "r3": None}
            await write(**changed)
            await one.values(changed)
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            assert len(one.deliveries) == 3 * len(ROWS)


async def test_seals_that_go_back_while_no_agent_lives(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """As after a restore of NATS: what was settled since is repeated, and no change or deletion is lost."""
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--id", "restored", "--linger", "60")) as agent:
        async with (
            following(agent, store_name, changes_only=True) as one,
            seals_of(shared_nats.url, store_name) as seals,
        ):
            await write(**dict.fromkeys(ROWS, "1"))
            await one.values(dict.fromkeys(ROWS, "1"))
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            old = await seals.read()
            await write(r1="2", r2=None)
            await one.values({"r1": "2", "r2": None})
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            before = len(one.deliveries)
            await asyncio.to_thread(agent.kill)
            for key, value in old.items():
                await seals.put(key, value)
            await write(r3=None)
            await asyncio.to_thread(agent.start)
            await one.until(lambda found: len(found) >= before + 3)
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            assert one.delivered(before) == [("r1", "2"), ("r2", None), ("r3", None)]


async def test_two_agents_with_one_id(tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str) -> None:
    """As of a host that was copied: the second serves no group while the first lives, and takes over afterwards."""
    taking = Taking()
    flights, options = taking.flights, ("--id", "twin")
    with (
        AgentProcess(tmp_path / "one", nats_url=shared_nats.url, options=options) as first,
        AgentProcess(tmp_path / "two", nats_url=shared_nats.url, options=options) as second,
    ):

        async def joined(stack: AsyncExitStack) -> None:
            """A consumer of the second, as soon as that takes one."""
            while True:
                try:
                    consumer = following(second, store_name, "two", answer=taking.at("second"), changes_only=True)
                    await stack.enter_async_context(consumer)
                    return
                except ConsumerError as error:
                    assert "is in use by process" in str(error)  # noqa: PT017

        async with AsyncExitStack() as stack:
            async with following(first, store_name, "one", answer=taking.at("first"), changes_only=True):
                await write(**dict.fromkeys(ROWS, "1"))
                await until(lambda: flights.answered == dict.fromkeys(ROWS, "1"))
                joining = asyncio.create_task(joined(stack))
                await write(**dict.fromkeys(ROWS, "2"))
                await until(lambda: flights.answered == dict.fromkeys(ROWS, "2"))
                await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
                assert not joining.done()
                await asyncio.to_thread(first.kill)
            await write(r1=None)
            await joining
            await write(r2="3")
            await until(lambda: (flights.answered["r1"], flights.answered["r2"]) == (None, "3"))
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
    await taking.over()
    assert flights.of == {"first": 2 * len(ROWS), "second": 2}
