"""Compaction removes what is past its retention, keeps what undoing needs, and is done by one instance at a time."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from typing import Any, cast

import asyncpg
import pytest
from ringcast_config_service.repository import HistoryFilter, LostLeadError, compaction
from ringcast_config_service.repository.sql.statements import Postgres, Sqlite
from ringcast_testkit import PATIENCE_S
from ringcast_testkit.rows import same_partition
from ringcast_wire import decode_fetch_reply

Bench = Any  # of conftest.py

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
FIRST = compaction.Moment(0, 0)


async def revisions(bench: Bench) -> list[tuple[str, str | None]]:
    """What the history holds, by partition and revision; ``None`` for a delete."""
    return [
        (found.row.row_id, None if found.row.deleted else found.row.value)
        async for page in bench.repo.reader.history("s", "k", HistoryFilter())
        for found in page
    ]


async def read(bench: Bench, since: int) -> Any:
    (found,) = decode_fetch_reply(
        await bench.repo.reader.read_partition("s", "k", 3, since, await history_of(bench))
    ).partitions
    return found


async def history_of(bench: Bench) -> str:
    return str((await bench.repo.reader.heads("s", "k")).history)


def small_pieces(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for name in ("PIECE_ROWS", "PIECE_REVISIONS"):
        for module in ("postgres.compaction", "sqlite.compaction"):
            monkeypatch.setattr(f"ringcast_config_service.repository.{module}.{name}", count)


def steps_of(bench: Bench) -> compaction.Steps:
    return cast(compaction.Steps, bench.repo.maintenance._steps)


async def compact(bench: Bench, tombstones_ms: int = DAY_MS, history_ms: int = WEEK_MS) -> tuple[int, int]:
    done = await bench.repo.maintenance.compact(await bench.lead(), tombstones_ms, history_ms)
    return done.tombstones, done.revisions


async def test_tombstones_that_are_old(bench: Bench) -> None:
    a, b, c = same_partition(3)
    await bench.write({a: "1", b: "1", c: "1"})  # revisions 1 to 3
    await bench.write({a: None})  # revision 4
    await bench.pass_time(2 * DAY_MS)
    await bench.write({b: None})  # revision 5
    assert await compact(bench) == (1, 0)
    at_floor, below = await read(bench, 4), await read(bench, 3)
    assert (at_floor.whole, [row.row_id for row in at_floor.rows]) == (False, [b])
    assert (below.whole, below.revision, [row.row_id for row in below.rows]) == (True, 5, [c])
    assert await compact(bench) == (0, 0)
    await bench.pass_time(2 * DAY_MS)
    assert await compact(bench) == (1, 0)
    assert (await read(bench, 4)).whole is True
    assert (await read(bench, 5)).whole is False
    assert (await bench.write({a: "back"})).versions == [6]
    await bench.check_gap_free()


async def test_a_tombstone_whose_row_is_back_stays_out_of_it(bench: Bench) -> None:
    (row,) = same_partition(1)
    await bench.write({row: "1"})
    await bench.write({row: None})
    await bench.pass_time(2 * DAY_MS)
    await bench.write({row: "2"})
    assert await compact(bench) == (0, 0)
    assert (await read(bench, 1)).whole is False


async def test_the_value_before_a_change_stays(bench: Bench) -> None:
    """A row written a month ago was changed an hour ago: what it held before is what undoing that needs."""
    (row,) = same_partition(1)
    for value in ("older", "block"):
        await bench.write({row: value})
    await bench.pass_time(30 * DAY_MS)
    await bench.write({row: "allow"})
    await bench.pass_time(3_600_000)
    assert await compact(bench) == (0, 1)
    assert await revisions(bench) == [(row, "block"), (row, "allow")]
    await bench.pass_time(WEEK_MS)
    assert await compact(bench) == (0, 1)
    assert await revisions(bench) == [(row, "allow")]
    await bench.pass_time(30 * DAY_MS)
    assert await compact(bench) == (0, 0)
    assert await revisions(bench) == [(row, "allow")], "the last value of a live row stays"


async def test_a_deleted_row_leaves_no_history_in_the_end(bench: Bench) -> None:
    (row,) = same_partition(1)
    await bench.write({row: "1"})
    await bench.pass_time(2 * WEEK_MS)
    await bench.write({row: None})
    assert await compact(bench) == (0, 0)
    assert await revisions(bench) == [(row, "1"), (row, None)], "undoing the deletion needs the value"
    await bench.pass_time(2 * DAY_MS)
    assert await compact(bench) == (1, 0)
    await bench.write({row: "2"})  # its tombstone is gone by now
    await bench.pass_time(WEEK_MS)
    assert await compact(bench) == (0, 2)
    assert await revisions(bench) == [(row, "2")]


async def test_random_writes_over_weeks_against_a_model(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each row held a week ago can be read from the history, however often it was compacted since; and no more."""
    small_pieces(monkeypatch, 3)
    seed = 5
    draw = random.Random(seed)
    days: list[dict[str, str]] = [{}]
    for day in range(1, 25):
        now = dict(days[-1])
        rows = {f"r{draw.randrange(20)}": draw.choice([None, f"{day}"]) for _ in range(draw.randrange(8))}
        if rows and (now or any(rows.values())):
            await bench.write(rows)
        for row, value in rows.items():
            now.pop(row, None)
            if value is not None:
                now[row] = value
        days.append(now)
        await bench.pass_time(DAY_MS)
        await compact(bench, DAY_MS // 2, 7 * DAY_MS - DAY_MS // 2)
        held: dict[str, str] = {}
        before = [found async for page in bench.repo.reader.history("s", "k", HistoryFilter()) for found in page]
        week_ago = max(0, day - 6)
        by_row: dict[str, list[str | None]] = {}
        for found in before:
            by_row.setdefault(found.row.row_id, []).append(None if found.row.deleted else found.row.value)
        for row, values in by_row.items():
            firsts = [value for value in values if value is not None and int(value) <= week_ago]
            assert len(firsts) <= 1, f"seed {seed}, day {day}: {row} has {values}"
            if firsts:
                held[row] = firsts[0]
        for row, value in days[week_ago].items():
            assert held.get(row) == value, f"seed {seed}, day {day}, row {row}"
        live = days[-1]
        assert set(live) <= set(by_row), f"seed {seed}, day {day}"
    assert await bench.live() == days[-1]


async def test_pieces_are_small(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tombstones and revisions of one moment, and of several, go in pieces, and all of them go."""
    small_pieces(monkeypatch, 10)
    for turn in range(3):
        await bench.write({f"r{number}": str(turn) for number in range(35)})
    for first in (0, 20):
        await bench.write({f"r{number}": None for number in range(first, 35 if first else 20)})
    await bench.pass_time(2 * WEEK_MS)
    assert await compact(bench) == (35, 4 * 35)
    assert await revisions(bench) == []
    assert await bench.live() == {}


async def test_of_one_moment_a_piece_begins_where_the_last_one_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would go over all that the pieces before it have removed, which a database keeps for a while."""
    small_pieces(monkeypatch, 10)
    rows = same_partition(35)
    await bench.write(dict.fromkeys(rows, "1"))
    await bench.write(dict.fromkeys(rows))
    await bench.pass_time(2 * WEEK_MS)
    steps = steps_of(bench)
    first: compaction.Moment | None = FIRST
    found: list[tuple[int, int | None]] = []
    lead = await bench.lead()
    _, now_ms = await steps.progress()
    while first is not None:
        dropped, first = await steps.drop_tombstones(lead, first, now_ms)
        found.append((dropped, first.version if first else None))
    assert found == [(10, 45), (10, 55), (10, 65), (5, None)]
    assert "sort" not in (plan := await plan_of_tombstones(bench)).lower()
    assert "rows_tombstones" in plan


async def plan_of_tombstones(bench: Bench) -> str:
    """How the database finds a piece, once there is more than fits a page."""
    if bench.address.startswith("sqlite:"):
        with closing(sqlite3.connect(bench.address.removeprefix("sqlite:"))) as db:
            sql = f"EXPLAIN QUERY PLAN {Sqlite.OLD_TOMBSTONES}"
            return str(db.execute(sql, (0, 0, 1, 10)).fetchall()).replace("TEMP B-TREE", "sort")
    db = await asyncpg.connect(bench.address)
    try:
        await db.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        return str(await db.fetch(f"EXPLAIN {Postgres.OLD_TOMBSTONES}", 0, 0, 1, 10))
    finally:
        await db.close()


async def test_an_instance_that_lost_the_lead_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was halted within a pass for so long that another instance took the lead, which goes on where it was."""
    small_pieces(monkeypatch, 10)
    await bench.write({f"r{number}": "1" for number in range(30)})
    await bench.write({f"r{number}": None for number in range(30)})
    await bench.pass_time(2 * WEEK_MS)
    lead = await bench.lead()
    steps = steps_of(bench)
    _, now_ms = await steps.progress()
    dropped, after = await steps.drop_tombstones(lead, FIRST, now_ms)
    assert (dropped, after is not None) == (10, True)
    await bench.lead(holder="bench")  # the same instance, later
    for step in (
        steps.drop_tombstones(lead, FIRST, now_ms),
        steps.drop_history(lead, 0, now_ms),
        steps.done(lead, 1),
        bench.repo.maintenance.compact(lead, DAY_MS, WEEK_MS),
    ):
        with pytest.raises(LostLeadError):
            await step
    assert len(await revisions(bench)) == 60
    assert await compact(bench) == (20, 60)


async def test_compaction_beside_writes(bench: Bench) -> None:
    """Writers of the same partitions go on, and revisions stay gap-free as the events tell them."""
    rows = [f"r{number}" for number in range(40)]
    await bench.write(dict.fromkeys(rows, "1"))
    dropped = turns = 0

    async def write() -> None:
        nonlocal turns
        while dropped < 200 or turns % 4:
            turns += 1
            await bench.write(
                {row: None if turns % 4 and number % 4 == turns % 4 else "2" for number, row in enumerate(rows)}
            )

    async def keep_compacting() -> None:
        nonlocal dropped
        while dropped < 200:
            dropped += (
                await bench.repo.maintenance.compact(await bench.lead(), -1_000, WEEK_MS)
            ).tombstones  # those of this very moment too

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(write(), keep_compacting())
    assert await bench.live() == dict.fromkeys(rows, "2")
    await bench.check_gap_free()
