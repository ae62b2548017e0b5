"""What groups that begin anew are told of the time in between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from dapr.clients import DaprClient
from ringcast import Change
from ringcast.dispatch import Delivery
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.group import GroupContext
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.dispatch.positions import Away, Position, Positions
from ringcast_heartbeat_agent.dispatch.progress import History
from ringcast_testkit import PATIENCE_S, AgentProcess, NatsServer
from ringcast_testkit.dispatch import OwnsAll, following, status_until, unsettled, until_sealed
from ringcast_wire import WIRE_VERSION, PartitionRows, ReplayAnswer, ReplayOutcome, ReplayRequest, Row

PARTITIONS = 16
OPTIONS = ("--id", "durable", "--linger", "5")


def noted(agent: AgentProcess, cache: Path, store: str, writes: int) -> None:
    """Waits until it is on disk that so many writes are settled: each has a revision of its partition.

    Where there are seals a successor goes by these, which are written by themselves.
    """

    def is_noted() -> bool:
        position = Positions(cache / "groups-durable").get((store, "list", "g"))
        return position is not None and sum(position.revisions.values()) == writes

    agent.process.wait_until(is_noted)


def forgotten(agent: AgentProcess, store: str) -> None:
    """Waits until the agent has no group of a store."""
    agent.process.wait_until(lambda: all(each["store"] != store for each in agent.status()["groups"]))


async def test_an_agent_that_was_killed_tells_what_changed_meanwhile(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """Deletions too, and nothing that was settled, though its consumer wants no rows that are there."""
    options = (*OPTIONS, "--cache-dir", str(tmp_path / "cache"))
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        await write(**{f"r{number}": "1" for number in range(30)})
        unanswered: list[Delivery] = []

        def answer(delivery: Delivery) -> None:
            unanswered.append(delivery) if delivery.row_id == "held" else delivery.ack()

        async with following(agent, store_name, answer=answer, changes_only=True) as one:
            await write(**{f"r{number}": "2" for number in range(30)})
            await write(r7=None, r9=None, new="1")
            await one.values({"r7": None, "r9": None, "new": "1", "r29": "2"})
            await asyncio.to_thread(noted, agent, tmp_path / "cache", store_name, 63)
            await until_sealed(shared_nats.url, store_name, unsettled(0, PARTITIONS))
            await write(held="1")
            await one.until(lambda _: bool(unanswered))
            await asyncio.to_thread(agent.kill)
            before = len(one.deliveries)
            await write(r7="3", r8="3", r10=None, new=None)
            await asyncio.to_thread(agent.start)
            await one.until(lambda deliveries: len(deliveries) >= before + 5)
            await status_until(agent, store_name, lambda group: group["last"] == 5)
            assert one.delivered(before) == [("held", "1"), ("new", None), ("r10", None), ("r7", "3"), ("r8", "3")]


async def test_a_group_that_was_forgotten_is_told_what_changed_since(
    shared_agent: AgentProcess, write: Any, store_name: str
) -> None:
    """The agent remembers how far it was, also where it keeps nothing on disk."""
    await write(a="1", b="1", c="1")
    async with following(shared_agent, store_name, changes_only=True) as one:
        await write(a="2")
        await one.values({"a": "2"})
        await status_until(shared_agent, store_name, lambda group: group["cursor"] == 1)
    await asyncio.to_thread(forgotten, shared_agent, store_name)
    await write(b="2", c=None, d="1")
    async with following(shared_agent, store_name, "another", changes_only=True) as one:
        await one.values({"b": "2", "c": None, "d": "1"})
        assert len(one.deliveries) == 3


async def test_a_subscriber_of_dapr_in_a_group_is_told_as_well(
    shared_agent: AgentProcess, sidecar: Any, updates: Callable[[], Any], write: Any, store_name: str
) -> None:
    address = sidecar(shared_agent)
    await write(a="1", b="1")

    def subscribe(told: Any) -> tuple[DaprClient, str]:
        client = DaprClient(address)
        return client, client.subscribe_configuration(store_name, ["list"], told, {"ringcast.group": "g"})

    first = updates()
    client, subscription = await asyncio.to_thread(subscribe, first)
    await write(a="2")
    await asyncio.to_thread(first.until, {"a": "2"})
    await asyncio.to_thread(client.unsubscribe_configuration, store_name, subscription)
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(forgotten, shared_agent, store_name)
    await write(b=None, c="1")
    second = updates()
    client, subscription = await asyncio.to_thread(subscribe, second)
    await asyncio.to_thread(second.until, {"b": "", "c": "1"})
    await asyncio.to_thread(client.unsubscribe_configuration, store_name, subscription)
    await asyncio.to_thread(client.close)


async def test_what_a_consumer_with_filters_missed_waits_for_it_after_a_restart(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    options = (*OPTIONS, "--linger", "60", "--cache-dir", str(tmp_path / "cache"))
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        async with following(agent, store_name, "one", filters=["a*"], changes_only=True) as one:
            async with following(agent, store_name, "two", filters=["b*"], changes_only=True) as two:
                await write(a1="1", b1="1")
                await two.values({"b1": "1"})
                await asyncio.to_thread(noted, agent, tmp_path / "cache", store_name, 2)
                await asyncio.to_thread(agent.kill)
            await write(a1=None, b1=None)
            await asyncio.to_thread(agent.start)
            await one.values({"a1": None})
            await status_until(agent, store_name, lambda group: group["last"] == 2 and not group["lag"])
            async with following(agent, store_name, "two", filters=["b*"], changes_only=True) as two:
                await two.values({"b1": None})
                assert len(two.deliveries) == 1


async def test_a_group_that_lingers_keeps_no_more_than_it_may_and_loses_nothing(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    bounds = ("--window", "4", "--max-behind", "8", "--linger", "60")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=bounds) as agent:
        async with following(agent, store_name, changes_only=True) as one:
            await write(a="1")
            await one.values({"a": "1"})
            await status_until(agent, store_name, lambda group: group["cursor"] == 1)
        rows: dict[str, str | None] = {f"r{number}": "1" for number in range(40)}
        await write(**rows, a=None)
        await asyncio.to_thread(forgotten, agent, store_name)  # long before its time is over
        told: dict[str, str | None] = {}
        async with asyncio.timeout(PATIENCE_S):
            while told != {**rows, "a": None}:  # the rest of the changes may put the new one too far behind as well
                async with following(agent, store_name, changes_only=True) as one:
                    await one.ended_or(lambda: {**told, **one.newest} == {**rows, "a": None})
                    told.update(one.newest)


async def test_what_a_group_missed_never_puts_it_too_far_behind(
    tmp_path: Path, shared_nats: NatsServer, write: Any, store_name: str
) -> None:
    """Each partition has more rows than may wait."""
    options = ("--window", "4", "--max-behind", "8", "--cache-dir", str(tmp_path / "cache"))
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=(*OPTIONS, *options)) as agent:
        async with following(agent, store_name, changes_only=True) as one:
            await write(a="1")
            await one.values({"a": "1"})
            await asyncio.to_thread(noted, agent, tmp_path / "cache", store_name, 1)
            await asyncio.to_thread(agent.kill)
        rows: dict[str, str | None] = {f"r{number}": "1" for number in range(400)}
        await write(**rows, a=None)
        await asyncio.to_thread(agent.start)
        async with following(agent, store_name, changes_only=True) as one:
            await one.values({**rows, "a": None})
            assert len(one.deliveries) == 401


class Ahead(OwnsAll):
    """A source that is behind what a read answers."""

    history = "h"
    revision = 5

    def applied(self) -> dict[int, int]:
        return {0: self.revision}


class Reading:
    """Answers once it is let."""

    def __init__(self, whole: bool, *rows: Row) -> None:
        self._answer = PartitionRows(0, 9, whole, list(rows)), "h"
        self.go = asyncio.Event()

    async def partition(self, *_place: Any, **_since: Any) -> tuple[PartitionRows, str]:
        await self.go.wait()
        return self._answer


class Ears:
    """A consumer of a group, that answers what it hears."""

    def __init__(self, group: KeySharedGroup) -> None:
        self._group = group
        self._member, _ = group.join("one", (), capacity=0, changes_only=True, session="", api="stream")
        self.heard: list[tuple[str, int]] = []

    async def hear(self, count: int) -> None:
        """Waits until so many changes have been heard."""
        async with asyncio.timeout(PATIENCE_S):
            async for frame in self._member.frames():
                for delivery in frame.deliveries:
                    self.heard.append((delivery.change.row_id, delivery.change.version))
                    self._group.answer(self._member, [delivery.offset], [delivery.attempt])
                if len(self.heard) >= count:
                    return


@pytest.mark.parametrize("whole", [False, True])
async def test_a_read_that_is_ahead_of_the_events_leads_no_row_back(whole: bool) -> None:
    rows = [Row("a", "9", 9), *([] if whole else [Row("b", "", 7, True)])]
    reading, positions = Reading(whole, *rows), Positions()
    positions.put(("s", "list", "g"), Position("h", {0: 3}))
    around = GroupContext(Config(), asyncio.create_task, cast(Any, None), History(reading, positions))
    group = KeySharedGroup(Ahead(), "g", around, "drop")
    ears = Ears(group)

    group.take(Change("s", "list", 0, "a", "6", 6))  # while the read is under way
    await ears.hear(1)
    reading.go.set()
    await ears.hear(2 if whole else 3)
    for change in (
        Change("s", "list", 0, "b", None, 7, deleted=True),
        Change("s", "list", 0, "a", None, 8, deleted=True),
        Change("s", "list", 0, "a", "9", 9),
        Change("s", "list", 0, "a", "10", 10),
    ):
        group.take(change)
    await ears.hear(4)
    assert sorted(ears.heard) == [("a", 6), ("a", 9), ("a", 10), ("b", 7)]
    group.close()
    assert positions.get(("s", "list", "g")) == Position("h", {0: 5})


async def test_no_replay_leads_a_row_back_behind_what_the_group_was_told() -> None:
    """The worker holds the row as it was before the change that the group has read already."""
    source, reading, positions = Ahead(), Reading(False, Row("a", "9", 9)), Positions()
    positions.put(("s", "list", "g"), Position("h", {0: 3}))
    around = GroupContext(Config(), asyncio.create_task, cast(Any, None), History(reading, positions))
    group = KeySharedGroup(source, "g", around, "drop")
    ears = Ears(group)
    answers: list[ReplayAnswer] = []

    def replay(number: int, version: int) -> None:
        request = ReplayRequest(WIRE_VERSION, f"{number:032d}", 0, "a", version, "h", "g", "", 0, 0)
        group.replay(request, Change("s", "list", 0, "a", str(version), version), answers.append)

    reading.go.set()
    await ears.hear(1)
    replay(1, 5)
    assert [(answer.outcome, answer.version) for answer in answers] == [(ReplayOutcome.KEPT, 0)]
    assert "has received newer changes than the agent's worker has" in answers[0].why
    source.revision = 9
    replay(2, 9)
    await ears.hear(2)
    assert ears.heard == [("a", 9), ("a", 9)]
    assert [(answer.outcome, answer.version) for answer in answers[1:]] == [(ReplayOutcome.HANDLED, 9)]
    group.close()


async def test_files_that_are_no_positions_are_as_good_as_none(tmp_path: Path) -> None:
    positions, place = Positions(tmp_path), ("s", "list", "g")
    assert positions.get(place) is None
    position = Position("h", {0: 1, 15: 2**40}, [Away("one", ["a*"])])
    positions.put(place, position)
    await positions.flush()
    assert Positions(tmp_path).get(place) == position
    path = tmp_path / "s.list.g.json"
    for body in (b"", b'{"history": 1}', b"\xff" * 100):
        path.write_bytes(body)
        assert Positions(tmp_path).get(place) is None


async def test_the_positions_of_a_thousand_groups_are_kept(tmp_path: Path) -> None:
    positions = Positions(tmp_path)

    def put(numbers: Iterable[int]) -> None:
        for number in numbers:
            positions.put(("s", "list", f"g{number}"), Position("h", {0: number}))

    put(range(600))
    await positions.flush()
    put(range(600, 1_001))
    await positions.flush()
    assert len(os.listdir(tmp_path)) == 1_000
    assert (positions.get(("s", "list", "g0")), positions.get(("s", "list", "g1"))) == (None, Position("h", {0: 1}))
