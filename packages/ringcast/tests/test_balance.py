"""Balance by load with real workers over NATS: what they report, what moves because of it, and what is named as hot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from ringcast import Change, Worker
from ringcast.topology import Exclusive, read_topology
from ringcast.wishes import read_wishes, set_balance
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S
from ringcast_wire import InvalidInputError, Strategy, UnknownKeyError

PARTITIONS, WORKERS, HOT = 16, 4, 5
TIMES = {"strategy": Strategy.STICKY, "lease_ttl_ms": 1_000, "call_bound_ms": 200}


async def _handle(change: Change) -> None:
    """Takes a change."""


@asynccontextmanager
async def _written(store: Any) -> AsyncIterator[None]:
    """Changes rows all the time: half of the changes are of one partition, the others have the same."""
    row_of: dict[int, str] = {}
    number = 0
    while len(row_of) < PARTITIONS:
        row_of.setdefault(row_partition(str(number), PARTITIONS), str(number))
        number += 1
    others = [row_of[each] for each in range(PARTITIONS) if each != HOT]

    async def write() -> None:
        count = 0
        while True:
            count += 1
            for row_id in others:
                await asyncio.gather(store.put(row_id, str(count)), store.put(row_of[HOT], f"{count}.{row_id}"))
                await asyncio.sleep(0.005)

    task = asyncio.create_task(write())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _owns(worker: Worker, count: int) -> None:
    await worker.wait_until("list", lambda: len(worker.owned("list")) == count, timeout_s=PATIENCE_S)


async def _exclusive(store: Any) -> Exclusive:
    found = (await read_topology(store.nats_url, store.name, "list")).exclusive
    assert found is not None
    return found


async def test_loads_are_evened_out_and_a_hot_partition_stands_alone_and_is_named(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await store.create(partition_count=PARTITIONS, **TIMES)
    await store.put("row", "1")
    async with AsyncExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in "abcd":
            workers[f"{store.name}-{name}"] = await stack.enter_async_context(store.worker(name, handler=_handle))
        for worker in workers.values():
            await _owns(worker, PARTITIONS // WORKERS)
        tokens = [each.token for each in (await _exclusive(store)).partitions]
        assert await set_balance(store.nats_url, store.name, "load") == ["list"]
        (wish,) = await read_wishes(store.nats_url, store.name)
        assert wish.balance == "load"
        await stack.enter_async_context(_written(store))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await _exclusive(store)
                owners = [each.owner for each in found.partitions]
                if (
                    HOT in found.hot
                    and owners.count(owners[HOT]) == 1
                    and not any(each.next_owner for each in found.partitions)
                ):
                    break
                await asyncio.sleep(0.2)
        assert found.balance == "load"
        assert set(found.hot) == {HOT}
        assert set(found.loads) == set(workers)
        others = [owners.count(name) for name in workers if name != owners[HOT]]
        assert sum(others) == PARTITIONS - 1
        assert max(others) / (sum(others) / len(others)) <= 1.25, "each has the same load"
        assert all(each.token >= before for each, before in zip(found.partitions, tokens, strict=True))
        named = [record for record in caplog.records if getattr(record, "event", "") == "partition.hot"]
        assert {getattr(record, "partition", None) for record in named} == {HOT}


async def test_a_balance_that_there_is_not_or_of_nothing_is_refused(store: Any) -> None:
    await store.create(partition_count=PARTITIONS, **TIMES)
    url = store.nats_url
    with pytest.raises(InvalidInputError, match="balance 'rows' is unknown: count or load is allowed"):
        await set_balance(url, store.name, "rows")
    with pytest.raises(InvalidInputError, match="it has no keys to balance"):
        await set_balance(url, store.name, "load")
    with pytest.raises(UnknownKeyError, match="no config key 'other'"):
        await set_balance(url, store.name, "load", "other")
