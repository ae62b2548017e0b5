"""Somebody holds the lock of one partition's head in PostgreSQL, and the others go on; real service, real lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import grpc
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S
from ringcast_wire import ErrorCode, names
from ringcast_wire.grpc import ConfigServiceStub, pb

_LOCK = """
SELECT 1 FROM partitions p JOIN config_keys k USING (key_id) WHERE k.store = 'g' AND p.partition = $1 FOR UPDATE OF p
"""


@asynccontextmanager
async def locked(database: str, *partitions: int) -> AsyncIterator[None]:
    """A transaction of somebody else, such as a paused instance."""
    db = await asyncpg.connect(database)
    try:
        async with db.transaction():
            for partition in partitions:
                await db.execute(_LOCK, partition)
            yield
    finally:
        await db.close()


@asynccontextmanager
async def another(service: Any) -> AsyncIterator[ConfigServiceStub]:
    """A client with a connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(service.app.grpc_address, options) as channel:
        yield ConfigServiceStub(channel)


def row_of(partition: int, count: int = 8) -> str:
    """A row id of a partition."""
    return next(f"r{n}" for n in range(1_000) if row_partition(f"r{n}", count) == partition)


async def test_other_rows_and_stores_are_written_meanwhile(
    start: Callable[..., Any], nats_url: str, postgres_url: str
) -> None:
    async with start(nats_url, postgres_url, lock_timeout_ms=60_000) as service:
        await service.create("g")
        await service.create("o")
        for partition in range(8):
            await service.put("g", row_of(partition))
        await service.put("o", "a")
        async with locked(postgres_url, 0):
            blocked = asyncio.create_task(service.put("g", row_of(0), "new"))
            async with asyncio.timeout(PATIENCE_S):
                while not service.app.core.writer.transactions:  # noqa: ASYNC110  # nothing tells of it
                    await asyncio.sleep(0.001)
                for _ in range(3):
                    await service.put("o", "a")
                # Of the same key too, over another connection: what one connection writes to a key is kept in order.
                async with another(service) as other:
                    for _ in range(3):
                        await other.Put(pb.PutRequest(store="g", key="k", row_id=row_of(1), value="v"))
                await service.put("g", row_of(1), key="other")
            assert not blocked.done()
        assert (await blocked).version == 2


async def test_the_lock_time_out_refuses_only_what_needs_the_lock(
    start: Callable[..., Any], nats_url: str, postgres_url: str
) -> None:
    async with start(nats_url, postgres_url, lock_timeout_ms=200) as service:
        await service.create("g")
        for partition in range(8):
            await service.put("g", row_of(partition))
        async with locked(postgres_url, 0):
            for _ in range(2):
                calls = [asyncio.create_task(service.put("g", row_of(place))) for place in range(8)]
                done = await asyncio.gather(*calls, return_exceptions=True)
                assert isinstance(done[0], grpc.aio.AioRpcError)
                trailers = dict(done[0].trailing_metadata() or ())
                assert trailers[names.GRPC_ERROR_KEY] == ErrorCode.UNAVAILABLE
                assert not any(isinstance(answer, BaseException) for answer in done[1:])
        assert (await service.put("g", row_of(0))).version == 2


async def test_more_locked_heads_than_there_are_transactions(
    start: Callable[..., Any], nats_url: str, postgres_url: str
) -> None:
    """Nothing of others is refused, neither the first time nor once these heads are known to be locked."""
    async with start(nats_url, postgres_url, lock_timeout_ms=100) as service:
        await service.create("g")
        await service.create("o")
        for partition in range(8):
            await service.put("g", row_of(partition))
        written = 0
        async with locked(postgres_url, *range(8)), another(service) as other:
            for _ in range(3):
                blocked = [asyncio.create_task(service.put("g", row_of(place))) for place in range(8)]
                while not all(task.done() for task in blocked):
                    await other.Put(pb.PutRequest(store="o", key="k", row_id="a", value="v"))
                    written += 1
                found = await asyncio.gather(*blocked, return_exceptions=True)
                for answer in found:
                    assert isinstance(answer, grpc.aio.AioRpcError)
                    assert dict(answer.trailing_metadata() or ())[names.GRPC_ERROR_KEY] == ErrorCode.UNAVAILABLE
        assert written > 3
        assert (await service.put("o", "a")).version == written + 1
        for place in range(8):
            assert (await service.put("g", row_of(place))).version == 2
