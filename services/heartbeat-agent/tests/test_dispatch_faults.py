"""Key-shared dispatch while consumers come and go, and the agent is killed or stopped."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ringcast.dispatch import Consumer, Delivery
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, NatsServer
from ringcast_testkit.dispatch import abandon, following, hold, status_until

ROWS = [f"row{number}" for number in range(12)]
WRITES = 400
SEED = 20261122


class Checker:
    """Hears of every delivery and answer, of whichever consumer, and of consumers that are gone."""

    def __init__(self) -> None:
        self.held: dict[str, Delivery] = {}
        self.versions: dict[str, int] = {}
        self.acked: dict[str, str | None] = {}
        self.given: dict[str, set[str]] = {}
        self.deliveries = 0

    def delivered(self, consumer: str, delivery: Delivery) -> None:
        """One more: the row must be free, and the version not below what was delivered before."""
        self.deliveries += 1
        assert delivery.row_id not in self.held, f"two deliveries of one row at a time: {delivery}"
        assert delivery.version >= self.versions.get(delivery.row_id, 0), f"out of order: {delivery}"
        self.versions[delivery.row_id] = delivery.version
        self.held[delivery.row_id] = delivery
        self.given.setdefault(consumer, set()).add(delivery.row_id)

    def answered(self, delivery: Delivery, *, rejected: bool) -> None:
        """To be called before the answer is given."""
        del self.held[delivery.row_id]
        if not rejected:
            self.acked[delivery.row_id] = delivery.value

    def gone(self, held: set[str]) -> None:
        """A consumer is gone without an answer to these rows."""
        for row_id in held:
            self.held.pop(row_id, None)


async def consume(agent: AgentProcess, store: str, name: str, checker: Checker, chance: random.Random) -> None:
    """A life of a consumer: answers some deliveries late, rejects some, and ends in one of three ways."""
    end = chance.choice(("leave", "break", "die"))
    left = chance.randrange(20, 60)
    place: dict[str, Any] = {
        "store": store,
        "key": "list",
        "group": "g",
        "poison_policy": "block",
        "token": agent.token,
    }
    consumer = Consumer(agent.grpc_address, name=name, changes_only=True, capacity=chance.choice((1, 4, 0)), **place)
    mine: dict[str, Delivery] = {}
    async with consumer:
        try:
            async for delivery in consumer:
                checker.delivered(name, delivery)
                mine[delivery.row_id] = delivery
                left -= 1
                if left <= 0 and end != "leave":
                    break
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.02)
                rejected = delivery.attempt == 1 and chance.random() < 0.1
                checker.answered(delivery, rejected=rejected)
                del mine[delivery.row_id]
                delivery.reject() if rejected else delivery.ack()
                if left <= 0:
                    break
        finally:
            checker.gone(set(mine))
        if end == "die":  # without a word, as a process that is killed
            abandon(consumer)


async def test_order_of_each_row_while_consumers_come_and_go(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, store_name: str
) -> None:
    """Seeded: what consumers do; when they do it is the machine's."""
    await asyncio.to_thread(writer.create, store_name)
    chance = random.Random(SEED)
    checker = Checker()
    options = ("--retry-first", "0.02", "--window", "200", "--evict-after", "5")

    async def live(agent: AgentProcess, name: str) -> None:
        while True:
            await consume(agent, store_name, name, checker, chance)

    numbers = itertools.count()

    def write() -> dict[str, str]:
        written = {}
        for number in itertools.islice(numbers, WRITES):
            row_id = ROWS[number * 7 % len(ROWS)]
            written[row_id] = str(number)
            writer.put(store_name, "list", row_id, str(number))
        return written

    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        last: dict[str, str] = {}
        async with asyncio.TaskGroup() as tasks:
            lives = [tasks.create_task(live(agent, f"c{number}")) for number in range(4)]
            group = await status_until(agent, store_name, lambda group: len(group["consumers"]) == 4)
            # Where consumers are slow, rows change more than once before they are delivered, so that fewer deliveries
            # are rejected, and fewer consumers come to their end.
            while not (group["counts"]["rejected"] and group["counts"]["evicted"]):
                last.update(await asyncio.to_thread(write))
                group = await status_until(agent, store_name, lambda group: not group["lag"] and checker.acked == last)
            for one in lives:
                one.cancel()
        counts = group["counts"]
        assert counts["offered"] == counts["acked"] == group["cursor"], counts
        assert len(checker.given) == 4
        assert checker.deliveries >= counts["acked"]


async def test_nothing_is_lost_when_the_agent_is_killed(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    writer_to: Callable[[ConfigServiceProcess], Any],
) -> None:
    writer = writer_to(config_service)
    await asyncio.to_thread(writer.create, "s")
    for row_id in ("answered", "unanswered", "later"):
        await asyncio.to_thread(writer.put, "s", "list", row_id, "1")

    def answer(delivery: Delivery) -> None:
        if delivery.row_id != "unanswered" or delivery.value != "1":
            delivery.ack()

    with AgentProcess(tmp_path, nats_url=nats_server.url) as agent:
        async with following(agent, "s", answer=answer) as one:
            await one.values({"answered": "1", "unanswered": "1", "later": "1"})
            before = len(one.deliveries)
            await asyncio.to_thread(agent.kill)
            await asyncio.to_thread(writer.put, "s", "list", "later", "2")
            await asyncio.to_thread(agent.start)
            await one.until(
                lambda deliveries: (
                    # What was answered comes again only if the agent had not written the seal yet.
                    {("unanswered", "1"), ("later", "2")}
                    <= {(delivery.row_id, delivery.value) for delivery in deliveries[before:]}
                )
            )
            await asyncio.to_thread(writer.put, "s", "list", "answered", "3")
            await one.values({"answered": "3"})


async def test_a_delivery_that_is_not_answered_in_time(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, store_name: str
) -> None:
    """It comes again after a pause, and a late answer to the first counts no more."""
    await asyncio.to_thread(writer.create, store_name)
    options = ("--ack-timeout", "0.5", "--retry-first", "0.02", "--max-tries", "2", "--poison-policy", "block")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        async with following(agent, store_name, answer=hold, changes_only=True) as one:
            await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
            group = await status_until(agent, store_name, lambda group: group["blocked"])
            assert group["blocked"] == [{"row_id": "a", "offset": 1, "reason": "not answered within 0.5 s"}]
            assert (group["counts"]["timed_out"], group["cursor"], group["in_flight"]) == (2, 0, 0)
            deliveries = await one.until(bool)
            attempts = [delivery.attempt for delivery in deliveries]
            assert attempts in ([1, 2], [1], [2])  # one that waits here for too long is not handed out any more
            deliveries[-1].ack()
            group = await status_until(agent, store_name, lambda group: group["counts"]["stale"] > 0)
            assert (group["counts"]["acked"], len(group["blocked"])) == (0, 1)


async def test_stopping_waits_for_answers(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, store_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ringcast.dispatch")
    await asyncio.to_thread(writer.create, store_name)
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--drain-timeout", str(PATIENCE_S))) as agent:
        async with following(agent, store_name, answer=hold) as one:
            await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
            (delivery,) = await one.until(lambda deliveries: len(deliveries) == 1)
            agent.process.signal(signal.SIGTERM)
            await asyncio.to_thread(agent.process.wait_until, lambda: "stopping\n" in "".join(agent.process.log))
            await asyncio.to_thread(writer.put, store_name, "list", "b", "1")
            delivery.ack()
            assert await asyncio.to_thread(agent.process.wait, PATIENCE_S) == 0
            assert 'event=consumer.agent_lost consumer=one error="the agent is stopping"' in caplog.messages
            assert len(one.deliveries) == 1


async def test_stopping_does_not_wait_for_ever(
    tmp_path: Path, shared_nats: NatsServer, writer: Any, store_name: str
) -> None:
    await asyncio.to_thread(writer.create, store_name)
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=("--drain-timeout", "0.2")) as agent:
        async with following(agent, store_name, answer=hold) as one:
            await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
            await one.until(lambda deliveries: len(deliveries) == 1)
            agent.process.signal(signal.SIGTERM)
            assert await asyncio.to_thread(agent.process.wait, PATIENCE_S) == 0
