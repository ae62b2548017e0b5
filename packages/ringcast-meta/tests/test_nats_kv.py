"""What only NATS KV does: buckets that others made, emptied or made anew, and expiry that nobody tells of."""

from __future__ import annotations

from typing import Any

import nats
import pytest
from nats.js.api import KeyValueConfig, StreamConfig
from ringcast_meta import LocalCache
from ringcast_meta.nats_kv import NatsKvStore
from ringcast_testkit import PATIENCE_S, NatsServer, until
from ringcast_wire import InvalidInputError, UnavailableError


async def test_a_bucket_that_others_write(nats_server: NatsServer) -> None:
    connection = await nats.connect(nats_server.url)
    config = StreamConfig(name="KV_theirs", subjects=["$KV.theirs.>"], max_msgs_per_subject=1, allow_msg_ttl=False)
    await connection.jetstream().add_stream(config)
    bucket = await connection.jetstream().key_value("theirs")
    store = NatsKvStore(connection, "theirs")
    with pytest.raises(InvalidInputError, match="bucket 'theirs' exists without allow_msg_ttl"):
        await store.create_bucket()
    async with LocalCache(store) as cache:
        revision = await bucket.put("a", b"1")
        await cache.wait_for(revision, PATIENCE_S)
        assert cache.get("a") == await store.get("a") == ("a", b"1", revision, False)
        await bucket.delete("a")
        await cache.wait_until(lambda: cache.get("a") is None, PATIENCE_S)
        assert await store.get("a") is None
        # Also without a time to live for what says that it was deleted.
        await store.delete("a", last=await store.create("a", b"2"))
        async with store.lease(2) as lease:
            with pytest.raises(InvalidInputError, match="made without allow_msg_ttl, so that it has no leases"):
                await store.create("b", b"", lease=lease)
    await connection.close()


async def test_a_bucket_that_is_emptied_or_made_anew(nats_server: NatsServer) -> None:
    connection = await nats.connect(nats_server.url)
    management = connection.jetstream()
    await management.create_key_value(KeyValueConfig(bucket="theirs"))
    store = NatsKvStore(connection, "theirs")
    async with LocalCache(store) as cache:
        for key in ("a", "b", "c"):
            revision = await store.create(key, b"")
        await cache.wait_for(revision, PATIENCE_S)
        # Nobody tells a consumer of a purge.
        await management.purge_stream("KV_theirs")
        await cache.wait_until(lambda: cache.entries() == {}, PATIENCE_S)

        await store.create("d", b"")
        await management.delete_stream("KV_theirs")
        await management.create_key_value(KeyValueConfig(bucket="theirs"))
        revision = await store.create("e", b"")
        await cache.wait_until(lambda: set(cache.entries()) == {"e"}, PATIENCE_S)
        assert cache.revision == revision < 4
    await connection.close()


async def test_a_bucket_that_is_not_there(nats_server: NatsServer) -> None:
    connection = await nats.connect(nats_server.url)
    store = NatsKvStore(connection, "none")
    for call in (store.get("a"), store.create("a", b"")):
        with pytest.raises(UnavailableError, match="bucket 'none'"):
            await call
    async with LocalCache(store) as cache:
        with pytest.raises(UnavailableError, match="has had no snapshot after"):
            await cache.wait_complete(0.3)
        await store.create_bucket()
        await cache.wait_complete(PATIENCE_S)
    await connection.close()


async def test_a_server_that_tells_nobody_of_an_expiry(nats_bench: Any) -> None:
    """The consumer of a cache hears nothing of it: the cache finds out by reading."""
    holder, store = await nats_bench.store(), await nats_bench.store(near=True)
    async with LocalCache(store) as cache, holder.lease(2) as lease:
        for key in ("a", "b"):
            await holder.create(key, b"", lease=lease)
        await cache.wait_until(lambda: len(cache.entries()) == 2, PATIENCE_S)
        # Another entry is older than both: the first message of the stream does not tell that they are gone.
        nats_bench.silence()
        await cache.wait_until(lambda: cache.entries() == {}, PATIENCE_S)
        assert lease.remaining_s == 0
        assert cache.fresh
        nats_bench.mend()


async def test_deletions_do_not_pile_up(nats_bench: Any) -> None:
    store = await nats_bench.store()
    connection = await nats.connect(nats_bench.server.url)
    await store.delete("a", last=await store.create("a", b""))
    message = await connection.jetstream().get_last_msg("KV_cluster", "$KV.cluster.a")
    assert message.headers is not None
    assert message.headers["Nats-TTL"] == "3600s"
    await connection.close()


async def test_a_lost_consumer_is_found(nats_server: NatsServer) -> None:
    """Changes after it are missing at the end, where no later one shows the gap."""
    connection = await nats.connect(nats_server.url)
    store = NatsKvStore(connection, "cluster")
    await store.create_bucket()
    management = connection.jetstream()
    async with LocalCache(store) as cache:
        await cache.wait_complete(PATIENCE_S)
        (consumer,) = await management.consumers_info("KV_cluster")
        await management.delete_consumer("KV_cluster", consumer.name)
        revision = await store.create("a", b"")
        await cache.wait_for(revision, PATIENCE_S)
        assert cache.get("a") is not None
    await until(lambda: _no_consumers(management))
    await connection.close()


async def _no_consumers(management: Any) -> bool:
    return not await management.consumers_info("KV_cluster")
