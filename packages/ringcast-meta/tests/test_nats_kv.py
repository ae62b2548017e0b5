"""What only NATS KV does: buckets that others made, emptied or made anew, and expiry that nobody tells of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import KeyValueConfig, StreamConfig
from ringcast_meta import LocalCache, MetadataStore, StoreOptions, open_store
from ringcast_meta.nats_kv import NatsKvStore
from ringcast_testkit import PATIENCE_S, NatsServer, ReservedPort, attempt, until
from ringcast_wire import (
    InvalidInputError,
    LimitExceededError,
    NatsLogin,
    OutcomeUnknownError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)


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


@attempt(
    "a process that may write one record of a metadata store",
    "keep others from reading and watching all of it, by headers that mean nothing",
    "the headers do not count; the records are read",
)
async def test_headers_that_mean_nothing(nats_server: NatsServer) -> None:
    connection = await nats.connect(nats_server.url)
    store = NatsKvStore(connection, "odd-headers")
    await store.create_bucket()
    last = await store.create("services.a", b"1")
    for value in ("9" * 5_000, "-1", "\u0663", str(2**70), "1e3", ""):
        headers = {"Ringcast-Revision": value} if value else {"KV-Operation": "NONE", "Ringcast-Lease": ""}
        last = (await connection.jetstream().publish("$KV.odd-headers.agents.b", b"2", headers=headers)).seq
        assert await store.get("agents.b") == ("agents.b", b"2", last, not value)
        async with LocalCache(store) as cache:
            await cache.wait_for(last, PATIENCE_S)
            assert [entry.value for _, entry in sorted(cache.entries().items())] == [b"2", b"1"]
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


async def test_a_bucket_that_is_full(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast_meta._nats.bucket.MAX_BUCKET_BYTES", 8192)
    async with open_store(f"{nats_server.url}/cluster", create=True) as store:
        revision = await store.create("a", b"v" * 2000)
        for number in range(3):
            await store.create(f"b.{number}", b"v" * 1800)
        with pytest.raises(LimitExceededError, match="bucket 'cluster': NATS answers 'maximum bytes exceeded'"):
            await store.create("c", b"v" * 2000)
        assert await store.get("a") == ("a", b"v" * 2000, revision, False)


async def test_a_lease_goes_on_in_a_bucket_that_is_full(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server takes a message in place of one that is not smaller: the numbers in its headers may not grow."""
    monkeypatch.setattr("ringcast_meta._nats.bucket.MAX_BUCKET_BYTES", 8192)
    connection = await nats.connect(nats_server.url)
    store = NatsKvStore(connection, "cluster")
    await store.create_bucket()
    async with store.lease(600) as lease:
        revision = await store.create("a", b"v", lease=lease)
        for size in (1000, 100, 1):
            for number in range(100):
                try:
                    await store.create(f"b.{size}.{number}", b"v" * size)
                except LimitExceededError:
                    break
            else:
                pytest.fail("the bucket is not full")
        for _ in range(100):
            assert await store._kept.refresh(lease.id)
        assert await store.get("a") == ("a", b"v", revision, True)
    await connection.close()


# ---- permissions

_READS = [
    "$JS.API.STREAM.INFO.KV_cluster",
    "$JS.API.STREAM.MSG.GET.KV_cluster",
    "$JS.API.CONSUMER.CREATE.KV_cluster.*.$KV.cluster.>",
    "$JS.API.CONSUMER.DELETE.KV_cluster.*",
]
_USERS: dict[str, dict[str, list[str]]] = {
    "admin": {"publish": [">"], "subscribe": [">"]},
    "writer": {"publish": [*_READS, "$KV.cluster.>"], "subscribe": ["_INBOX.>"]},
    "reader": {"publish": _READS, "subscribe": ["_INBOX.>"]},
    "nobody": {"publish": ["other"], "subscribe": ["_INBOX.>"]},
    "deaf": {"publish": [">"], "subscribe": ["other"]},
}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[NatsServer]:
    """A server whose users have different rights."""
    users = [{"user": name, "password": "secret", "permissions": rights} for name, rights in _USERS.items()]
    with NatsServer(tmp_path / "guarded", authorization={"users": users}) as server:
        yield server


@asynccontextmanager
async def _store_of(
    user: str, server: NatsServer, *, create: bool = False, **options: Any
) -> AsyncIterator[MetadataStore]:
    login = NatsLogin(user=user, password="secret")
    settings = StoreOptions(**({"call_timeout_s": 60.0} | options))
    async with open_store(f"{server.url}/cluster", login=login, options=settings, create=create) as store:
        yield store


async def test_what_a_credential_has_no_right_to(guarded: NatsServer) -> None:
    """A refusal ends a call at once: nothing here waits for the minute of a call."""
    async with _store_of("admin", guarded, create=True) as admin, asyncio.timeout(PATIENCE_S):
        revision = await admin.create("a", b"1")
        async with _store_of("reader", guarded) as store, LocalCache(store) as cache:
            await cache.wait_for(revision, PATIENCE_S)
            assert await store.get("a") == ("a", b"1", revision, False)
            sentence = r"bucket 'cluster': NATS does not let this user publish to \$KV\.cluster\."
            with pytest.raises(PermissionDeniedError, match=sentence + "b"):
                await store.create("b", b"")
            with pytest.raises(PermissionDeniedError, match=sentence + "a"):
                await store.put("a", b"2", last=revision)
            with pytest.raises(PermissionDeniedError, match=sentence + "a"):
                await store.delete("a", last=revision)
            async with store.lease(2) as lease:
                with pytest.raises(PermissionDeniedError, match=sentence + "b"):
                    await store.create("b", b"", lease=lease)
            await until(lambda: cache.fresh)
        async with _store_of("nobody", guarded) as store:
            sentence = r"bucket 'cluster': NATS does not let this user publish to \$JS\.API\.STREAM\."
            with pytest.raises(PermissionDeniedError, match=sentence + "MSG"):
                await store.get("a")
            with pytest.raises(PermissionDeniedError, match=sentence + "INFO"):
                async with store.lease(2):
                    pass
            async with LocalCache(store) as cache:
                with pytest.raises(PermissionDeniedError, match=sentence + "INFO"):
                    await cache.wait_complete(PATIENCE_S)
        async with _store_of("deaf", guarded) as store:
            for _ in range(2):  # the server says it once
                with pytest.raises(
                    PermissionDeniedError, match=r"does not let this user subscribe to _inbox\..*, where"
                ):
                    await store.get("a")
        assert await admin.get("a") == ("a", b"1", revision, False)


async def test_the_rights_that_the_docstring_names_are_enough(guarded: NatsServer) -> None:
    async with _store_of("admin", guarded, create=True), _store_of("writer", guarded) as store:
        async with LocalCache(store) as cache, store.lease(2) as lease:
            revision = await store.create("a", b"", lease=lease)
            await cache.wait_for(await store.put("a", b"2", last=revision, lease=lease), PATIENCE_S)
        assert await store.get("a") is None


async def test_a_refusal_that_names_two_calls_ends_neither(guarded: NatsServer) -> None:
    """The library tells the subject in lower case only."""
    async with _store_of("admin", guarded, create=True), _store_of("reader", guarded, call_timeout_s=1.0) as store:
        assert await store.get("a") is None
        found = await asyncio.gather(store.create("a", b""), store.create("A", b""), return_exceptions=True)
        assert [type(error) for error in found] == [OutcomeUnknownError] * 2


async def test_a_connection_that_tells_the_store_of_no_refusal(guarded: NatsServer) -> None:
    connection = await nats.connect(guarded.url, user="nobody", password="secret")
    store = NatsKvStore(connection, "cluster", StoreOptions(call_timeout_s=0.5))
    with pytest.raises(UnavailableError, match="no answer from NATS"):
        await store.get("a")
    await connection.close()


async def test_a_login_that_is_refused(guarded: NatsServer) -> None:
    for login in (None, NatsLogin(user="reader", password="wrong")):
        with pytest.raises(UnauthenticatedError, match="refuses the login, or asks for one that was not given") as lost:
            async with open_store(f"{guarded.url}/cluster", login=login):
                pass
        assert "wrong" not in str(lost.value)


async def test_a_server_that_is_not_there() -> None:
    address = f"nats://{ReservedPort().address},{ReservedPort().address}/cluster"
    with pytest.raises(UnavailableError, match="can't be reached: connection refused"):
        async with open_store(address):
            pass


async def test_the_api_of_jetstream_and_the_inboxes_may_be_elsewhere(tmp_path: Path) -> None:
    accounts = {
        "STREAMS": {
            "jetstream": "enabled",
            "users": [{"user": "owner", "password": "secret"}],
            "exports": [{"service": "$JS.API.>"}],
        },
        "OTHERS": {
            "users": [
                {
                    "user": "guest",
                    "password": "secret",
                    "permissions": {"publish": ["JS.elsewhere.API.>"], "subscribe": ["_INBOX.guest.>"]},
                }
            ],
            "imports": [{"service": {"account": "STREAMS", "subject": "$JS.API.>"}, "to": "JS.elsewhere.API.>"}],
        },
    }
    with NatsServer(tmp_path / "accounts", accounts=accounts) as server:
        address = f"{server.url}/cluster"
        owner, guest = (NatsLogin(user=name, password="secret") for name in ("owner", "guest"))
        async with open_store(address, login=owner, create=True) as store:
            revision = await store.create("a", b"1")
        async with open_store(
            address, login=guest, jetstream_api="JS.elsewhere.API", inbox_prefix="_INBOX.guest"
        ) as store:
            assert await store.get("a") == ("a", b"1", revision, False)


async def test_a_login_that_is_replaced_while_a_store_is_open(tmp_path: Path) -> None:
    """The server ends the connection. It comes back once the file has the new password, and the cache follows."""

    def users(password: str) -> dict[str, Any]:
        return {"users": [{"user": "u", "password": password}]}

    file = tmp_path / "password"
    file.write_text("first")
    login = NatsLogin(user="u", password_file=str(file))

    async def answers() -> bool:
        try:
            await store.get("a")
        except UnavailableError:
            return False
        return True

    async def refused() -> bool:
        return not await answers()

    with NatsServer(tmp_path / "nats", authorization=users("first")) as server:
        options = StoreOptions(call_timeout_s=0.5)
        async with (
            open_store(f"{server.url}/login", login=login, options=options, create=True) as store,
            LocalCache(store) as cache,
        ):
            revision = await store.create("a", b"1")
            await asyncio.to_thread(server.reload, authorization=users("second"))
            await until(refused)
            file.write_text("second")
            await until(answers)
            await cache.wait_for(await store.put("a", b"2", last=revision), PATIENCE_S)
            assert [entry.value for entry in cache.entries().values()] == [b"2"]
