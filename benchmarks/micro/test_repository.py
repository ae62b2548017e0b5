"""The config service's repository in one SQLite file, beside `diskcache` and a plain dict: reads and small writes.

The repository keeps history, revisions and an outbox in the transaction of the rows, and a commit is on the disk; so is
diskcache's here (`synchronous = FULL`). The dict only says what any answer costs at least. Bulk writes stand in
test_bulk_write.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import diskcache
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_config_service.repository import RowWrite, StoreRecord, WriteRequest
from ringcast_config_service.repository.sqlite.repository import SqliteRepository
from ringcast_core import row_partitions
from ringcast_sqlite import Database
from ringcast_wire import StoreSettings, decode_fetch_reply

from benchmarks.micro.core_peer import spread

ROWS = 10_000
PARTITIONS = 64
VALUE = "v" * 100
ROUNDS = 15
KEY = "list"
STORE = StoreRecord("bench", StoreSettings(partition_count=PARTITIONS), 0, 0)


def writes(row_ids: list[str]) -> WriteRequest:
    """Puts of these rows."""
    partitions = row_partitions(row_ids, PARTITIONS)
    rows = [RowWrite(place, row_id, VALUE, None, 120) for place, row_id in zip(partitions, row_ids, strict=True)]
    return WriteRequest(STORE, KEY, rows)


class Peers:
    """The three, with the same rows."""

    def __init__(self, directory: Path, row_ids: list[str]) -> None:
        self.row_ids = row_ids
        self.repository = SqliteRepository(Database(directory / "repository.db"))
        self.cache = diskcache.Cache(
            str(directory / "cache"), eviction_policy="none", cull_limit=0, sqlite_synchronous=2
        )
        self.dict = dict.fromkeys(row_ids, VALUE)

    async def open(self) -> None:
        await self.repository.open()
        await self.repository.stores.create_store(STORE)
        for start in range(0, len(self.row_ids), 1_000):
            await self.repository.writer.write([writes(self.row_ids[start : start + 1_000])], 1)
        self.put_cache(self.row_ids)

    def put_cache(self, row_ids: list[str]) -> None:
        """diskcache's way to write several at once."""
        with self.cache.transact():
            for row_id in row_ids:
                self.cache.set(row_id, VALUE)

    async def close(self) -> None:
        await self.repository.close()
        self.cache.close()


async def measure(
    benchmark: Any,
    peers: Peers,
    ours: Callable[[], Awaitable[object]],
    cache: Callable[[], object],
    plain: Callable[[], object],
) -> None:
    """Times the three in turn and notes the ratios."""
    taken: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS if benchmark.enabled else 1):
        marks = [time.perf_counter()]
        await ours()
        marks.append(time.perf_counter())
        for call in (cache, plain):
            call()
            marks.append(time.perf_counter())
        taken.append((marks[1] - marks[0], marks[2] - marks[1], marks[3] - marks[2]))
    if benchmark.enabled:
        best = [min(times) for times in zip(*taken, strict=True)]
        benchmark.extra_info.update(
            us=round(best[0] * 1e6, 1),
            diskcache_over_ours=round(best[1] / best[0], 2),
            spread=f"± {spread([theirs / own for own, theirs, _ in taken]):.0%}",
            ours_over_dict=round(best[0] / best[2]),
        )


def run(benchmark: Any, tmp_path: Path, job: Callable[[Peers], Awaitable[None]]) -> None:
    """Does a job with the three open; its own clocks count, so the whole is timed once."""

    async def work() -> None:
        peers = Peers(tmp_path, [f"row-{number:06d}" for number in range(ROWS if benchmark.enabled else 200)])
        await peers.open()
        try:
            await job(peers)
        finally:
            await peers.close()

    benchmark.group = "repository"
    benchmark.pedantic(lambda: asyncio.run(work()), rounds=1)


@pytest.mark.parametrize("count", [1, 100])
def test_read_rows(benchmark: BenchmarkFixture, tmp_path: Path, count: int) -> None:
    async def job(peers: Peers) -> None:
        wanted = peers.row_ids[:: len(peers.row_ids) // count][:count]
        await measure(
            benchmark,
            peers,
            lambda: peers.repository.reader.read_rows("bench", KEY, wanted),
            lambda: [peers.cache.get(row_id) for row_id in wanted],
            lambda: [peers.dict[row_id] for row_id in wanted],
        )
        found = (await peers.repository.reader.read_rows("bench", KEY, wanted)).partitions
        assert sorted(row.row_id for part in found for row in part.rows) == sorted(wanted)

    run(benchmark, tmp_path, job)


def test_read_partition(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """A whole one: diskcache, which has no partitions, reads its rows by their ids."""

    async def job(peers: Peers) -> None:
        places = row_partitions(peers.row_ids, PARTITIONS)
        members = [row_id for row_id, place in zip(peers.row_ids, places, strict=True) if place == 7]
        await measure(
            benchmark,
            peers,
            lambda: peers.repository.reader.read_partition("bench", KEY, 7, None),
            lambda: [peers.cache.get(row_id) for row_id in members],
            lambda: [peers.dict[row_id] for row_id in members],
        )
        (found,) = decode_fetch_reply(await peers.repository.reader.read_partition("bench", KEY, 7, None)).partitions
        assert sorted(row.row_id for row in found.rows) == sorted(members)

    run(benchmark, tmp_path, job)


def test_read_tiny_rows(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """A whole partition of rows with nothing but an id, encoded for a worker; diskcache reads its own by their ids."""

    async def job(peers: Peers) -> None:
        count = 5 * ROWS if benchmark.enabled else 200
        store = StoreRecord("tiny", StoreSettings(partition_count=1), 0, 0)
        await peers.repository.stores.create_store(store)
        row_ids = [f"{number:x}" for number in range(count)]
        for start in range(0, count, 1_000):
            rows = [RowWrite(0, row_id, "", None, 5) for row_id in row_ids[start : start + 1_000]]
            await peers.repository.writer.write([WriteRequest(store, KEY, rows)], 1)
        with peers.cache.transact():
            for row_id in row_ids:
                peers.cache.set(row_id, "")
        peers.dict.update(dict.fromkeys(row_ids, ""))
        await measure(
            benchmark,
            peers,
            lambda: peers.repository.reader.read_partition("tiny", KEY, 0, None),
            lambda: [peers.cache.get(row_id) for row_id in row_ids],
            lambda: [peers.dict[row_id] for row_id in row_ids],
        )
        (found,) = decode_fetch_reply(await peers.repository.reader.read_partition("tiny", KEY, 0, None)).partitions
        assert sorted(row.row_id for row in found.rows) == sorted(row_ids)

    run(benchmark, tmp_path, job)


@pytest.mark.parametrize("count", [1, 100])
def test_write(benchmark: BenchmarkFixture, tmp_path: Path, count: int) -> None:
    async def job(peers: Peers) -> None:
        some = peers.row_ids[:count]
        await measure(
            benchmark,
            peers,
            lambda: peers.repository.writer.write([writes(some)], 2),
            lambda: peers.put_cache(some),
            lambda: peers.dict.update(dict.fromkeys(some, VALUE)),
        )
        assert sum((await peers.repository.reader.heads("bench", KEY)).heads) >= len(peers.row_ids) + count

    run(benchmark, tmp_path, job)
