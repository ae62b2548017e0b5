"""What changes are written to and heard from: Ringcast, and the peers that can do the same job.

Each is told of a change as row id and value, and each calls ``heard`` with a value once its own callback has it. A
process imports the client that it uses and no other: a case starts many, and an import is most of a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import ringcast
    from ringcast_client import ChangeWriter, ConfigServiceClient, RowWrite


KEY = "list"
BUCKET = "rows"
PREFIX = "row/"
Heard = Callable[[str], None]


class Writer(Protocol):
    """Writes one change and returns when the system has promised to keep it."""

    async def put(self, row_id: str, value: str) -> None: ...


class RingcastCalls:
    """One call of the config service a change."""

    def __init__(self, client: ConfigServiceClient, store: str) -> None:
        self._client = client
        self._store = store

    async def put(self, row_id: str, value: str) -> None:
        await self._client.put(self._store, KEY, row_id, value)


class RingcastStream:
    """One stream of the config service for all changes."""

    def __init__(self, client: ConfigServiceClient, changes: ChangeWriter, store: str) -> None:
        self._client = client
        self._changes = changes
        self._store = store

    async def put(self, row_id: str, value: str) -> None:
        await self._changes.put(row_id, value)

    async def write_stream(self, rows: AsyncIterator[RowWrite], batch_rows: int) -> int:
        """Writes rows as they come, in batches; returns how many were committed."""
        written = 0
        async for result in self._client.bulk_write(self._store, KEY, rows, batch_rows=batch_rows, max_in_flight=32):
            written += result.written
        return written


class NatsKvWriter:
    """A put into a bucket."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    async def put(self, row_id: str, value: str) -> None:
        await self._bucket.put(row_id, value.encode())


class EtcdWriter:
    """A put below a prefix."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def put(self, row_id: str, value: str) -> None:
        await self._client.put((PREFIX + row_id).encode(), value.encode())


class RedisWriter:
    """A SET, of which the server tells those who subscribed to the key."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def put(self, row_id: str, value: str) -> None:
        await self._client.set(PREFIX + row_id, value)


@asynccontextmanager
async def writing(target: Mapping[str, Any]) -> AsyncIterator[Writer]:
    """A writer to the target: ``kind``, and where it is."""
    kind = target["kind"]
    if kind == "ringcast":
        from ringcast_client import ConfigServiceClient

        store = target["store"]
        async with ConfigServiceClient(target["service"]) as client:
            if target.get("calls"):
                yield RingcastCalls(client, store)
            else:
                async with client.changes(store, KEY) as changes:
                    yield RingcastStream(client, changes, store)
    elif kind == "nats-kv":
        import nats

        connection = await nats.connect(target["servers"])
        try:
            yield NatsKvWriter(await connection.jetstream().key_value(BUCKET))
        finally:
            await connection.close()
    elif kind == "etcd":
        async with _etcd(target["address"]) as etcd_client:
            yield EtcdWriter(etcd_client)
    elif kind == "redis":
        async with _redis(target["address"]) as redis_client:
            yield RedisWriter(redis_client)
    else:
        raise ValueError(f"there is no target {kind!r}")


@asynccontextmanager
async def hearing(target: Mapping[str, Any], heard: Heard) -> AsyncIterator[None]:
    """Calls ``heard`` for every change from entering to leaving, and for what is there before."""
    subscribe = {"ringcast": _hear_ringcast, "nats-kv": _hear_nats_kv, "etcd": _hear_etcd, "redis": _hear_redis}
    async with subscribe[target["kind"]](target, heard):
        yield


@asynccontextmanager
async def _hear_ringcast(target: Mapping[str, Any], heard: Heard) -> AsyncIterator[None]:
    import ringcast

    def handler(change: ringcast.Change) -> None:
        heard(change.value or "")

    settings = target.get("worker", {})
    worker = ringcast.Worker(servers=target["servers"], store=target["store"], keys=[KEY], handler=handler, **settings)
    async with worker:
        await worker.wait_ready()
        yield


@asynccontextmanager
async def _hear_nats_kv(target: Mapping[str, Any], heard: Heard) -> AsyncIterator[None]:
    import nats

    connection = await nats.connect(target["servers"])
    bucket = await connection.jetstream().key_value(BUCKET)
    watcher: Any = await bucket.watchall()
    while (entry := await watcher.updates()) is not None:  # what is there already
        heard(entry.value.decode())

    async def listen() -> None:
        async for entry in watcher:
            heard(entry.value.decode())

    try:
        async with _in_background(listen()):
            yield
    finally:
        await connection.close()


@asynccontextmanager
async def _hear_etcd(target: Mapping[str, Any], heard: Heard) -> AsyncIterator[None]:
    async with _etcd(target["address"]) as client:
        events = await client.watch_prefix(PREFIX.encode())

        async def listen() -> None:
            async for event in events:
                heard(event.kv.value.decode())

        async with _in_background(listen()):
            yield
        await events.cancel()


@asynccontextmanager
async def _hear_redis(target: Mapping[str, Any], heard: Heard) -> AsyncIterator[None]:
    """A notification only names the key: the value is read then, as an application would have to."""
    async with (
        _redis(target["address"]) as client,
        client.pubsub(ignore_subscribe_messages=True) as channel,
    ):
        prefix = "__keyspace@0__:"
        await channel.psubscribe(f"{prefix}{PREFIX}*")

        async def listen() -> None:
            async for message in channel.listen():
                value = await client.get(message["channel"].removeprefix(prefix))
                if value is not None:
                    heard(str(value))

        async with _in_background(listen()):
            yield


def _etcd(address: str) -> Any:
    import aetcd

    host, _, port = address.rpartition(":")
    return aetcd.Client(host=host, port=int(port))


def _redis(address: str) -> Any:
    import redis.asyncio

    host, _, port = address.rpartition(":")
    return redis.asyncio.Redis(host=host, port=int(port), decode_responses=True)


@asynccontextmanager
async def _in_background(coroutine: Any) -> AsyncIterator[None]:
    """Runs it until the block is left. An error of its own ends the process's work at once: it interrupts the block."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(coroutine)
        yield
        task.cancel()
