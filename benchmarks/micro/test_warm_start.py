"""A worker that starts from its cache with NATS down: until the first of 100,000 rows is in the handler, and the last.

The file is what a worker of one list with 256 partitions leaves behind. The goal for the first row is 1 s.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import ringcast
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast import Row, StoreSettings
from ringcast._cache.directory import CachePlace
from ringcast._cache.file import Identity, prepare, write, write_identity
from ringcast._protocol.partition import Partition
from ringcast._protocol.snapshots import PartitionSave
from ringcast_core import row_partitions
from ringcast_sqlite import Database

ROWS = 100_000
PARTITIONS = 256
ROUNDS = 5
VALUE = "x" * 60


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the cache of worker ``w`` of store ``bench``."""
    directory = tmp_path_factory.mktemp("cache")
    asyncio.run(fill(CachePlace(directory, "bench", "w").path))
    return directory


async def fill(path: Path) -> None:
    row_ids = [f"row-{number:07d}" for number in range(ROWS)]
    rows: dict[int, list[Row]] = defaultdict(list)
    for row_id, partition in zip(row_ids, row_partitions(row_ids, PARTITIONS), strict=True):
        rows[partition].append(Row(row_id, VALUE, len(rows[partition]) + 1, False, {"kind": "bench"}))
    saves = [
        PartitionSave(number, Partition(number, float), True, len(held), len(held), held)
        for number, held in rows.items()
    ]
    async with Database(path) as database:
        await database.write(prepare)
        await database.write(write_identity(Identity("bench", "w", StoreSettings(partition_count=PARTITIONS))))
        await database.write(write({"list": saves}, {"list": int(time.time() * 1000)}, ["list"]))


@pytest.fixture
def no_nats() -> Iterator[str]:
    """A port that is taken, but where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"nats://127.0.0.1:{taken.getsockname()[1]}"


async def start(cache_dir: Path, servers: str, wait_for: int) -> None:
    """Starts a worker, waits until so many rows are in its handler, and stops it."""
    heard = 0
    enough = asyncio.Event()

    def handler(change: ringcast.Change) -> None:
        nonlocal heard
        heard += 1
        if heard == wait_for:
            enough.set()

    worker = ringcast.Worker(
        store="bench", keys=["list"], worker_id="w", servers=servers, cache_dir=cache_dir, handler=handler
    )
    async with worker:
        assert worker.row_count("list") == ROWS
        await enough.wait()


@pytest.mark.parametrize("rows", [1, ROWS], ids=["first_row", "all_rows"])
def test_warm_start(benchmark: BenchmarkFixture, cache_dir: Path, no_nats: str, rows: int) -> None:
    benchmark.group = "warm start from the cache"
    benchmark.pedantic(lambda: asyncio.run(start(cache_dir, no_nats, rows)), rounds=ROUNDS, warmup_rounds=1)
