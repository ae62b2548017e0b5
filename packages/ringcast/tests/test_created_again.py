"""A store that is deleted and created again with other settings, under a worker that does not hear of the deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from ringcast import Mode, UnavailableError, Worker
from ringcast_testkit import PATIENCE_S, TcpProxy
from ringcast_wire import Strategy

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

ROWS = [f"row{number}" for number in range(32)]


@pytest.fixture
def proxy(store: Store) -> Iterator[TcpProxy]:
    """Between the worker and NATS: cut off, it can't come to hear of the deletion, however slow the machine is."""
    with TcpProxy(urlsplit(store.nats_url).port or 0) as started:
        yield started


async def created_again(store: Store, worker: Worker, proxy: TcpProxy, **settings: Any) -> None:
    """Creates the store again while the worker is cut off, and fills it again."""
    await worker.start()
    await worker.wait_ready(timeout_s=PATIENCE_S)
    proxy.cut()
    await store.client.delete_store(store.name, purge=True)
    await store.client.create_store(store.name, **settings)
    for row_id in ROWS:
        await store.put(row_id, "new")
    proxy.resume()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"partition_count": 16, "strategy": Strategy.RING}, "strategy ring in place of jump"),
        ({"partition_count": 8}, "partition_count 8 in place of 16"),
        ({"partition_count": 16, "mode": Mode.FULL}, "mode FULL in place of PARTITIONED"),
    ],
)
async def test_a_worker_of_the_store_before_ends_and_the_next_one_joins(
    store: Store, proxy: TcpProxy, settings: dict[str, Any], why: str
) -> None:
    """It would share the partitions out by what no other worker goes by, so that some had no owner."""
    await store.create(partition_count=16)
    for row_id in ROWS:
        await store.put(row_id, "old")
    worker = store.worker(heads_s=1.0, servers=f"nats://127.0.0.1:{proxy.port}")
    await created_again(store, worker, proxy, **settings)
    with pytest.raises(UnavailableError, match=f"was created again with other settings: {why}"):
        async with asyncio.timeout(PATIENCE_S):
            await worker.wait_closed()
    async with store.worker("next") as another:
        await another.wait_until("list", lambda: another.row_count("list") == len(ROWS), timeout_s=PATIENCE_S)


async def test_a_worker_of_a_key_that_was_never_written_notices_it_too(store: Store, proxy: TcpProxy) -> None:
    """Its key has no history that could differ."""
    await store.create(partition_count=16)
    worker = store.worker(heads_s=0.2, servers=f"nats://127.0.0.1:{proxy.port}")
    await worker.start()
    await worker.wait_ready(timeout_s=PATIENCE_S)
    proxy.cut()
    await store.client.delete_store(store.name, purge=True)
    await store.client.create_store(store.name, partition_count=8)
    proxy.resume()
    with pytest.raises(
        UnavailableError, match="was created again with other settings: partition_count 8 in place of 16"
    ):
        async with asyncio.timeout(PATIENCE_S):
            await worker.wait_closed()


async def test_with_the_same_settings_the_worker_goes_on(store: Store, proxy: TcpProxy) -> None:
    await store.create(partition_count=16)
    for row_id in ROWS:
        await store.put(row_id, "old")
    worker = store.worker(heads_s=1.0, max_delete_share=1.0, servers=f"nats://127.0.0.1:{proxy.port}")
    try:
        await created_again(store, worker, proxy, partition_count=16)
        new = ["new"] * len(ROWS)
        await worker.wait_until("list", lambda: [row.value for row in worker.rows("list")] == new, timeout_s=PATIENCE_S)
    finally:
        await worker.stop()
