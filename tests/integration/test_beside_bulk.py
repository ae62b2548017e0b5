"""What others get done while some write as much as they can: two instances on one PostgreSQL, and change streams."""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, until

ROWS = 5_000
SINGLES = 20
STREAMS, IN_FLIGHT = 5, 1_000
"""More than may wait in all: 4,096."""
SHARE = 600
"""One connection alone may have 1,194 writes waiting, but for those that are in transactions."""


@pytest.fixture
def instances(nats_url: str, postgres_url: str, tmp_path: Path) -> Iterator[list[ConfigServiceProcess]]:
    """Two, on one database."""
    with (
        ConfigServiceProcess(tmp_path / "a", nats_url=nats_url, database=postgres_url) as a,
        ConfigServiceProcess(tmp_path / "b", nats_url=nats_url, database=postgres_url) as b,
    ):
        yield [a, b]


def metric(service: ConfigServiceProcess, name: str) -> float:
    """The sum of all series of a metric."""
    with urllib.request.urlopen(service.metrics_url) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return sum(sample.value for family in families for sample in family.samples if sample.name == name)


def transaction_retries(service: ConfigServiceProcess) -> float:
    """How often an instance has taken a transaction again."""
    return metric(service, "config_service_transaction_retries_total")


async def write(client: ConfigServiceClient, store: str, value: str) -> int:
    """Writes every row of a list in bulk; a batch that is refused raises."""
    rows = (RowWrite(f"row-{number:05d}", f"{value}-{number}") for number in range(ROWS))
    return sum([result.written async for result in client.bulk_write(store, "list", rows)])


async def test_both_instances_update_in_bulk_beside_single_changes(instances: list[ConfigServiceProcess]) -> None:
    """Each another store, and a third client a third store through the first instance: nothing is refused, and no
    transaction is taken again."""
    a, b = instances
    async with (
        ConfigServiceClient(a.address) as one,
        ConfigServiceClient(b.address) as another,
        ConfigServiceClient(a.address) as third,
    ):
        for name in ("bulk-a", "bulk-b", "single"):
            await one.create_store(name, partition_count=64)
        assert [await write(one, "bulk-a", "first"), await write(another, "bulk-b", "first")] == [ROWS, ROWS]
        await third.put("single", "flags", "r", "0")
        before = [transaction_retries(each) for each in instances]
        done = asyncio.Event()

        async def singles() -> int:
            count = 0
            while count < SINGLES or not done.is_set():
                count += 1
                await third.put("single", "flags", f"r{count % 50}", str(count))
            return count

        async with asyncio.TaskGroup() as tasks:
            single = tasks.create_task(singles())
            bulk = [
                tasks.create_task(write(one, "bulk-a", "second")),
                tasks.create_task(write(another, "bulk-b", "second")),
            ]
            assert [await each for each in bulk] == [ROWS, ROWS]
            done.set()
        assert single.result() >= SINGLES
        assert [transaction_retries(each) for each in instances] == before


STREAMING = """
import asyncio, sys
from ringcast_client import ConfigServiceClient
from ringcast_wire import UnavailableError

async def main(address, streams, in_flight):
    written = 0

    async def lane(changes, row_id):
        nonlocal written
        while True:
            try:
                await changes.put(row_id, str(written))
            except UnavailableError:  # on a busy machine the table is locked for longer than the service waits
                continue
            written += 1
            if written == in_flight:
                print("going", flush=True)

    async def stream(client, key):
        async with client.changes("streams", key) as changes, asyncio.TaskGroup() as lanes:
            for number in range(in_flight):
                lanes.create_task(lane(changes, f"r{number}"))

    async with ConfigServiceClient(address, timeout_s=300) as client, asyncio.TaskGroup() as tasks:
        for number in range(streams):
            tasks.create_task(stream(client, f"k{number}"))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""
"""A client in a process of its own, so on a connection of its own: it has as many changes on their way as it may, all
the time."""


@asynccontextmanager
async def streaming(address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Such a client, once it has written as many as one of its streams has on their way."""
    words = [sys.executable, "-c", STREAMING, address, str(STREAMS), str(IN_FLIGHT)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline() == b"going\n"
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_streams_that_fill_their_share_leave_room_for_single_writes(
    nats_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """They have more changes on their way than the queue takes in all. Nothing is committed until the share of their
    connection is full; and no put of another client is refused, then or later."""
    patient = ("--lock-timeout", "5m")
    with ConfigServiceProcess(tmp_path / "a", nats_url=nats_url, database=postgres_url, options=patient) as service:
        seen = [0.0]

        async def is_full() -> bool:
            """As many wait as before, and many."""
            seen.append(await asyncio.to_thread(metric, service, "config_service_writes_waiting"))
            return seen[-1] == seen[-2] > SHARE

        async with ConfigServiceClient(service.address, timeout_s=PATIENCE_S) as client:
            await client.create_store("streams", partition_count=64)
            await client.put("streams", "mine", "r", "v")
            async with streaming(service.address) as streams, asyncio.TaskGroup() as puts:
                stranger = await asyncpg.connect(postgres_url)
                try:
                    async with stranger.transaction():
                        await stranger.execute("LOCK TABLE partitions IN EXCLUSIVE MODE")
                        await until(is_full)
                        assert seen[-1] < 2 * SHARE, "the streams have the room of others"
                        made = [puts.create_task(client.put("streams", "mine", f"r{n}", "v")) for n in range(SINGLES)]
                        # An answer of the same process, which has had the time to refuse them.
                        await asyncio.to_thread(metric, service, "config_service_writes_waiting")
                finally:
                    await stranger.close()
                await asyncio.gather(*made)
                for number in range(3):
                    await client.put("streams", "mine", f"r{number}", "w")
                assert streams.returncode is None
