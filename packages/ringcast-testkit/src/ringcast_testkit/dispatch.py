"""Consumers of an agent's key-shared dispatch: what they were given, for tests to wait for and to look at.

As a program it is one in a process of its own, to be killed: prints each delivery, and answers unless told not to.
Usage: python -m ringcast_testkit.dispatch ADDRESS STORE NAME (answer | hold), with the token in DAPR_API_TOKEN.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from ringcast import Change
from ringcast.dispatch import Consumer, Delivery
from ringcast.groups import HeldPartition, read_groups
from ringcast_wire import Row, UnavailableError

from ringcast_testkit._agent import AgentProcess
from ringcast_testkit._process import PATIENCE_S, ServerFailedError, place_of


class Followed:
    """The deliveries of a consumer, each given to ``answer`` as it comes (by default: done with)."""

    def __init__(self, consumer: Consumer, answer: Callable[[Delivery], object]) -> None:
        self.consumer = consumer
        self.deliveries: list[Delivery] = []
        self._answer = answer
        self._news = asyncio.Condition()
        self._ended = False

    @property
    def newest(self) -> dict[str, str | None]:
        """The newest value of each row that was delivered."""
        return {delivery.row_id: delivery.value for delivery in self.deliveries}

    def delivered(self, after: int = 0) -> list[tuple[str, str | None]]:
        """Row ids and values of all deliveries but the first ``after``, sorted."""
        return sorted((delivery.row_id, delivery.value) for delivery in self.deliveries[after:])

    async def run(self) -> None:
        """Takes deliveries until the consumer ends."""
        try:
            async for delivery in self.consumer:
                async with self._news:
                    self.deliveries.append(delivery)
                    self._answer(delivery)
                    self._news.notify_all()
        finally:
            async with self._news:
                self._ended = True
                self._news.notify_all()

    async def until(self, condition: Callable[[list[Delivery]], bool]) -> list[Delivery]:
        """Waits until the condition on all deliveries so far holds; returns them."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: condition(self.deliveries))
            return list(self.deliveries)

    async def values(self, wanted: dict[str, str | None]) -> None:
        """Waits until the newest deliveries of the rows have these values."""
        await self.until(lambda _: wanted.items() <= self.newest.items())

    async def ended_or(self, condition: Callable[[], bool]) -> None:
        """Waits until the agent has ended the consumer, or the condition holds."""
        await self.until(lambda _: self._ended or condition())


class OwnsAll:
    """A source of a group whose host owns everything, without a worker behind it."""

    store, worker_id, staleness_s, lease = "s", "w", 0.0, None

    def __init__(self, key: str = "list") -> None:
        self.key = key

    def owns(self, _partition: int) -> bool:
        return True

    history = ""

    def applied(self) -> dict[int, int]:
        return {}

    def loaded(self) -> Collection[int]:
        return set(self.applied())

    def rows(self) -> Iterable[Row]:
        return ()

    def row_ids(self, partitions: Collection[int] | None = None) -> list[str]:
        return []

    def opened(self, change: Change) -> Change:
        return change

    def change_of(self, _row_id: str) -> Change | None:
        return None


def hold(_delivery: Delivery) -> None:
    """Leaves a delivery unanswered."""


@asynccontextmanager
async def following(
    agent: AgentProcess,
    store: str,
    name: str = "one",
    *,
    address: str = "",
    answer: Callable[[Delivery], object] = Delivery.ack,
    **settings: Any,
) -> AsyncIterator[Followed]:
    """A registered consumer of store/list, group g, whose deliveries are taken in the background.

    ``address``: of a way to the agent that is not its own address.
    """
    place = {"store": store, "key": "list", "group": "g", "token": agent.token, **settings}
    async with Consumer(address or agent.grpc_address, name=name, **place) as consumer:
        followed = Followed(consumer, answer)
        running = asyncio.create_task(followed.run())
        try:
            yield followed
        finally:
            running.cancel()
            await asyncio.wait({running})


def break_connection(consumer: Consumer) -> None:
    """Ends the call that a consumer has to its agent, as when the connection breaks; it begins another."""
    consumer._call.cancel()


def abandon(consumer: Consumer) -> None:
    """Ends the call without a good-bye and without another, as the end of a process that is killed."""
    consumer._leaving = True
    consumer._call.cancel()


def unconfirmed_answers(consumer: Consumer) -> int | None:
    """How many answers were sent and not confirmed by the agent; ``None`` while some are not sent yet."""
    return None if consumer._answers else len(consumer._unconfirmed)


async def status_until(agent: AgentProcess, store: str, condition: Callable[[Any], bool], *, token: str = "") -> Any:
    """Asks the agent for its status until that of the store's group is as wanted, and returns that group.

    Raises:
        ServerFailedError: it is not within ``PATIENCE_S``; the message says what the status was last.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = await asyncio.to_thread(agent.status, token)
        groups = [group for group in status["groups"] if group["store"] == store]
        for group in groups:
            if condition(group):
                return group
        if time.monotonic() > deadline:
            wanted = f"does not meet {place_of(condition)} in {PATIENCE_S:g} s"
            raise ServerFailedError(agent.process.describe(f"{wanted}: the groups of store {store} are {groups}"))
        await asyncio.sleep(0.02)


async def _main(address: str, store: str, name: str, what: str) -> None:
    async with Consumer(address, store=store, key="list", group="g", name=name) as consumer:
        async for delivery in consumer:
            sys.stdout.write(f"{delivery.row_id} {delivery.version}\n")
            sys.stdout.flush()
            if what == "answer":
                delivery.ack()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))


async def until_sealed(url: str, store: str, condition: Callable[[tuple[HeldPartition, ...]], bool]) -> None:
    """Waits until the seals of the store's one group are as wanted."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            with suppress(UnavailableError):  # as long as there is no bucket
                if any(condition(group.partitions) for group in await read_groups(url, store)):
                    return
            await asyncio.sleep(0.05)


def unsettled(count: int, partitions: int) -> Callable[[tuple[HeldPartition, ...]], bool]:
    """Whether seals of so many partitions say that all but so many changes are settled, up to the heads."""

    def condition(seals: tuple[HeldPartition, ...]) -> bool:
        known = [each.behind for each in seals if each.behind is not None]  # a claim alone says nothing
        return len(known) == partitions and sum(known) == count

    return condition
