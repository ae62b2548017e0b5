"""A bulk update through one instance while another writes single changes of another store, on one PostgreSQL.

The peer of each is the same load without the other: what share of its speed the update keeps, and how many times as
long a single change takes. Writers are processes of their own, and all share the machine's cores with the servers.
Nothing may be refused on either side, and where it is measured the update has to keep :data:`LEAST_SHARE` of its speed,
and a change may take :data:`MOST_OVER_ALONE` times as long. ``RINGCAST_BENCH_ROWS`` says how many rows are updated.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import ConfigServiceProcess, NatsServer, PostgresServer

ROWS = int(os.environ.get("RINGCAST_BENCH_ROWS", "100000"))
PARTITIONS = 256
PER_S = 500
ALONE_S = 10.0
LEAST_SHARE = 0.6
MOST_OVER_ALONE = 2.0
_stop: Event


def _use(stop: Event) -> None:
    """What a writer's process begins with."""
    global _stop
    _stop = stop


def update(address: str, count: int, value: str) -> float:
    """Writes every row again; seconds. A batch that is refused raises."""

    async def work() -> None:
        async with ConfigServiceClient(address, timeout_s=60) as client:
            rows = (RowWrite(f"row-{number:07d}", f"{value}-{number}") for number in range(count))
            written = sum([result.written async for result in client.bulk_write("bulk", "list", rows)])
            assert written == count

    began = time.perf_counter()
    asyncio.run(work())
    return time.perf_counter() - began


def single_changes(address: str, least: int) -> list[float]:
    """Seconds of each change, due at a fixed rate until the end is said; at least so many."""

    async def work() -> list[float]:
        taken: list[float] = []
        async with ConfigServiceClient(address, timeout_s=60) as client, client.changes("single", "flags") as writer:

            async def change(number: int, due: float) -> None:
                await writer.put(f"flag{number % 500}", f"v{number}")
                taken.append(time.perf_counter() - due)

            began = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                number = 0
                while number < least or not _stop.is_set():
                    due = began + number / PER_S
                    await asyncio.sleep(due - time.perf_counter())
                    tasks.create_task(change(number, due))
                    number += 1
        return taken

    return asyncio.run(work())


async def create_stores(address: str) -> None:
    async with ConfigServiceClient(address) as client:
        for name in ("bulk", "single"):
            await client.create_store(name, partition_count=PARTITIONS)


def test_an_update_beside_single_changes(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    count = ROWS if benchmark.enabled else 2_000
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    with (
        PostgresServer() as postgres,
        NatsServer(tmp_path / "nats") as nats,
        ProcessPoolExecutor(2, mp_context=spawn, initializer=_use, initargs=(stop,)) as writers,
    ):
        database = postgres.create_database()
        with (
            ConfigServiceProcess(tmp_path / "a", nats_url=nats.url, database=database) as a,
            ConfigServiceProcess(tmp_path / "b", nats_url=nats.url, database=database) as b,
        ):
            asyncio.run(create_stores(a.address))
            writers.submit(update, a.address, count, "first").result()
            update_alone_s = writers.submit(update, a.address, count, "second").result()
            stop.set()
            least = int(PER_S * ALONE_S) if benchmark.enabled else 50
            alone = writers.submit(single_changes, b.address, least).result()
            stop.clear()
            beside: Future[list[float]] = writers.submit(single_changes, b.address, 50)
            benchmark.group = "two instances"
            began = time.perf_counter()
            benchmark.pedantic(lambda: writers.submit(update, a.address, count, "third").result(), rounds=1)
            update_beside_s = time.perf_counter() - began
            stop.set()
            together = beside.result()
    assert len(together) >= 50
    if benchmark.enabled:
        share = update_alone_s / update_beside_s
        over_alone = statistics.median(together) / statistics.median(alone)
        benchmark.extra_info.update(
            rows=count,
            rows_per_s=round(count / update_beside_s),
            share_of_its_speed_alone=round(share, 2),
            p50_ms=round(statistics.median(together) * 1e3, 1),
            p50_over_alone=round(over_alone, 1),
        )
        assert share >= LEAST_SHARE
        assert over_alone <= MOST_OVER_ALONE
