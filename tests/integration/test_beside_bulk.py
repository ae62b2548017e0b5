"""What others get done while some write as much as they can: two instances on one PostgreSQL, and change streams."""

from __future__ import annotations

import asyncio
import itertools
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess

ROWS = 5_000
SINGLES = 20
STREAMS, IN_FLIGHT = 3, 1_000
MANY = 500
"""One connection alone may have some more than twice as many writes waiting."""


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

async def main(address, streams, in_flight):
    written = 0

    async def lane(changes, row_id):
        nonlocal written
        while True:
            await changes.put(row_id, str(written))
            written += 1
            if written == in_flight:
                print("going", flush=True)

    async def stream(client, key):
        async with client.changes("streams", key) as changes, asyncio.TaskGroup() as lanes:
            for number in range(in_flight):
                lanes.create_task(lane(changes, f"r{number}"))

    async with ConfigServiceClient(address, timeout_s=60) as client, asyncio.TaskGroup() as tasks:
        for number in range(streams):
            tasks.create_task(stream(client, f"k{number}"))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""
"""A client in a process of its own, so on a connection of its own: it has as many changes on their way as it may, all
the time."""


async def test_streams_that_are_always_full_leave_room_for_single_writes(nats_url: str, tmp_path: Path) -> None:
    """The share of their connection in the queue is full, and no put of another client is refused."""
    with ConfigServiceProcess(tmp_path / "a", nats_url=nats_url) as service:
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("streams", partition_count=64)
            words = [sys.executable, "-c", STREAMING, service.address, str(STREAMS), str(IN_FLIGHT)]
            streaming = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
            try:
                assert streaming.stdout is not None
                async with asyncio.timeout(PATIENCE_S):
                    assert await streaming.stdout.readline() == b"going\n"
                most = 0.0
                async with asyncio.timeout(PATIENCE_S):
                    for count in itertools.count():
                        await client.put("streams", "mine", f"r{count}", "v")
                        most = max(most, await asyncio.to_thread(metric, service, "config_service_writes_waiting"))
                        if count >= SINGLES and most > MANY:
                            break
                assert streaming.returncode is None
            finally:
                streaming.kill()
                await streaming.wait()
