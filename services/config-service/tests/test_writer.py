"""Group commit: what waits together is written together, and nobody pays for another's mistake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from ringcast_config_service.caller import Caller
from ringcast_config_service.repository import (
    Chain,
    OutboxRecord,
    Repository,
    RowWrite,
    WriteRequest,
    Written,
)
from ringcast_config_service.telemetry import Telemetry
from ringcast_config_service.writes.group_writer import GroupWriter
from ringcast_config_service.writes.groups import MAX_GROUP_ROWS
from ringcast_wire import InternalError, LimitExceededError, UnavailableError, limits

Bench = Any  # of conftest.py


Gated = Callable[..., "Writing"]


class Gate:
    """A real repository whose transactions wait for a nod, so that a test decides what gathers meanwhile."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository.writer
        self.groups: list[int] = []
        self.open = asyncio.Event()
        self.entered = asyncio.Event()
        self.fails: Exception | None = None

    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        self.groups.append(len(requests))
        self.entered.set()
        await self.open.wait()
        if self.fails is not None:
            raise self.fails
        return await self._repository.write(requests, now_ms)


class Writing:
    """A writer at work over a gate."""

    def __init__(self, bench: Bench, **settings: int) -> None:
        self.gate = Gate(bench.repo)
        self.committed = 0
        self.writer = GroupWriter(self.gate, self._count, Telemetry(), **settings)  # type: ignore[arg-type]  # all that it calls

    def _count(self, events: Sequence[OutboxRecord]) -> None:
        assert events
        self.committed += 1


@pytest.fixture
async def gated(bench: Bench) -> AsyncIterator[Gated]:
    """Makes writers with settings of their own."""
    tasks: list[asyncio.Task[None]] = []

    def make(**settings: int) -> Writing:
        found = Writing(bench, **settings)
        tasks.append(asyncio.create_task(found.writer.run()))
        return found

    yield make
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def writing(gated: Gated) -> Writing:
    return gated()


async def test_waiting_writes_are_committed_together(bench: Bench, writing: Writing) -> None:
    futures = [writing.writer.submit(bench.request({"first": "1"}))]
    await writing.gate.entered.wait()
    futures += [writing.writer.submit(bench.request({f"r{n}": "1", "hot": str(n)})) for n in range(100)]
    writing.gate.open.set()
    outcomes = await asyncio.gather(*futures)
    assert writing.gate.groups == [1, 100]
    assert writing.committed == 2
    assert [outcome.written for outcome in outcomes] == [1] + [2] * 100
    assert (await bench.live())["hot"] == "99"
    await bench.check_gap_free()


async def test_a_group_is_bounded(bench: Bench, writing: Writing) -> None:
    rows = {f"r{n}": "1" for n in range(MAX_GROUP_ROWS // 4)}
    futures = [writing.writer.submit(bench.request(rows)) for _ in range(6)]
    writing.gate.open.set()
    await asyncio.gather(*futures)
    assert writing.gate.groups == [4, 2]


async def test_each_caller_gets_its_own_outcome(bench: Bench, writing: Writing) -> None:
    size = limits.MAX_ROW_BYTES - 10
    large = [RowWrite(3, f"r{n}", "x" * size, None, size) for n in range(9)]
    good = writing.writer.submit(bench.request({"a": "1"}))
    bad = writing.writer.submit(WriteRequest(bench.store, "k", large))
    after = writing.writer.submit(bench.request({"b": "1"}))
    writing.gate.open.set()
    assert (await good).written == 1
    with pytest.raises(LimitExceededError):
        await bad
    assert (await after).written == 1
    assert set(await bench.live()) == {"a", "b"}


async def test_a_cancelled_request_is_not_written_unless_its_rows_are_being_stored(
    bench: Bench, writing: Writing
) -> None:
    begun = asyncio.create_task(writing.writer.write(bench.request({"begun": "1"})))
    await writing.gate.entered.wait()
    waiting = asyncio.create_task(writing.writer.write(bench.request({"waiting": "1"})))
    await asyncio.sleep(0)
    begun.cancel()
    waiting.cancel()
    await asyncio.gather(begun, waiting, return_exceptions=True)
    writing.gate.open.set()
    await writing.writer.write(bench.request({"after": "1"}))
    assert set(await bench.live()) == {"after"}


async def test_a_failed_batch_stops_those_behind_it(bench: Bench, writing: Writing) -> None:
    """In the same group and in a later one."""
    chain = Chain()
    size = limits.MAX_ROW_BYTES - 10
    large = [RowWrite(3, f"r{n}", "x" * size, None, size) for n in range(9)]
    requests = [WriteRequest(bench.store, "k", rows, chain) for rows in ([RowWrite(0, "a", "1", None, 2)], large)]
    futures = [writing.writer.submit(request) for request in requests]
    futures.append(writing.writer.submit(WriteRequest(bench.store, "k", [RowWrite(1, "b", "1", None, 2)], chain)))
    writing.gate.open.set()
    assert (await futures[0]).written == 1
    with pytest.raises(LimitExceededError):
        await futures[1]
    late = writing.writer.submit(WriteRequest(bench.store, "k", [RowWrite(1, "c", "1", None, 2)], chain))
    for future in (futures[2], late):
        with pytest.raises(UnavailableError, match="an earlier batch of this stream failed"):
            await future
    assert set(await bench.live()) == {"a"}


@pytest.mark.parametrize(
    ("failure", "seen"), [(UnavailableError("away"), UnavailableError), (KeyError("bug"), InternalError)]
)
async def test_a_failed_transaction_is_told_to_all_and_the_writer_goes_on(
    bench: Bench, writing: Writing, failure: Exception, seen: type[Exception]
) -> None:
    writing.gate.fails = failure
    futures = [writing.writer.submit(bench.request({f"r{n}": "1"})) for n in range(3)]
    writing.gate.open.set()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(result) for result in results} == {seen}
    assert writing.committed == 0
    writing.gate.fails = None
    assert (await writing.writer.write(bench.request({"a": "1"}))).versions == [1]


async def test_the_queue_is_bounded(bench: Bench, gated: Gated) -> None:
    """One connection fills a third of it, and waits or is refused, while others are let in."""
    writing = gated(max_writes=11)
    begun = writing.writer.submit(bench.request({"a": "1"}))
    await writing.gate.entered.wait()
    waiting = [writing.writer.submit(bench.request({f"w{n}": "1"})) for n in range(4)]
    with pytest.raises(UnavailableError, match=r"4 writes of 12 bytes of this connection wait .* of 4 in all: try"):
        writing.writer.submit(bench.request({"over": "1"}))
    waiting += [writing.writer.submit(bench.request({f"w{n}": "1"}), Caller(f"p{n}", "c")) for n in range(4, 11)]
    with pytest.raises(UnavailableError, match=r"11 writes of 34 bytes wait for the database: try again later"):
        writing.writer.submit(bench.request({"over": "1"}), Caller("newcomer", "c"))
    patient = asyncio.create_task(writing.writer.room(bench.request({"patient": "1"})))
    await asyncio.sleep(0)
    assert not patient.done()
    writing.gate.open.set()
    await patient
    await asyncio.gather(begun, *waiting)
    await writing.writer.drain()
    assert set(await bench.live()) == {"a", *(f"w{n}" for n in range(11))}


async def test_drain_waits_for_what_is_under_way(bench: Bench, writing: Writing) -> None:
    future = writing.writer.submit(bench.request({"a": "1"}))
    await writing.gate.entered.wait()
    drained = asyncio.create_task(writing.writer.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    writing.gate.open.set()
    await drained
    assert future.done()


async def test_a_request_that_comes_after_the_end_is_no_bug(sqlite_bench: Bench) -> None:
    """It waits, which the phases of stopping bound; the alarms of workers that have gone wake nobody."""
    writer = GroupWriter(sqlite_bench.repo.writer, lambda _: None, Telemetry())
    task = asyncio.create_task(writer.run())
    await writer.write(sqlite_bench.request({"a": "1"}))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    waiting = writer.submit(sqlite_bench.request({"a": "2"}))
    assert not waiting.done()
