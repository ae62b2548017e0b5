"""Bulk import over gRPC into SQLite and PostgreSQL, from the first batch sent to the last one committed.

The peer of each is the bare database: the same rows in the same batches, one transaction each, straight into one table
with its driver. It keeps no revisions, no history and no outbox, and no process stands in between: a floor, no rival.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire.grpc import ConfigServiceStub, pb

BATCH_ROWS = 1_000
MEASURED_ROWS = 100_000
PARTITIONS = 256
ROUNDS = 3

Batch = list[tuple[str, str]]


def batches(count: int, value: str) -> list[Batch]:
    """``count`` rows as a blocklist would have them."""
    rows = [(f"user{number}@example{number % 997}.com", value) for number in range(count)]
    return [rows[start : start + BATCH_ROWS] for start in range(0, count, BATCH_ROWS)]


async def import_over_grpc(address: str, store: str, work: list[Batch]) -> int:
    """Rows that the service acknowledged."""

    async def requests() -> AsyncIterator[pb.WriteBatch]:
        for batch in work:
            rows = [pb.RowWrite(row_id=row_id, value=value) for row_id, value in batch]
            yield pb.WriteBatch(store=store, key="bulk", rows=rows)

    async with grpc.aio.insecure_channel(address) as channel:
        stub = ConfigServiceStub(channel)
        await stub.CreateStore(pb.CreateStoreRequest(name=store, partition_count=PARTITIONS))
        return sum([result.written async for result in stub.Write(requests())])


def measure(benchmark: BenchmarkFixture, address: str, peer: Callable[[list[Batch]], float]) -> None:
    """A fresh store a round; the peer runs beside each, alternately."""
    enabled = bool(benchmark.enabled)
    count = MEASURED_ROWS if enabled else 2 * BATCH_ROWS
    work = batches(count, "blocked")
    stores = (f"bench{number}" for number in itertools.count())
    ours: list[float] = []
    theirs: list[float] = []

    def once() -> None:
        start = time.perf_counter()
        assert asyncio.run(import_over_grpc(address, next(stores), work)) == count
        ours.append(time.perf_counter() - start)

    benchmark.group = "bulk import"
    benchmark.pedantic(once, setup=lambda: theirs.append(peer(work)), rounds=ROUNDS if enabled else 1)
    assert theirs
    benchmark.extra_info.update(
        rows_per_s=round(count / min(ours)), peer_rows_per_s=round(count / min(theirs)), rows=count
    )


def test_into_sqlite(benchmark: BenchmarkFixture, config_service: ConfigServiceProcess, tmp_path: Path) -> None:
    numbers = itertools.count()

    def peer(work: list[Batch]) -> float:
        connection = sqlite3.connect(tmp_path / f"peer{next(numbers)}.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE peer (id TEXT PRIMARY KEY, value TEXT)")
        start = time.perf_counter()
        for batch in work:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO peer VALUES (?, ?)", batch)
            connection.execute("COMMIT")
        spent = time.perf_counter() - start
        connection.close()
        return spent

    measure(benchmark, config_service.address, peer)


@pytest.fixture
def postgres_service(
    tmp_path: Path, nats_server: NatsServer, postgres_url: str
) -> Iterator[tuple[ConfigServiceProcess, str]]:
    """The service on a database, and that database's URL."""
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=postgres_url) as service:
        yield service, postgres_url


def test_into_postgresql(benchmark: BenchmarkFixture, postgres_service: tuple[ConfigServiceProcess, str]) -> None:
    service, url = postgres_service
    numbers = itertools.count()

    async def insert(work: list[Batch]) -> float:
        connection: Any = await asyncpg.connect(url)
        table = f"peer{next(numbers)}"
        await connection.execute(f"CREATE TABLE {table} (id TEXT PRIMARY KEY, value TEXT)")
        start = time.perf_counter()
        for batch in work:
            await connection.executemany(f"INSERT INTO {table} VALUES ($1, $2)", batch)
        spent = time.perf_counter() - start
        await connection.close()
        return spent

    measure(benchmark, service.address, lambda work: asyncio.run(insert(work)))


def test_the_rows_are_distinct() -> None:
    """The figure counts rows, not rewrites of a few."""
    work = batches(5 * BATCH_ROWS, "v")
    assert len({row_id for batch in work for row_id, _ in batch}) == 5 * BATCH_ROWS
    assert [len(batch) for batch in work] == [BATCH_ROWS] * 5
