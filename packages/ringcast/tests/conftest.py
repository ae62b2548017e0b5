"""One NATS server and one config service for each file of tests; each test has a store of its own, of 50 at most."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import nats
import pytest
from nats.js.api import DiscardPolicy, StreamConfig
from nats.js.errors import NotFoundError
from ringcast import Mode, Worker
from ringcast._bus.bus import Bus, connected
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
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
        self, *, partition_count: int = 8, mode: Mode = Mode.PARTITIONED, inline: int | None = None, **settings: Any
    ) -> None:
        settings |= {"partition_count": partition_count, "mode": mode, "inline_max_bytes": inline}
        await self.client.create_store(self.name, **settings)

    async def put(self, row_id: str, value: str, key: str = "list", **metadata: str) -> tuple[int, int]:
        """Writes a row; returns its partition and version."""
        result = await self.client.put(self.name, key, row_id, value, metadata)
        return result.partition, result.version

    async def delete(self, row_id: str, key: str = "list") -> None:
        """Deletes a row."""
        await self.client.delete(self.name, key, row_id)

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


@pytest.fixture
async def connection(service_nats: NatsServer, store: Store) -> AsyncIterator[Bus]:
    """To a server that has the bucket of leases."""
    await store.create()
    config = WorkerConfig(store="s", keys=("k",), servers=(service_nats.url,), worker_id=store.name)
    async with connected(NatsBus.prepared, config, worker_log(logging.getLogger("ringcast"))) as opened:
        yield opened


@asynccontextmanager
async def bucket_of_owners(nats_url: str, store: str) -> AsyncIterator[None]:
    """The buckets of owners and wishes of a store, as ``streams`` of the config service has them."""
    client = await nats.connect(nats_url)
    bucket = names.owners_bucket(store)
    keys = (
        names.term_key("*"),
        names.table_key("*"),
        names.state_key("*", "*"),
        names.session_key("*"),
        names.load_key("*"),
        names.gone_key("*", "*"),
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
    other = names.wishes_bucket(store)
    record_bytes = limits.MAX_WISHES_BYTES + limits.CHUNK_HEADROOM_BYTES
    wishes = config.evolve(name=f"KV_{other}", subjects=[f"$KV.{other}.*.wishes"], max_msg_size=record_bytes, max_age=0)
    try:
        for each in (config, wishes):
            await client.jetstream().add_stream(each)
        yield
    finally:
        for made in (bucket, other):
            with suppress(NotFoundError):
                await client.jetstream().delete_stream(f"KV_{made}")
        await client.close()


@pytest.fixture
async def store_of_owners(shared_nats: NatsServer, store_name: str) -> AsyncIterator[str]:
    """A store that has the buckets of owners and wishes alone."""
    async with bucket_of_owners(shared_nats.url, store_name):
        yield store_name
