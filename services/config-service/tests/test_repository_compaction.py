"""Compaction removes what is past its retention, keeps what undoing needs, and is done by one instance at a time."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import asyncpg
import pytest
from ringcast_config_service.repository import Deletion, HistoryFilter, LostLeadError, StoreRecord, compaction
from ringcast_config_service.repository.policies import PolicyChange
from ringcast_config_service.repository.sql.statements import Postgres, Sqlite
from ringcast_testkit import PATIENCE_S
from ringcast_testkit.rows import same_partition
from ringcast_wire import POLICY_RANGES, RevisionGoneError, StorePolicy, decode_fetch_reply

Bench = Any  # of conftest.py

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
FIRST = compaction.Moment(0, 0)
MOST_STATEMENTS = 30


async def revisions(bench: Bench) -> list[tuple[str, str | None]]:
    """What the history holds, by partition and revision; ``None`` for a delete."""
    return [
        (found.row.row_id, None if found.row.deleted else found.row.value)
        async for page in bench.repo.reader.history("s", "k", HistoryFilter())
        for found in page
    ]


async def read(bench: Bench, since: int | None, as_of: int | None = None, store: str = "s") -> Any:
    history = (await bench.repo.reader.heads(store, "k")).history
    (found,) = decode_fetch_reply(
        await bench.repo.reader.read_partition(store, "k", 3, since, history, as_of)
    ).partitions
    return found


async def values_at(bench: Bench, as_of: int, store: str = "s") -> dict[str, str]:
    return {row.row_id: row.value for row in (await read(bench, None, as_of, store)).rows}


async def keep_history(bench: Bench, store: str, ms: int | None) -> None:
    """Sets the store's own retention of the history, or lifts it."""
    lift = frozenset({"history_retention_ms"} if ms is None else ())
    await bench.repo.policies.set_policy(store, PolicyChange(StorePolicy(history_retention_ms=ms), lift))


async def keep_tombstones(bench: Bench, store: str, ms: int | None) -> None:
    """Sets the store's own retention of tombstones, or lifts it."""
    lift = frozenset({"tombstone_retention_ms"} if ms is None else ())
    await bench.repo.policies.set_policy(store, PolicyChange(StorePolicy(tombstone_retention_ms=ms), lift))


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


async def test_ages_are_by_the_clock_of_the_database(any_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the instance that compacts is ten years ahead: nothing is too old by that."""
    (row,) = same_partition(1)
    await any_bench.write({row: "1"})
    await any_bench.write({row: None})
    ahead_s = time.time() + 10 * 365 * 86_400
    monkeypatch.setattr(time, "time", lambda: ahead_s)
    assert await compact(any_bench) == (0, 0)


async def test_a_pass_does_not_ask_for_each_partition(
    postgres_bench: Bench, new_store: Callable[..., StoreRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few old rows of two of 4,096 partitions with heads take a few statements."""
    store = await postgres_bench.repo.stores.create_store(new_store("wide", partition_count=4096))
    rows = {f"row-{number}": "v" for number in range(20_000)}
    await postgres_bench.group([postgres_bench.request(rows, store=store)])
    (heads,) = await postgres_bench.ask("SELECT count(*) FROM partitions WHERE head > 0")
    assert heads[0] > 4_000
    asked = []
    for name in ("execute", "executemany", "fetch", "fetchrow", "fetchval"):
        method = getattr(asyncpg.Connection, name)

        async def counted(*words: Any, method: Any = method, **options: Any) -> Any:
            asked.append(words[1])
            return await method(*words, **options)

        monkeypatch.setattr(asyncpg.Connection, name, counted)
    deleted: dict[str, str | None] = dict.fromkeys(("row-1", "row-2"))
    await postgres_bench.group([postgres_bench.request(deleted, store=store)])
    await postgres_bench.pass_time(2 * DAY_MS)
    asked.clear()
    assert await compact(postgres_bench) == (2, 0)
    assert 0 < len(asked) <= MOST_STATEMENTS, asked


async def test_stores_that_keep_their_tombstones_for_other_times(
    bench: Bench, new_store: Callable[..., StoreRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for less time than all others, one for longer; lifted, and purged, nothing of it stays."""
    small_pieces(monkeypatch, 2)
    rows = same_partition(3)
    for name in ("short", "long"):
        await bench.repo.stores.create_store(new_store(name, partition_count=bench.store.partition_count))
    stores = [(await bench.repo.stores.get_store(name)).record for name in ("s", "short", "long")]
    await keep_tombstones(bench, "short", POLICY_RANGES["tombstone_retention_ms"][0])
    await keep_tombstones(bench, "long", 30 * DAY_MS)

    async def tombstones_stay() -> set[str]:
        """Stores of which a worker that was away since before the deletions learns of them."""
        return {each.name for each in stores if not (await read(bench, 3, store=each.name)).whole}

    for value in ("1", None):
        await bench.group([bench.request(dict.fromkeys(rows, value), store=store) for store in stores])
    await bench.pass_time(HOUR_MS - MINUTE_MS)
    assert await compact(bench) == (0, 0)
    await bench.pass_time(2 * MINUTE_MS)
    assert await compact(bench) == (3, 0)
    assert await tombstones_stay() == {"s", "long"}
    await bench.pass_time(DAY_MS)
    assert await compact(bench) == (3, 0)
    assert await tombstones_stay() == {"long"}
    marks = "SELECT duty FROM maintenance WHERE duty LIKE 'tombstones/%' ORDER BY duty"
    assert [duty for (duty,) in await bench.ask(marks)] == ["tombstones/long", "tombstones/short"]

    await keep_tombstones(bench, "long", None)
    assert await compact(bench) == (3, 0), "it is one of all others again"
    assert await tombstones_stay() == set()
    await bench.repo.deletions.delete_store("short", Deletion(1, 0))
    while await bench.repo.deletions.purge_rows("short", None):
        pass
    await bench.repo.deletions.drop_store("short")
    assert await bench.ask(marks) == []


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


@pytest.mark.parametrize("own", [False, True], ids=["all-stores", "own-retention"])
async def test_random_writes_over_weeks_against_a_model(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """What each row held a week ago can be read from the history, however often it was compacted since; and no more."""
    small_pieces(monkeypatch, 3)
    seed = 5
    kept_ms = 7 * DAY_MS - DAY_MS // 2
    if own:
        await keep_history(bench, "s", kept_ms)
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
        await compact(bench, DAY_MS // 2, DAY_MS if own else kept_ms)
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


async def test_stores_with_retentions_of_their_own(bench: Bench, new_store: Callable[..., StoreRecord]) -> None:
    """One for less time than all others, one for longer, and neither changes what can be read of another."""
    (row,) = same_partition(1)
    for name in ("short", "long"):
        await bench.repo.stores.create_store(new_store(name, partition_count=bench.store.partition_count))
    stores = [(await bench.repo.stores.get_store(name)).record for name in ("s", "short", "long")]
    await keep_history(bench, "short", POLICY_RANGES["history_retention_ms"][0])
    await keep_history(bench, "long", 30 * DAY_MS)

    async def write(value: str | None) -> None:
        await bench.group([bench.request({row: value}, store=store) for store in stores])

    async def readable(as_of: int) -> dict[str, dict[str, str] | None]:
        found: dict[str, dict[str, str] | None] = {}
        for store in stores:
            try:
                found[store.name] = await values_at(bench, as_of, store.name)
            except RevisionGoneError:
                found[store.name] = None
        return found

    await write("1")
    await write("2")
    await bench.pass_time(HOUR_MS - MINUTE_MS)
    assert await compact(bench) == (0, 0), "what was replaced within the shortest retention stays"
    assert await readable(1) == {name: {row: "1"} for name in ("s", "short", "long")}
    await bench.pass_time(2 * MINUTE_MS)
    assert await compact(bench) == (0, 1)
    assert await readable(1) == {"s": {row: "1"}, "short": None, "long": {row: "1"}}
    await bench.pass_time(WEEK_MS)
    assert await compact(bench) == (0, 1)
    assert await readable(1) == {"s": None, "short": None, "long": {row: "1"}}

    await write(None)  # 3
    await write("4")
    await bench.pass_time(2 * HOUR_MS)
    assert await compact(bench) == (0, 2), "of one store the value and its deletion"
    assert (await read(bench, 2, store="short")).whole is False, "a worker that was away needs no history"
    assert await readable(3) == {"s": {}, "short": None, "long": {}}

    await keep_history(bench, "long", None)
    assert await compact(bench) == (0, 1), "it is as all others now, and what it has kept for longer goes"
    assert await readable(1) == {"s": None, "short": None, "long": None}
    assert await readable(2) == {"s": {row: "2"}, "short": None, "long": {row: "2"}}
    assert await compact(bench) == (0, 0)


async def test_a_longer_retention_brings_nothing_back(bench: Bench) -> None:
    """What a shorter one has removed is refused, and is not taken for rows that were not there."""
    a, b = same_partition(2)
    await bench.write({a: "1", b: "2"})
    await bench.write({a: "3"})
    await bench.pass_time(30 * MINUTE_MS)
    await bench.write({b: "4"})
    await bench.pass_time(90 * MINUTE_MS)
    assert await compact(bench, history_ms=HOUR_MS) == (0, 2)
    assert await compact(bench, history_ms=WEEK_MS) == (0, 0)
    await bench.pass_time(WEEK_MS - 2 * HOUR_MS + MINUTE_MS)
    await compact(bench, history_ms=WEEK_MS)
    assert await values_at(bench, 4) == {a: "3", b: "4"}
    with pytest.raises(RevisionGoneError):
        await values_at(bench, 3)


async def test_a_purged_store_leaves_no_retention_behind(bench: Bench) -> None:
    await bench.write({"a": "1"})
    await keep_history(bench, "s", HOUR_MS)
    await compact(bench)
    own = "SELECT duty FROM maintenance WHERE duty LIKE '%/s' ORDER BY duty"
    assert await bench.ask(own) == [("compaction/s",), ("history-horizon/s",)]
    await bench.repo.deletions.delete_store("s", Deletion(1, 0))
    while await bench.repo.deletions.purge_rows("s", None):
        pass
    await bench.repo.deletions.drop_store("s")
    assert await bench.ask(own) == []


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
    _, now_ms = await steps.progress(compaction.ALL_OTHERS)
    while first is not None:
        dropped, first = await steps.drop_tombstones(lead, compaction.ALL_OTHERS, first, now_ms)
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
    _, now_ms = await steps.progress(compaction.ALL_OTHERS)
    dropped, after = await steps.drop_tombstones(lead, compaction.ALL_OTHERS, FIRST, now_ms)
    assert (dropped, after is not None) == (10, True)
    await bench.lead(holder="bench")  # the same instance, later
    for step in (
        steps.drop_tombstones(lead, compaction.ALL_OTHERS, FIRST, now_ms),
        steps.drop_history(lead, compaction.ALL_OTHERS, 0, now_ms),
        steps.drop_history(lead, "s", 0, now_ms),
        steps.retentions(lead),
        steps.done(lead, compaction.ALL_OTHERS, 1),
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
