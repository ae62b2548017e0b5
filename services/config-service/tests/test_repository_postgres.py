"""What only PostgreSQL can do to a write: refuse to serialise it, deadlock, go away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from ringcast_config_service.repository import (
    HistoryFilter,
    Revision,
    RowWrite,
    StoreRecord,
    WriteOutcome,
    WriteRequest,
    make_repository,
)
from ringcast_config_service.repository.postgres import session as postgres_session
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_core import row_partition
from ringcast_service import ConfigError
from ringcast_testkit import PATIENCE_S, PostgresServer
from ringcast_testkit.rows import same_partition
from ringcast_wire import StoreSettings, UnavailableError

Bench = Any  # of conftest.py

_BLOCKED = """
SELECT pid FROM pg_stat_activity
WHERE application_name = 'ringcast-config-service' AND wait_event_type = 'Lock' AND datname = current_database()
"""
_TOUCH = "UPDATE partitions SET live_rows = live_rows WHERE partition = 3"


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[Any]:
    """Somebody else's connection to the same database."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    connection.terminate()


async def blocked_backends(connection: Any, count: int) -> list[int]:
    """Process ids of the service's backends once so many wait for a lock: there is no event for that, only a look."""
    async with asyncio.timeout(PATIENCE_S):
        while len(found := await connection.fetch(_BLOCKED)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return [record[0] for record in found]


async def blocked_backend(connection: Any) -> int:
    (pid,) = await blocked_backends(connection, 1)
    return pid


def rows_of(partition: int, count: int = 1) -> list[str]:
    found = (f"r{number}" for number in range(10_000))
    return [row for row in found if row_partition(row, 8) == partition][:count]


def retries(caplog: pytest.LogCaptureFixture, state: str) -> int:
    return sum(f"sqlstate={state}" in record.getMessage() for record in caplog.records)


async def hold(other: Any) -> Any:
    """A transaction that has locked the head of partition 3."""
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT head FROM partitions WHERE partition = 3 FOR UPDATE")
    return transaction


async def test_a_head_that_another_has_changed_is_read_with_its_rows(postgres_bench: Bench, other: Any) -> None:
    """The write waits for the lock; what it reads then is what the other has left, and nothing begins again."""
    (row,) = rows_of(3)
    await postgres_bench.write({row: "1"})
    second = make_repository(postgres_bench.address)
    await second.open()
    try:
        transaction = await hold(other)
        first = asyncio.create_task(postgres_bench.write({row: None}))
        await blocked_backends(other, 1)
        again = asyncio.create_task(second.writer.write([postgres_bench.request({row: "longer than before"})], 7))
        await blocked_backends(other, 2)
        await transaction.rollback()
        versions = [(await first).versions, (await again).outcomes[0].versions]  # type: ignore[union-attr]
    finally:
        await second.close()
    assert sorted(versions) == [[2], [3]]
    assert postgres_bench.repo.retries == dict.fromkeys(("40001", "40P01", "23505"), 0)
    live = await postgres_bench.live()
    assert live == ({row: "longer than before"} if versions == [[2], [3]] else {})
    (stats,) = (await postgres_bench.repo.stores.get_store("s")).keys
    assert (stats.rows, stats.bytes) == (len(live), sum(len(row) + len(value) for value in live.values()))
    await postgres_bench.check_gap_free()


_GIVE_ID_AWAY = "UPDATE config_keys SET name = 'another', history_id = 'of another'"
"""What a restored database looks like to an instance that ran meanwhile: the id of a key made after the dump is there
again, for another key."""


async def write_twice(bench: Bench, row: str) -> None:
    """The second write finds the key that the first has made: the instance knows its id from then on."""
    await bench.write({row: "1"})
    await bench.write({row: "2"})


@pytest.mark.parametrize("partition", [3, 4], ids=["written before", "never written"])
@pytest.mark.parametrize("count", [1, 100])
async def test_an_id_that_another_key_has_meanwhile(
    postgres_bench: Bench, other: Any, partition: int, count: int
) -> None:
    """The write goes to the key that it names, not to the one that has the id now."""
    (row,) = rows_of(3)
    await write_twice(postgres_bench, row)
    await other.execute(_GIVE_ID_AWAY)
    written = dict.fromkeys(rows_of(partition, count), "3")
    await postgres_bench.write(written)
    assert await postgres_bench.live() == written
    assert await postgres_bench.live("another") == {row: "2"}


async def test_an_id_of_a_key_that_is_gone(postgres_bench: Bench, other: Any) -> None:
    (row,) = rows_of(3)
    await write_twice(postgres_bench, row)
    await other.execute("TRUNCATE config_keys CASCADE")
    assert (await postgres_bench.write({row: "3"})).versions == [1]
    assert await postgres_bench.live() == {row: "3"}


async def test_a_history_that_another_instance_began_is_in_the_next_event(postgres_bench: Bench, other: Any) -> None:
    """Also in the first event of a partition, which has no head that tells of it."""
    (low,), high = rows_of(2), rows_of(3)
    await write_twice(postgres_bench, low)
    await other.execute("UPDATE config_keys SET history_id = 'the-next-one'")
    await postgres_bench.write(dict.fromkeys(high, "1"))
    assert [event.history for _, event in await postgres_bench.events()][2:] == ["the-next-one"]


async def test_cockroachdb_begins_a_write_again(serializable_bench: Bench, other: Any) -> None:
    (row,) = rows_of(3)
    await serializable_bench.write({row: "1"})
    transaction = await hold(other)
    write = asyncio.create_task(serializable_bench.write({row: "2"}))
    await blocked_backend(other)
    await other.execute(_TOUCH)
    await transaction.commit()
    assert (await write).versions == [2]
    assert serializable_bench.repo.retries["40001"] == 1
    await serializable_bench.check_gap_free()


async def test_retries_are_bounded(
    serializable_bench: Bench, other: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "ringcast_config_service")
    monkeypatch.setattr(postgres_session, "MAX_ATTEMPTS", 1)
    bench = serializable_bench
    (row,) = rows_of(3)
    await bench.write({row: "1"})
    transaction = await hold(other)
    write = asyncio.create_task(bench.write({row: "2"}))
    await blocked_backend(other)
    await other.execute(_TOUCH)
    await transaction.commit()
    with pytest.raises(UnavailableError, match="in the way of the write in each of 1 attempts: nothing was written"):
        await write
    assert retries(caplog, "40001") == 1
    assert await bench.live() == {row: "1"}
    assert (await bench.write({row: "2"})).versions == [2]
    await bench.check_gap_free()


async def test_a_lock_that_another_holds_is_not_waited_for_without_end(postgres_bench: Bench, other: Any) -> None:
    """One partition's lock is held: its writers are told so, the others don't notice."""
    low, high = rows_of(2), rows_of(3)
    await postgres_bench.write({low[0]: "1", high[0]: "1"})
    impatient = make_repository(postgres_bench.address, lock_timeout_ms=100)
    await impatient.open()
    try:
        transaction = await hold(other)
        with pytest.raises(
            UnavailableError, match=r"another transaction holds a lock .* nothing was written, try again"
        ):
            await impatient.writer.write([postgres_bench.request({low[0]: "2", high[0]: "2"})], 7)
        blocked = asyncio.create_task(postgres_bench.write({high[0]: "3"}))
        await blocked_backend(other)
        assert (await postgres_bench.write({low[0]: "3"})).versions == [2]
        assert not blocked.done()
        await transaction.rollback()
        assert (await blocked).versions == [2]
    finally:
        await impatient.close()
    await postgres_bench.check_gap_free()


async def test_a_deadlock_is_retried(postgres_bench: Bench, other: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who locks heads in another order than we do: the database picks a victim."""
    caplog.set_level(logging.DEBUG, "ringcast_config_service")
    (low,), (high,) = rows_of(2), rows_of(3)
    await postgres_bench.write({low: "1", high: "1"})
    await other.execute("SET deadlock_timeout = '60s'")  # we find the deadlock, so we are the victim
    transaction = await hold(other)
    write = asyncio.create_task(postgres_bench.write({low: "2", high: "2"}))
    await blocked_backend(other)
    await other.execute("SELECT head FROM partitions WHERE partition = 2 FOR UPDATE")
    await transaction.commit()
    assert (await write).versions == [2, 2]
    # Once, and again if we are back before the other one wakes up: PostgreSQL gives a row to whoever comes first.
    assert postgres_bench.repo.retries["40P01"] == retries(caplog, "40P01") >= 1
    await postgres_bench.check_gap_free()


async def test_a_connection_killed_in_the_middle_of_a_write(postgres_bench: Bench, other: Any) -> None:
    """The backend dies after rows, history and heads were written and before the outbox: nothing of it may stay."""
    (row,) = rows_of(3)
    await postgres_bench.write({row: "1"})
    async with other.transaction():
        await other.execute("LOCK TABLE outbox IN EXCLUSIVE MODE")
        write = asyncio.create_task(postgres_bench.write({row: "2", "fresh": "1"}))
        await other.execute("SELECT pg_terminate_backend($1)", await blocked_backend(other))
        with pytest.raises(UnavailableError, match="the database does not answer"):
            await write
    assert await postgres_bench.live() == {row: "1"}
    assert (await postgres_bench.write({row: "2"})).versions == [2]
    await postgres_bench.check_gap_free()


async def test_a_server_that_crashes_in_the_middle_of_writes() -> None:
    """SIGKILL to PostgreSQL while writers write: what was acknowledged is there, and revisions have no gap."""
    with PostgresServer() as server:
        repo = make_repository(server.create_database())
        await repo.open()
        store = await repo.stores.create_store(StoreRecord("s", StoreSettings(partition_count=8), 0, 1))
        acknowledged: dict[str, int] = {}
        enough = asyncio.Event()

        async def writer(number: int) -> None:
            for turn in range(100_000):
                row_id = f"w{number}-{turn}"
                row = RowWrite(row_partition(row_id, 8), row_id, "v", None, 8)
                try:
                    (outcome,) = (await repo.writer.write([WriteRequest(store, "k", [row])], 1)).outcomes
                except UnavailableError:
                    return
                assert isinstance(outcome, WriteOutcome)
                acknowledged[row_id] = outcome.versions[0]
                if len(acknowledged) > 30:
                    enough.set()

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    group.create_task(writer(number))
                await enough.wait()
                await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
            heads = (await repo.reader.heads("s", "k")).heads
            revisions: list[Revision] = [
                r async for page in repo.reader.history("s", "k", HistoryFilter()) for r in page
            ]
        finally:
            await repo.close()
    by_row = {revision.row.row_id: revision.row.version for revision in revisions}
    assert acknowledged.items() <= by_row.items()
    for partition, head in enumerate(heads):
        assert [r.row.version for r in revisions if r.partition == partition] == list(range(1, head + 1))


async def test_addresses_that_can_not_be_used(postgres_url: str) -> None:
    missing = postgres_url.replace(postgres_url.split("?")[0].rpartition("/")[2], "nowhere", 1)
    with pytest.raises(ConfigError, match='the database is not there: database "nowhere" does not exist'):
        await make_repository(missing).open()
    with pytest.raises(UnavailableError, match="can't be reached"):
        await make_repository("postgresql://127.0.0.1:1/x").open()
    with pytest.raises(ConfigError, match="can't be used"):
        await make_repository("postgresql://127.0.0.1:port/x").open()
    with pytest.raises(ConfigError, match="'mysql' is of no known kind") as refused:
        make_repository("mysql://user:secret@host/x")
    assert "secret" not in str(refused.value)


async def test_the_heads_to_lock_are_looked_up_without_reading_those_of_the_whole_key(
    postgres_bench: Bench, other: Any
) -> None:
    """As long as the table has no statistics, once the server has a plan for any partitions."""
    await postgres_bench.write({"a": "1"})
    key_id = await other.fetchval("SELECT key_id FROM config_keys")
    await other.execute("ALTER TABLE partitions SET (autovacuum_enabled = false)")
    await other.execute(
        "INSERT INTO partitions SELECT $1, p, 1, 0, 0, 0, false FROM generate_series(0, 999) p ON CONFLICT DO NOTHING",
        key_id,
    )
    await other.execute("SET plan_cache_mode = force_generic_plan")
    await other.execute(f"PREPARE heads (BIGINT[], BIGINT[]) AS {Sql.LOCK_HEADS}")
    keys, partitions = [key_id] * 500, list(range(500))
    found = await other.fetch(f"EXPLAIN ANALYZE EXECUTE heads (ARRAY{keys}::BIGINT[], ARRAY{partitions}::BIGINT[])")
    plan = "\n".join(record[0] for record in found)
    assert "LockRows" in plan
    assert "Rows Removed by Join Filter" not in plan, plan


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("READ_AS_OF", (300, 0, 0, False)),
        ("AS_OF_PAGE", (300, "", 0, 1_000, 1 << 20)),
        ("CHANGES_PAGE", (300, 600, "", 0, 1_000, 1 << 20)),
        ("HISTORY_PAGE", (3, 0, 300, "", 1_000, True, 1 << 20)),
    ],
)
async def test_what_rows_were_is_looked_up_without_reading_the_whole_partition_for_each(
    postgres_bench: Bench, other: Any, statement: str, words: tuple[object, ...]
) -> None:
    """As long as the table has no statistics, as after the first import."""
    for table in ("history", "rows"):
        await other.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    ids = same_partition(300)
    for value in ("1", "2"):
        await postgres_bench.write(dict.fromkeys(ids, value))
    key_id = await other.fetchval("SELECT key_id FROM config_keys")
    found = await other.fetch(f"EXPLAIN ANALYZE {getattr(Sql, statement)}", key_id, 3, *words)
    plan = "\n".join(record[0] for record in found)
    assert "loops=300" in plan, plan
    removed = [int(line.rpartition(":")[2]) for line in plan.splitlines() if "Rows Removed by" in line]
    assert max(removed, default=0) <= 300, plan
