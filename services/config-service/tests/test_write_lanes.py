"""Several transactions at once, fair queues: what one caller or one locked head does to the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from ringcast_config_service.caller import Caller
from ringcast_config_service.repository import (
    Chain,
    LockedError,
    OutboxRecord,
    RowWrite,
    StoreRecord,
    WriteOutcome,
    WriteRequest,
    Written,
)
from ringcast_config_service.telemetry import Telemetry
from ringcast_config_service.writes.group_writer import GroupWriter
from ringcast_config_service.writes.write_queues import Waiting, WriteQueues
from ringcast_testkit import PATIENCE_S
from ringcast_wire import StoreSettings, UnavailableError

STORE = StoreRecord("s", StoreSettings(partition_count=8), 0, 1)


class Doors:
    """A repository whose transactions end when a test lets them; ``refuses`` names rows that fail theirs."""

    def __init__(self) -> None:
        self.begun: list[list[str]] = []
        self.open: dict[str, asyncio.Event] = {}
        self.refuses: set[str] = set()
        self.locked: set[tuple[str, int]] = set()
        self._news = asyncio.Condition()

    async def write(self, requests: Sequence[WriteRequest], _now_ms: int) -> Written:
        group = [row.row_id for request in requests for row in request.rows]
        self.begun.append(group)
        async with self._news:
            self._news.notify_all()
        for row_id in group:
            if row_id in self.open:
                await self.open[row_id].wait()
        if self.locked.intersection((request.key, row.partition) for request in requests for row in request.rows):
            raise LockedError("locked")
        if self.refuses.intersection(group):
            raise UnavailableError("refused")
        versions = [WriteOutcome(len(request.rows), 0, 0, [1] * len(request.rows)) for request in requests]
        return Written(list(versions), [])

    def shut(self, row_id: str) -> asyncio.Event:
        """Holds the transaction of a row."""
        return self.open.setdefault(row_id, asyncio.Event())

    async def until(self, groups: int) -> None:
        """Returns when so many groups have begun."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(self.begun) >= groups)


def ignore(_: Sequence[OutboxRecord]) -> None:
    """Nothing is published here."""


@pytest.fixture
def doors() -> Doors:
    return Doors()


@pytest.fixture
async def writer(doors: Doors) -> AsyncIterator[GroupWriter]:
    found = GroupWriter(doors, ignore, Telemetry(), transactions=3)  # type: ignore[arg-type]  # the one method that it calls
    task = asyncio.create_task(found.run())
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def request(*rows: tuple[int, str], key: str = "k", chain: Chain | None = None) -> WriteRequest:
    return WriteRequest(STORE, key, [RowWrite(place, row_id, "v", None, 10) for place, row_id in rows], chain)


def caller(name: str, principal: str = "p") -> Caller:
    return Caller(principal, name)


async def test_a_slow_transaction_holds_up_only_its_partitions(doors: Doors, writer: GroupWriter) -> None:
    door = doors.shut("locked")
    locked = writer.submit(request((0, "locked")), caller("a"))
    await doors.until(1)
    behind = writer.submit(request((0, "behind")), caller("b"))
    beside = [writer.submit(request((1, "x")), caller("c")), writer.submit(request((0, "y"), key="other"), caller("d"))]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*beside)
    assert not behind.done()
    assert not locked.done()
    door.set()
    await asyncio.gather(locked, behind)
    assert doors.begun == [["locked"], ["x", "y"], ["behind"]]
    await writer.drain()
    assert writer.transactions == 0


async def test_a_quick_transaction_is_alone_and_takes_in_what_gathers(doors: Doors, writer: GroupWriter) -> None:
    """Not a transaction for each request that comes while another is under way."""
    futures = [writer.submit(request((n % 8, f"r{n}")), caller(str(n))) for n in range(10)]
    await doors.until(1)
    futures += [writer.submit(request((n % 8, f"s{n}")), caller(str(n))) for n in range(10)]
    await asyncio.gather(*futures)
    assert [len(group) for group in doors.begun] == [10, 10]


async def test_transactions_are_bounded(doors: Doors, writer: GroupWriter) -> None:
    events = [doors.shut(f"slow{n}") for n in range(4)]
    futures = []
    for n in range(3):
        futures.append(writer.submit(request((n, f"slow{n}")), caller(str(n))))
        await doors.until(n + 1)
    futures.append(writer.submit(request((3, "slow3")), caller("3")))
    assert writer.transactions == 3
    events[1].set()
    await doors.until(4)
    assert writer.transactions == 3
    for event in events:
        event.set()
    await asyncio.gather(*futures)


async def test_one_lane_keeps_its_order_behind_a_slow_transaction(doors: Doors, writer: GroupWriter) -> None:
    """What comes after a request that waits waits too, though it could begin; another key of the connection goes on."""
    door = doors.shut("slow")
    first = writer.submit(request((0, "slow")), caller("a"))
    await doors.until(1)
    lane = [writer.submit(request((0, "one")), caller("b")), writer.submit(request((1, "two")), caller("b"))]
    await writer.submit(request((1, "free"), key="other"), caller("b"))
    assert not any(future.done() for future in lane)
    door.set()
    await asyncio.gather(first, *lane)
    assert doors.begun == [["slow"], ["free"], ["one", "two"]]


async def test_a_chain_is_in_one_transaction_at_a_time(doors: Doors, writer: GroupWriter) -> None:
    """Whatever its batches write to: a batch behind one that fails is not written."""
    chain, door = Chain(), doors.shut("slow")
    doors.refuses.add("slow")
    slow = writer.submit(request((0, "slow"), chain=chain))
    await doors.until(1)
    behind = writer.submit(request((1, "behind"), key="other", chain=chain))
    await writer.submit(request((2, "free")))
    door.set()
    with pytest.raises(UnavailableError, match="refused"):
        await slow
    await behind  # the plan refuses it, which this repository does not make
    assert chain.failed
    assert doors.begun == [["slow"], ["free"], ["behind"]]


async def test_a_locked_partition_fails_only_its_own_writes(doors: Doors, writer: GroupWriter) -> None:
    """Those that were in the same transaction are written without it; the next that come for it are alone at once."""
    doors.locked.add(("k", 0))
    mates = [writer.submit(request((1, f"r{n}")), caller(str(n))) for n in range(3)]
    locked = [writer.submit(request((0, "one")), caller("0")), writer.submit(request((0, "two")), caller("0"))]
    mates.append(writer.submit(request((1, "last")), caller("0")))
    results = await asyncio.gather(*locked, return_exceptions=True)
    assert [type(result) for result in results] == [LockedError, LockedError]
    await asyncio.gather(*mates)
    assert sorted(map(len, doors.begun)) == [1, 1, 1, 1, 1, 1, 6]
    assert [group for group in doors.begun if group in (["one"], ["two"], ["last"])] == [["one"], ["two"], ["last"]]

    doors.begun.clear()
    beside = writer.submit(request((1, "beside")), caller("a"))
    again = writer.submit(request((0, "again")), caller("b"))
    await beside
    with pytest.raises(LockedError):
        await again
    assert sorted(doors.begun) == [["again"], ["beside"]]

    doors.locked.clear()
    await writer.write(request((0, "again")))
    doors.begun.clear()
    await asyncio.gather(*(writer.submit(request((n, f"s{n}")), caller(str(n))) for n in range(3)))
    assert [len(group) for group in doors.begun] == [3]


async def test_locked_partitions_leave_transactions_to_others(doors: Doors, writer: GroupWriter) -> None:
    doors.locked.update(("k", place) for place in range(8))
    for place in range(8):
        with pytest.raises(LockedError):
            await writer.write(request((place, f"known{place}")))
    gates = [doors.shut(f"slow{place}") for place in range(8)]
    slow = [writer.submit(request((place, f"slow{place}")), caller(str(place))) for place in range(8)]
    async with asyncio.timeout(PATIENCE_S):
        await writer.write(request((0, "free"), key="other"))
    assert writer.transactions == 1
    for gate in gates:
        gate.set()
    results = await asyncio.gather(*slow, return_exceptions=True)
    assert {type(result) for result in results} == {LockedError}
    await writer.drain()


async def test_callers_take_turns(doors: Doors, writer: GroupWriter) -> None:
    """A principal with many connections gets no more than one with a single one, and nobody waits for a long queue."""
    door = doors.shut("first")
    futures = [writer.submit(request((0, "first")), caller("first"))]
    await doors.until(1)
    rows = [(0, f"bulk{n}") for n in range(999)]
    for number in range(20):
        bulk = request(*rows, key="bulk")
        futures += [
            writer.submit(bulk, caller(f"c{number % 4}", "greedy")),
            writer.submit(bulk, caller("calm", "calm")),
        ]
    # In another partition than the first: on a slow machine the next transaction begins beside that one.
    futures.append(writer.submit(request((1, "single")), caller("single", "modest")))
    door.set()
    await asyncio.gather(*futures)
    assert "single" in doors.begun[1]
    greedy = [group for group in doors.begun if "bulk0" in group]
    assert len(greedy) == 5  # 40,000 rows, 8,000 a group


def waiting(who: Caller, size: int) -> Waiting:
    return Waiting([WriteRequest(STORE, "k", [RowWrite(0, "r", "v", None, size)])], who)


def fill(queues: WriteQueues, who: Caller, size: int = 10) -> int:
    """How many requests of a caller are let in."""
    count = 0
    while queues.refusal(size, who) is None:
        queues.add(waiting(who, size))
        count += 1
    return count


async def test_there_is_room_for_a_newcomer_however_many_are_full() -> None:
    queues = WriteQueues(1_000, 1 << 30)
    shares = [fill(queues, Caller(f"p{n}", "c")) for n in range(100)]
    assert shares[:3] == [292, 195, 130]
    assert all(shares)
    assert queues.refusal(10, Caller("newcomer", "c")) is None


async def test_a_principal_with_many_connections_has_one_share() -> None:
    queues = WriteQueues(1_000, 1 << 30)
    shares = [fill(queues, Caller("greedy", f"c{n}")) for n in range(50)]
    assert sum(shares) <= 440
    assert fill(queues, Caller("modest", "c")) >= 140


async def test_bytes_are_shared_as_well() -> None:
    queues = WriteQueues(1_000, 3_000)
    assert fill(queues, Caller("p", "c"), 100) == 9
    assert queues.refusal(2_101, Caller("newcomer", "c")) == (
        "9 writes of 900 bytes wait for the database: try again later"
    )
    assert queues.refusal(2_100, Caller("newcomer", "c")) is None


async def test_what_is_taken_makes_room_and_leaves_nothing_behind() -> None:
    queues = WriteQueues(100, 1 << 30)
    callers = [Caller(f"p{n % 3}", f"c{n}") for n in range(9)]
    for who in callers:
        fill(queues, who)
    taken = 0
    while (lane := queues.next_lane()) is not None:
        queues.take(lane)
        taken += 1
    assert taken > 50
    assert (queues.writes, queues.bytes, queues.has_turns) == (0, 0, False)
    assert fill(queues, callers[0]) == 30
