"""What an agent says of workers whose registrations it deletes: over a bucket of a real NATS server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import nats
import pytest
from nats.js.api import KeyValueConfig
from ringcast._bus.bus import connected
from ringcast._bus.kv import NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._coordination.key_records import CACHED
from ringcast.hosting import HostRecords
from ringcast_testkit import NatsServer, end_task, until
from ringcast_wire import NodeRecord, SlotClaim, encode_record, names

LOG = worker_log(logging.getLogger("ringcast"))
LEASE = "host.1"


class Host:
    """The records of one store, and which workers of the host live."""

    def __init__(self, name: str, js: Any, bus: Any) -> None:
        self.name, self.js = name, js
        self.living: set[tuple[str, str]] = set()
        self.records = HostRecords(
            cast("Any", SimpleNamespace(buckets=NatsBuckets(bus), agent_id="agent", log=LOG)),
            name,
            LEASE,
            lambda: self.living,
        )

    async def register(self, worker_id: str, *capabilities: str) -> None:
        self.living.add(("k", worker_id))
        node = NodeRecord(slot=0, lease=LEASE, incarnation=f"{worker_id}-i", capabilities=capabilities)
        claim = SlotClaim(worker_id=worker_id, lease=LEASE)
        for name, record in ((names.node_key("k", worker_id), node), (names.slot_key("k", 0), claim)):
            await self.js.publish(f"$KV.{names.nodes_bucket(self.name)}.{name}", encode_record(record))

        async def is_seen() -> bool:
            return ("k", worker_id) in (self.records.named() or ())

        await until(is_seen)

    def dies(self, worker_id: str) -> None:
        self.living.discard(("k", worker_id))
        self.records.look()

    async def marker(self, name: str) -> dict[str, str] | None:
        """The headers of the marker that stands under a name; ``None`` while there is an entry."""
        found = await self.js.get_last_msg(
            f"KV_{names.nodes_bucket(self.name)}", f"$KV.{names.nodes_bucket(self.name)}.{name}"
        )
        return dict(found.headers or {}) if not found.data else None

    async def until_marked(self, worker_id: str, *, may_call: bool) -> None:
        async def is_so() -> bool:
            found = await self.marker(names.node_key("k", worker_id))
            return found is not None and (names.HEADER_MAY_CALL in found) is may_call

        await until(is_so)


@pytest.fixture
async def host(shared_nats: NatsServer, store_of_owners: str) -> AsyncIterator[Host]:
    async with AsyncExitStack() as stack:
        client = await nats.connect(shared_nats.url)
        stack.push_async_callback(client.close)
        js, bucket = client.jetstream(), names.nodes_bucket(store_of_owners)
        await js.create_key_value(KeyValueConfig(bucket=bucket, direct=True))
        stack.push_async_callback(js.delete_key_value, bucket)
        config = WorkerConfig(store=store_of_owners, keys=("k",), servers=(shared_nats.url,), worker_id="agent")
        bus = await stack.enter_async_context(connected(NatsBus.prepared, config, LOG))
        found = Host(store_of_owners, js, bus)
        stack.push_async_callback(end_task, asyncio.create_task(found.records.run()))
        yield found


async def test_a_worker_whose_process_may_live_is_counted_until_its_end_is_seen(host: Host) -> None:
    await host.register("a")
    host.dies("a")
    await host.until_marked("a", may_call=True)
    claim = await host.marker(names.slot_key("k", 0))
    assert claim is None or names.HEADER_MAY_CALL not in claim
    host.records.ended("a", "another process")
    host.records.ended("b", "a-i")
    await host.register("b")
    host.dies("b")
    await host.until_marked("b", may_call=True)
    host.records.ended("a", "a-i")
    await host.until_marked("a", may_call=False)
    await host.until_marked("b", may_call=True)


async def test_a_worker_whose_end_was_seen_before_is_not_counted(host: Host) -> None:
    await host.register("a")
    host.records.ended("a", "a-i")
    host.dies("a")
    await host.until_marked("a", may_call=False)


async def test_a_worker_with_a_cache_is_counted_though_its_end_was_seen(host: Host) -> None:
    """Its next process hands over what the cache has before it is registered."""
    await host.register("a", CACHED)
    host.records.ended("a", "a-i")
    host.dies("a")
    await host.until_marked("a", may_call=True)


async def test_another_process_that_has_registered_meanwhile_is_left_alone(host: Host) -> None:
    await host.register("a")
    host.dies("a")
    await host.until_marked("a", may_call=True)
    await host.register("a")
    host.records.ended("a", "a-i")
    await host.register("b")
    host.dies("b")
    await host.until_marked("b", may_call=True)
    assert await host.marker(names.node_key("k", "a")) is None
