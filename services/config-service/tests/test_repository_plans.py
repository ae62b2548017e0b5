"""How PostgreSQL plans what it has no statistics of: the steps of a release that was staged just now, a purge, and what
the service asks again and again."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import asyncpg
import pytest
from ringcast_config_service.repository import (
    Authorship,
    Deletion,
    PolicyChange,
    RowWrite,
    StageBatch,
    StagedRow,
    StoreRecord,
)
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_core import row_partition
from ringcast_testkit.rows import same_partition
from ringcast_wire import StorePolicy, check_row

Bench = Any  # of conftest.py

BY: Final = Authorship("alice", "new list")
ROWS: Final = 1_000
MANY_ROWS: Final = 10_000
STEP: Final = 100
"""Rows of which each statement is asked for."""
STORES: Final = 20
ALL_POLICIES: Final = StorePolicy(
    max_rows=10 * MANY_ROWS,
    max_bytes=1 << 30,
    max_release_growth_percent=100,
    max_release_shrink_percent=50,
    max_release_change_percent=100,
    max_release_byte_growth_percent=1_000,
    max_release_byte_shrink_percent=50,
    max_release_partition_growth_percent=1_000,
    max_release_partition_shrink_percent=100,
    release_partition_tolerance_rows=1,
    unique_ignoring_case=True,
    unique_ignoring_outer_space=True,
    unique_ignoring_unicode_form=True,
    unique_ignoring_trailing_dot=True,
)
MOST_READS: Final = 60
"""How often all of that reads each row of a table, on average."""
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


async def work(bench: Bench, number: int, store: str = "s") -> None:
    while not (await bench.repo.releases.step(store, number, bench.repo.histories.generation)).done:
        pass


def words_of(statement: str, key_id: int, rows: list[tuple[int, str, int]]) -> tuple[object, ...]:
    """What a step with these rows of the release 2 asks with: place, id and version of each."""
    places, ids, versions = map(list, zip(*rows, strict=True))
    first = rows[0][0] - 1
    new = [10 * ROWS + place for place in places]
    return {
        "PUBLISH_PAGE": ("s", 2, first, STEP, 1 << 20),
        "WAVE_PAGE": ("s", 2, first, STEP, 1 << 20, ROWS, 3),
        "UNDO_PAGE": ("s", 2, first + STEP + 1, STEP, 1 << 20),
        "SAME_AGAIN": ("s", 2, first + STEP + 1, first + 1),
        "PUBLISH_ROWS": ("s", 2, places, ["k"] * STEP, ids, new, ["k"], [key_id], "bob", "too strict"),
        "KEPT_SIZES": ("s", 2, first + 1, first + STEP, "k", key_id),
        "WRITE_BACK": ("s", 2, first + 1, first + STEP, [key_id] * STEP, new, versions, "bob", "too strict"),
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
        "PUBLISH_ROWS",
        "KEPT_SIZES",
        "WRITE_BACK",
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


async def test_no_call_of_a_release_reads_a_row_more_than_some_times(
    postgres_bench: Bench, new_store: Callable[..., StoreRecord]
) -> None:
    """Whatever its statements are: with all policies, in waves, undone and purged, rows are read in proportion to their
    number, with no statistics of any table."""
    db = await asyncpg.connect(postgres_bench.address)
    tables = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    for (table,) in await db.fetch(tables):
        await db.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    repo = postgres_bench.repo
    store = await repo.stores.create_store(new_store("large", partition_count=256))
    old = dict.fromkeys((f"r{number}" for number in range(MANY_ROWS)), "old")
    await postgres_bench.group([postgres_bench.request(old, store=store)])
    await repo.policies.set_policy("large", PolicyChange(ALL_POLICIES))
    found = dict(await db.fetch("SELECT row_id, version FROM rows"))
    rows = [staged(store, row_id, None if row_id.endswith("0") else "new", found[row_id]) for row_id in sorted(found)]
    rows += [staged(store, row_id.upper(), "like one that is deleted", 0) for row_id in found if row_id.endswith("0")]
    before = await reads(db)
    await repo.releases.stage(store, StageBatch("one", 0, rows, True), BY)
    await repo.releases.publish("large", 1, 86_400_000, BY, [50, 100])
    for wave in (1, 2):
        await work(postgres_bench, 1, "large")
        await repo.releases.pass_gate("large", 1, wave)
    await work(postgres_bench, 1, "large")
    assert (await repo.releases.get("large", 1)).published == len(rows)
    await repo.releases.undo("large", 1, BY)
    await work(postgres_bench, 1, "large")
    assert (await repo.releases.get("large", 1)).undone == len(rows)
    await repo.deletions.delete_store("large", Deletion(1, 0))
    while await repo.deletions.purge_rows("large", None):
        pass
    await repo.deletions.drop_store("large")
    await repo.close()  # what a connection has read it says at its end
    read = {table: count / len(rows) for table, count in (await reads(db)).items() if count > before.get(table, 0)}
    await db.close()
    assert sum(read.values()) >= 10, read
    assert max(read.values()) <= MOST_READS, read


def staged(store: StoreRecord, row_id: str, value: str | None, version: int) -> StagedRow:
    partition, size = row_partition(row_id, store.partition_count), check_row(row_id, value or "", None)
    return StagedRow("k", RowWrite(partition, row_id, value, None, size, version))


async def reads(db: asyncpg.Connection) -> dict[str, int]:
    """The entries that were read of each index of a table, and the rows of each that was read without one."""
    await db.execute("SELECT pg_stat_clear_snapshot()")
    found = await db.fetch("""
        SELECT t.relname, t.seq_tup_read + coalesce((
            SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relid = t.relid
        ), 0) FROM pg_stat_user_tables t
    """)
    return {table: int(count) for table, count in found}


@pytest.mark.parametrize("statement", ["ADDED_IDS", "WAITING_IDS", "DELETED_IDS"])
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


@pytest.mark.parametrize("waiting", [0, 20_000])
async def test_what_is_asked_again_and_again_reads_little(
    postgres_bench: Bench, new_store: Callable[..., StoreRecord], waiting: int
) -> None:
    """The relay and the provisioner look at all stores every few seconds: not at each partition, nor at each event."""
    repo, db = postgres_bench.repo, await asyncpg.connect(postgres_bench.address)
    await db.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")
    await db.execute("ALTER TABLE partitions SET (autovacuum_enabled = false)")
    for number in range(STORES):
        await repo.stores.create_store(new_store(f"s{number}", partition_count=4096))
    await db.execute(
        "INSERT INTO config_keys (store, name, history_id) SELECT 's' || n, 'k', 'h' FROM generate_series(1, $1) n",
        STORES - 1,
    )
    await db.execute("""
        INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes)
        SELECT key_id, n, 10, 0, 1, 10 FROM config_keys, generate_series(0, 4095) n
    """)
    await db.execute(
        """
        INSERT INTO outbox (store, subject, msg_id, payload, created_at_ms)
        SELECT 's' || n % 3, 'config.notify.s' || n % 3 || '.k.1', n::TEXT, 'event', 0 FROM generate_series(1, $1) n
        """,
        waiting,
    )
    before = await reads(db)
    assert len(await repo.stores.store_records()) == STORES + 1
    assert len(await repo.events.outbox_spans()) == (3 if waiting else 0)
    assert len(await repo.events.outbox("s1", 0, STEP, 1 << 20)) == (STEP if waiting else 0)
    await repo.close()
    after = await reads(db)
    await db.close()
    read = {table: count - before.get(table, 0) for table, count in after.items()}
    assert read["partitions"] == 0, read
    assert read["outbox"] <= 3 * STEP, read
