"""One NATS server and one config service for each file of tests; each test has a store of its own, of 50 at most."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import nats
import pytest
from nats.js.api import DiscardPolicy, StreamConfig
from ringcast import Mode, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import limits, names


@dataclass
class Store:
    """A store of a test's own, and workers for it."""

    name: str
    nats_url: str
    client: ConfigServiceClient

    async def create(
        self, *, partition_count: int = 8, mode: Mode = Mode.PARTITIONED, inline: int | None = None
    ) -> None:
        await self.client.create_store(self.name, partition_count=partition_count, mode=mode, inline_max_bytes=inline)

    async def put(self, row_id: str, value: str, key: str = "list", **metadata: str) -> tuple[int, int]:
        """Writes a row; returns its partition and version."""
        result = await self.client.put(self.name, key, row_id, value, metadata)
        return result.partition, result.version

    def worker(self, name: str = "w", keys: tuple[str, ...] = ("list",), **settings: Any) -> Worker:
        """A worker that is not started yet. Leases are shared by all stores, so its id has the store's name."""
        settings.setdefault("servers", self.nats_url)
        return Worker(store=self.name, keys=keys, worker_id=f"{self.name}-{name}", **settings)


@pytest.fixture
async def new_store(
    service_nats: NatsServer, shared_service: ConfigServiceProcess
) -> AsyncIterator[Callable[[str], Store]]:
    """Makes handles of stores by name."""
    async with ConfigServiceClient(shared_service.address) as client:
        yield lambda name: Store(name, service_nats.url, client)


@pytest.fixture
def store(new_store: Callable[[str], Store], store_name: str) -> Store:
    """A store that no other test uses, not created yet."""
    return new_store(store_name)


@asynccontextmanager
async def bucket_of_owners(nats_url: str, store: str) -> AsyncIterator[None]:
    """The bucket of owners of a store, as ``streams.owners`` of the config service has it."""
    client = await nats.connect(nats_url)
    bucket = names.owners_bucket(store)
    keys = (
        names.term_key("*"),
        names.wishes_key("*"),
        names.table_key("*"),
        names.state_key("*", "*"),
        names.session_key("*"),
    )
    config = StreamConfig(
        name=f"KV_{bucket}",
        subjects=[f"$KV.{bucket}.{key}" for key in keys],
        max_msgs_per_subject=1,
        max_msg_size=limits.MAX_TABLE_BYTES + limits.CHUNK_HEADROOM_BYTES,
        max_age=86_400,
        discard=DiscardPolicy.NEW,
        allow_direct=True,
        deny_delete=True,
        deny_purge=True,
    )
    try:
        await client.jetstream().add_stream(config)
        yield
    finally:
        await client.jetstream().delete_stream(f"KV_{bucket}")
        await client.close()


@pytest.fixture
async def store_of_owners(shared_nats: NatsServer, store_name: str) -> AsyncIterator[str]:
    """A store that has the bucket of owners alone."""
    async with bucket_of_owners(shared_nats.url, store_name):
        yield store_name


@pytest.fixture
async def exclusive(store: Store) -> AsyncIterator[Callable[..., Awaitable[Store]]]:
    """Makes the test's store one with exclusive ownership, with these times in ms."""
    async with AsyncExitStack() as stack:

        async def make(*, partition_count: int = 8, lease_ttl_ms: int = 2_000, call_bound_ms: int = 200) -> Store:
            await store.create(partition_count=partition_count)
            await stack.enter_async_context(bucket_of_owners(store.nats_url, store.name))
            client = await nats.connect(store.nats_url)
            meta = await client.jetstream().key_value(names.meta_bucket(store.name))
            settings = {"lease_ttl_ms": lease_ttl_ms, "call_bound_ms": call_bound_ms, "strategy": "sticky"}
            for field, value in settings.items():
                await meta.put(field, json.dumps(value).encode())
            await client.close()
            return store

        yield make
