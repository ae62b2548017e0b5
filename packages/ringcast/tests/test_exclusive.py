"""Workers of a store with exclusive ownership: one owner at every moment, from the list to the handlers."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ringcast import Change, MismatchError, Worker
from ringcast.hosting import take_replays
from ringcast_testkit import PATIENCE_S, History, WorkerProcess, WrittenFleet
from ringcast_wire import Strategy

PARTITIONS = 8


class Court:
    """What the handlers of all workers were called with, and that no two calls of a partition ran at once."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str | None]] = defaultdict(dict)
        """Per worker, what its handler was told of last."""
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.revoked: dict[str, set[int]] = defaultdict(set)
        self._running: dict[int, str] = {}
        self.overlaps: list[tuple[int, str, str]] = []
        self.moved = asyncio.Event()

    def handler(self, worker: str) -> Any:
        async def handle(change: Change) -> None:
            other = self._running.get(change.partition)
            if other not in (None, worker):
                self.overlaps.append((change.partition, str(other), worker))
            self._running[change.partition] = worker
            await asyncio.sleep(0)
            if self._running.get(change.partition) == worker:
                del self._running[change.partition]
            self.rows[worker][change.row_id] = change.value
            tokens = self.tokens[change.partition]
            if not tokens or tokens[-1] != change.token:
                tokens.append(change.token)
            self.moved.set()

        return handle

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.moved.clear()
                await self.moved.wait()

    def told(self) -> dict[str, str | None]:
        return {row: value for rows in self.rows.values() for row, value in rows.items()}

    def check(self) -> None:
        assert not self.overlaps
        for tokens in self.tokens.values():
            assert all(before < after for before, after in itertools.pairwise(tokens)), tokens
            assert tokens[0] > 0


@pytest.fixture
async def court() -> Court:
    return Court()


@pytest.fixture
async def listed(store: Any) -> Any:
    """A store with exclusive ownership and short times."""
    await store.create(partition_count=PARTITIONS, strategy=Strategy.STICKY, lease_ttl_ms=2_000, call_bound_ms=200)
    return store


async def owns(worker: Worker, count: int) -> None:
    await worker.wait_until("list", lambda: len(worker.owned("list")) == count, timeout_s=PATIENCE_S)


async def test_one_worker_serves(listed: Any, court: Court) -> None:
    for number in range(20):
        await listed.put(f"row{number}", "1")
    async with listed.worker(handler=court.handler("w")) as worker:
        await owns(worker, PARTITIONS)
        await court.until(lambda: len(court.rows["w"]) == 20)
        await listed.put("row3", "2")
        await court.until(lambda: court.rows["w"]["row3"] == "2")
        assert worker.health().ready
    court.check()


async def test_a_planned_move(listed: Any, court: Court) -> None:
    for number in range(40):
        await listed.put(f"row{number}", "1")
    async with listed.worker("a", handler=court.handler("a")) as one:
        await owns(one, PARTITIONS)
        await court.until(lambda: len(court.rows["a"]) == 40)
        async with listed.worker("b", handler=court.handler("b")) as two:
            await owns(two, PARTITIONS // 2)
            await owns(one, PARTITIONS // 2)
            assert not one.owned("list") & two.owned("list")
            for number in range(40):
                await listed.put(f"row{number}", "2")
            await court.until(lambda: list(court.told().values()).count("2") == 40)
        await owns(one, PARTITIONS)
        await listed.put("last", "3")
        await court.until(lambda: court.told().get("last") == "3")
        everything = {**{f"row{number}": "2" for number in range(40)}, "last": "3"}
        await court.until(lambda: court.rows["a"] == everything)
    court.check()


async def test_a_worker_with_a_capacity_takes_so_many_times_more(listed: Any, court: Court) -> None:
    async with listed.worker("a", handler=court.handler("a")) as one:
        await owns(one, PARTITIONS)
        async with listed.worker("b", handler=court.handler("b"), capacity=3) as two:
            await owns(two, PARTITIONS * 3 // 4)
            await owns(one, PARTITIONS // 4)
    court.check()


async def test_a_capacity_that_counts_for_nothing_is_said(store: Any, caplog: pytest.LogCaptureFixture) -> None:
    await store.create(partition_count=PARTITIONS)
    async with store.worker("a", capacity=3) as one:
        await owns(one, PARTITIONS)
    assert caplog.text.count("event=capacity.unused") == 1
    assert "capacity=3 strategy=jump" in caplog.text


async def test_an_agent_that_can_not_be_reached_changes_nothing(listed: Any, court: Court) -> None:
    async with listed.worker("a", handler=court.handler("a"), agent="/nowhere.sock") as worker:
        await owns(worker, PARTITIONS)
        await listed.put("row", "1")
        await court.until(lambda: court.rows["a"] == {"row": "1"})
    court.check()


async def test_a_group_of_an_agent_refuses_a_store_with_exclusive_ownership(listed: Any) -> None:
    worker = listed.worker("a")
    take_replays(worker, lambda request, row, answer: lambda: None)
    with pytest.raises(MismatchError, match="has the strategy sticky, which no groups of an agent serve"):
        await worker.start()


class Fleet(WrittenFleet):
    """Workers in processes of their own, while rows are written all the time."""

    def owners(self) -> dict[str, set[int]]:
        """What each worker was told of last that it owns."""
        owned: dict[str, set[int]] = {worker.worker_id: set() for worker in self.workers}
        for report in self.history.reports():
            if report.event == "assigned":
                owned[report.worker_id] |= set(report.fields["partitions"])
            elif report.event == "revoked":
                owned[report.worker_id] -= set(report.fields["partitions"])
            elif report.event in ("killed", "ended", "started"):
                owned[report.worker_id] = set()
        return owned

    async def until(self, condition: Callable[[], bool]) -> None:
        met = await asyncio.to_thread(self.history.wait, condition, PATIENCE_S)
        assert met, self.owners()


@pytest.fixture
async def fleet(listed: Any) -> AsyncIterator[Fleet]:
    history, place = History(), {"servers": listed.nats_url, "store": listed.name, "keys": ("list",)}
    workers = [WorkerProcess(f"{listed.name}-{name}", history=history, **place) for name in "ab"]
    fleet = Fleet(listed, history, workers)
    async with fleet.serving(40):
        yield fleet
    assert history.check_tokens() > 0


def each_has_half(fleet: Fleet) -> bool:
    owned = list(fleet.owners().values())
    return sorted(map(len, owned)) == [PARTITIONS // 2] * 2 and set.union(*owned) == set(range(PARTITIONS))


async def test_a_worker_that_is_halted_beyond_its_fence(fleet: Fleet) -> None:
    """Once it is back it makes no call with what it owned before, though it wakes up in the middle of things."""
    one, two = fleet.workers
    await fleet.until(lambda: each_has_half(fleet))
    one.pause()
    await fleet.until(lambda: len(fleet.owners()[two.worker_id]) == PARTITIONS)
    one.resume()
    await fleet.until(lambda: each_has_half(fleet))


async def test_a_worker_that_is_killed(fleet: Fleet) -> None:
    one, two = fleet.workers
    await fleet.until(lambda: each_has_half(fleet))
    one.kill()
    await fleet.until(lambda: len(fleet.owners()[two.worker_id]) == PARTITIONS)
    one.start()
    await fleet.until(lambda: each_has_half(fleet))
    two.terminate()
    await fleet.until(lambda: len(fleet.owners()[one.worker_id]) == PARTITIONS)
