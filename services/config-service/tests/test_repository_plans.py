"""How PostgreSQL plans what it has no statistics of: the steps of a release that was staged just now, and a purge."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
import pytest
from ringcast_config_service.repository import Authorship, RowWrite, StageBatch, StagedRow
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_testkit.rows import same_partition
from ringcast_wire import check_row

Bench = Any  # of conftest.py

BY: Final = Authorship("alice", "new list")
ROWS: Final = 1_000
STEP: Final = 100
"""Rows of which each statement is asked for."""
_READ: Final = re.compile(r"Scan .*actual time=\S+ rows=([\d.]+) loops=(\d+)")
_REMOVED: Final = re.compile(r"Rows Removed by [\w ]+: (\d+)")


@pytest.fixture
async def released(postgres_bench: Bench) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database with two releases of the same rows: the first undone, the second published."""
    db = await asyncpg.connect(postgres_bench.address)
    for table in ("release_rows", "release_partitions", "releases", "rows", "history"):
        await db.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    await db.execute("SET plan_cache_mode = force_generic_plan")  # as the service has it, once it has taken a few steps
    await postgres_bench.write(dict.fromkeys(same_partition(ROWS), "old"))
    releases = postgres_bench.repo.releases
    for number in (1, 2):
        found = await db.fetch("SELECT row_id, version FROM rows ORDER BY row_id")
        size = check_row(found[0][0], "new", None)
        rows = [StagedRow("k", RowWrite(3, row_id, "new", None, size, version)) for row_id, version in found]
        await releases.stage(postgres_bench.store, StageBatch(f"stage {number}", 0, rows, True), BY)
        await releases.publish("s", number, 86_400_000, BY)
        await work(postgres_bench, number)
        if number == 1:
            await releases.undo("s", number, BY)
            await work(postgres_bench, number)
    assert (await releases.get("s", 1)).undone == (await releases.get("s", 2)).published == ROWS
    # As if the second one had written to many partitions, all in its third wave.
    await db.execute("INSERT INTO release_partitions SELECT 's', 2, each, 3 FROM generate_series(0, 127) AS each")
    yield db
    await db.close()


async def work(bench: Bench, number: int) -> None:
    while not (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
        pass


def words_of(statement: str, key_id: int, rows: list[tuple[int, str, int]]) -> tuple[object, ...]:
    """What a step with these rows of the release 2 asks with: place, id and version of each."""
    places, ids, versions = map(list, zip(*rows, strict=True))
    first, named = rows[0][0] - 1, (["s"] * STEP, [2] * STEP, places, ["k"] * STEP, ids)
    return {
        "PUBLISH_PAGE": ("s", 2, first, STEP, 1 << 20),
        "WAVE_PAGE": ("s", 2, first, STEP, 1 << 20, ROWS, 3),
        "UNDO_PAGE": ("s", 2, first + STEP + 1, STEP, 1 << 20),
        "SAME_AGAIN": ("s", 2, first + STEP + 1, first + 1),
        "KEEP_OLD_ROWS": (*named, [key_id] * STEP, [3] * STEP, versions),
        "SET_PUBLISHED": (*named, ["published"] * STEP, versions),
        "SET_UNDONE": (*named, ["undone"] * STEP, versions),
        "REMOVE_RELEASE_ROWS": ("s", 2, STEP),
    }[statement]


def most_read(plan: str) -> float:
    """The rows that the part of an analysed plan reads which reads most."""
    most, loops = 0.0, 1
    for line in plan.splitlines():
        if (read := _READ.search(line)) is not None:
            most, loops = max(most, float(read[1]) * int(read[2])), int(read[2])
        elif (removed := _REMOVED.search(line)) is not None:
            most = max(most, float(removed[1]) * loops)
    return most


@pytest.mark.parametrize(
    "statement",
    [
        "PUBLISH_PAGE",
        "WAVE_PAGE",
        "UNDO_PAGE",
        "SAME_AGAIN",
        "KEEP_OLD_ROWS",
        "SET_PUBLISHED",
        "SET_UNDONE",
        "REMOVE_RELEASE_ROWS",
    ],
)
async def test_no_step_of_a_release_reads_more_than_its_rows(released: asyncpg.Connection, statement: str) -> None:
    key_id = await released.fetchval("SELECT key_id FROM config_keys")
    page = "SELECT place, row_id, version FROM release_rows WHERE number = 2 AND place > $1 ORDER BY place LIMIT $2"
    words = words_of(statement, key_id, [tuple(record) for record in await released.fetch(page, ROWS // 2, STEP)])
    await released.execute(f"PREPARE step AS {getattr(Sql, statement)}")
    given = ", ".join(f"ARRAY{word!r}" if isinstance(word, list) else repr(word) for word in words)
    found = await released.fetch(f"EXPLAIN (ANALYZE, COSTS OFF) EXECUTE step ({given})")
    plan = "\n".join(record[0] for record in found)
    assert STEP <= most_read(plan) <= 2 * STEP, plan


@pytest.mark.parametrize("statement", ["ADDED_IDS", "DELETED_IDS"])
async def test_the_ids_of_a_release_are_read_along_an_index(released: asyncpg.Connection, statement: str) -> None:
    """Page by page, so without sorting all of them for each page."""
    await released.execute(f"PREPARE page AS {getattr(Sql, statement)}")
    found = await released.fetch(f"EXPLAIN (ANALYZE, COSTS OFF) EXECUTE page ('s', 2, 'k', '', {STEP})")
    plan = "\n".join(record[0] for record in found)
    assert "release_rows_store_number_config_key_row_id_key" in plan, plan
    assert "Sort" not in plan, plan


async def test_the_ids_of_a_key_are_read_page_by_page(released: asyncpg.Connection) -> None:
    key_id = await released.fetchval("SELECT key_id FROM config_keys")
    middle = await released.fetchval("SELECT row_id FROM rows ORDER BY row_id OFFSET $1 LIMIT 1", ROWS // 2)
    await released.execute(f"PREPARE page AS {Sql.IDS_THERE}")
    found = await released.fetch(f"EXPLAIN (ANALYZE, COSTS OFF) EXECUTE page ({key_id}, 3, '{middle}', {STEP})")
    plan = "\n".join(record[0] for record in found)
    assert STEP <= most_read(plan) <= 2 * STEP, plan


@pytest.mark.parametrize("statement", ["PURGE_ROWS", "PURGE_HISTORY"])
async def test_a_purge_reads_no_more_than_it_removes(released: asyncpg.Connection, statement: str) -> None:
    key_id = await released.fetchval("SELECT key_id FROM config_keys")
    await released.execute(f"PREPARE purge AS {getattr(Sql, statement)}")
    found = await released.fetch(f"EXPLAIN (ANALYZE, COSTS OFF) EXECUTE purge ({key_id}, 3, {STEP})")
    plan = "\n".join(record[0] for record in found)
    assert STEP <= most_read(plan) <= 2 * STEP, plan
