"""What stores have on NATS: made once, changed when it should be otherwise, bounded, each on its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StreamConfig, StreamInfo
from nats.js.errors import APIError, KeyNotFoundError, NotFoundError
from ringcast_config_service.nats import streams
from ringcast_config_service.nats.broker import NO_LEADER, AccountWatch, StreamStates
from ringcast_config_service.nats.bus_removal import clear_wishes, remove_store
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.nats.relay import Relay
from ringcast_config_service.nats.streams import (
    StreamSizes,
    differences,
    groups,
    leases,
    of_store,
    owners,
    wishes,
)
from ringcast_config_service.telemetry import Telemetry
from ringcast_testkit import PATIENCE_S, NatsCluster, NatsServer, until
from ringcast_wire import Strategy, UnavailableError, limits, names

Bench = Any  # of conftest.py


def _peer(*, current: bool = True, offline: bool = False) -> dict[str, Any]:
    return {"name": "n", "current": current, "offline": offline, "active": 1}


_SMALL = StreamSizes(
    events_max_bytes=limits.MIB,
    dead_letters_max_bytes=limits.MIB,
    members_max_bytes=limits.MIB,
    leases_max_bytes=limits.MIB,
)


@asynccontextmanager
async def provisioning(
    bench: Bench, url: str, sizes: StreamSizes | None = None, timeout_s: float = 10
) -> AsyncIterator[tuple[Provisioner, Any, Client, Telemetry]]:
    nc = await nats.connect(url)
    telemetry = Telemetry()
    js = nc.jetstream(timeout=timeout_s)
    try:
        yield (
            Provisioner(js, bench.repo.stores, replicas=1, interval_s=30, sizes=sizes, telemetry=telemetry),
            js,
            nc,
            telemetry,
        )
    finally:
        with contextlib.suppress(OSError):
            await nc.close()


@pytest.fixture
async def store(sqlite_bench: Bench, new_store: Any, store_name: str) -> Any:
    return await sqlite_bench.repo.stores.create_store(new_store(store_name))


async def test_nothing_can_be_rolled_up_and_everything_has_a_limit(
    sqlite_bench: Bench, store: Any, nats_url: str
) -> None:
    """One message of one worker would otherwise empty a bucket, or fill the broker for all."""
    name = store.name
    async with provisioning(sqlite_bench, nats_url) as (provisioner, js, _, _):
        await provisioner.ensure(store)
        streams = {
            "KV_config_leases": f"$KV.config_leases.{name}",
            f"KV_config_nodes_{name}": f"$KV.config_nodes_{name}.k.w",
            f"KV_config_meta_{name}": f"$KV.config_meta_{name}.other",
            f"KV_config_groups_{name}": f"$KV.config_groups_{name}.k.g.0",
            f"config_notify_{name}": f"config.notify.{name}.k.0",
            f"config_dead_{name}": f"config.dead.{name}.k.0",
        }
        for stream, subject in streams.items():
            config = (await js.stream_info(stream)).config
            assert config.max_bytes > 0
            assert config.max_msg_size > 0
            assert config.max_age or stream.startswith("KV_config_meta_")
            for rollup in ("all", "sub"):
                with pytest.raises(APIError, match="rollup not permitted"):
                    await js.publish(subject, b"x", headers={"Nats-Rollup": rollup})
            if stream.startswith("KV_"):
                most = limits.MAX_SETTING_BYTES if stream.startswith("KV_config_meta_") else limits.MAX_RECORD_BYTES
                await js.publish(subject, b"x" * (most // 2))
                with pytest.raises(APIError, match="message size exceeds maximum"):
                    await js.publish(subject, b"x" * (most + 1))
                with pytest.raises(APIError):
                    await js.purge_stream(stream)
        await js.publish(f"config.notify.{name}.k.0", b"x" * limits.MAX_EVENT_BYTES)


async def test_streams_with_other_settings_are_changed_and_keep_what_they_have(
    sqlite_bench: Bench, store: Any, nats_server: NatsServer, tmp_path: Path
) -> None:
    """As services before this one have made them."""
    with NatsServer(tmp_path) as server:
        async with provisioning(sqlite_bench, server.url) as (provisioner, js, _, _):
            for bucket, ttl in ((names.LEASES_BUCKET, 10), (names.nodes_bucket(store.name), 86_400)):
                old = await js.create_key_value(
                    bucket=bucket, history=1, ttl=ttl, limit_marker_ttl=60, replicas=1, direct=True
                )
                await old.put("somebody", b"here")
            subjects = [names.notify_stream_subjects(store.name)]
            await js.add_stream(StreamConfig(name=names.notify_stream(store.name), subjects=subjects))
            await js.publish(names.notify_subject(store.name, "k", 0), b"event")
            await provisioner.ensure(store)
            sizes = StreamSizes()
            for config in (leases(sizes), *of_store(store.name, sizes), groups(store.name, sizes)):
                info = await js.stream_info(config.name)
                assert differences(config, info.config) == {}
                assert info.config.allow_rollup_hdrs is False or not info.config.allow_rollup_hdrs
            for bucket in (names.LEASES_BUCKET, names.nodes_bucket(store.name)):
                assert (await (await js.key_value(bucket)).get("somebody")).value == b"here"
            assert (await js.stream_info(names.notify_stream(store.name))).state.messages == 1
            other = StreamSizes(events_max_bytes=2 * limits.MIB, events_max_age_s=3600.0)
            telemetry = Telemetry()
            changed = Provisioner(
                js, sqlite_bench.repo.stores, replicas=1, interval_s=30, sizes=other, telemetry=telemetry
            )
            await changed.ensure(store)
            config = (await js.stream_info(names.notify_stream(store.name))).config
            assert (config.max_bytes, config.max_age) == (2 * limits.MIB, 3600)


async def test_a_store_that_is_refused_keeps_no_other_from_its_streams(
    sqlite_bench: Bench, new_store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    repo = sqlite_bench.repo
    for name in ("aaa", "bbb"):
        await repo.stores.create_store(new_store(name))
    with NatsServer(tmp_path) as server:
        async with provisioning(sqlite_bench, server.url, _SMALL) as (provisioner, js, _, telemetry):
            await js.add_stream(StreamConfig(name="audit", subjects=["config.notify.aaa.>"]))
            for _ in range(3):
                await provisioner.ensure_all()
            assert (await js.stream_info("config_notify_bbb")).config.max_bytes == limits.MIB
            assert provisioner.failing == 1
            assert +telemetry.measures.provision_failures == {"aaa": 3}
            failures = [r.getMessage() for r in caplog.records if "event=provision.failed" in r.getMessage()]
            assert len(failures) == 1
            assert "store=aaa" in failures[0]
            assert "subjects overlap" in failures[0]
            await js.delete_stream("audit")
            await provisioner.ensure_all()
            assert provisioner.failing == 0
            assert "event=provision.recovered store=aaa" in caplog.text
            assert (await js.stream_info("config_notify_aaa")).config.max_bytes == limits.MIB


async def test_a_stream_is_smaller_where_there_is_no_room_and_grows_when_there_is(
    sqlite_bench: Bench, store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    jetstream = {"store_dir": str(tmp_path / "js"), "max_file_store": 40 * limits.MIB}
    sizes = StreamSizes(
        events_max_bytes=24 * limits.MIB,
        dead_letters_max_bytes=limits.MIB,
        members_max_bytes=limits.MIB,
        leases_max_bytes=limits.MIB,
    )
    with NatsServer(tmp_path, jetstream=jetstream) as server:
        async with provisioning(sqlite_bench, server.url, sizes) as (provisioner, js, _, _):
            await js.add_stream(StreamConfig(name="other", subjects=["other"], max_bytes=30 * limits.MIB))
            for _ in range(3):
                await provisioner.ensure(store)
            assert (await js.stream_info(names.notify_stream(store.name))).config.max_bytes == 6 * limits.MIB
            assert "event=provision.small_stream stream=config_notify" in caplog.text
            assert caplog.text.count("event=provision.small_stream") == 2
            groups_bucket = f"KV_{names.groups_bucket(store.name)}"
            assert f"event=provision.small_stream stream={groups_bucket} max_bytes=0" in caplog.text
            with pytest.raises(NotFoundError):
                await js.stream_info(groups_bucket)
            assert await (await js.key_value(names.meta_bucket(store.name))).get("partition_count")
            await js.delete_stream("other")
            await provisioner.ensure(store)
            assert (await js.stream_info(names.notify_stream(store.name))).config.max_bytes == 24 * limits.MIB
            assert (await js.stream_info(groups_bucket)).config.max_bytes


async def test_leases_go_on_when_events_have_filled_the_broker(
    sqlite_bench: Bench, new_store: Any, tmp_path: Path
) -> None:
    """Events throw their oldest away; leases and members have room of their own."""
    jetstream = {"store_dir": str(tmp_path / "js"), "max_file_store": 24 * limits.MIB}
    store = await sqlite_bench.repo.stores.create_store(new_store("s24", inline_max_bytes=4096))
    with NatsServer(tmp_path, jetstream=jetstream) as server:
        async with provisioning(sqlite_bench, server.url, StreamSizes(leases_max_bytes=2 * limits.MIB)) as bus:
            provisioner, js, nc, telemetry = bus
            await provisioner.ensure(store)
            relay = Relay(sqlite_bench.repo.events, nc, provisioner, batch=1000, poll_s=0.05, telemetry=telemetry)
            task = asyncio.create_task(relay.run())
            for number in range(10):
                rows = {f"r{number}-{row}": "x" * 4000 for row in range(800)}
                request = sqlite_bench.request(rows, store=store)
                relay.committed((await sqlite_bench.repo.writer.write([request], number + 1)).events)
                await js.publish(f"$KV.config_leases.w{number}", b"{}")
                await js.publish(f"$KV.config_nodes_s24.k.w{number}", b"{}")
            await asyncio.wait_for(relay.flush(), PATIENCE_S)
            info = await js.stream_info(names.notify_stream("s24"))
            assert info.state.bytes <= info.config.max_bytes
            last = await js.get_msg(names.notify_stream("s24"), seq=info.state.last_seq)
            assert last.data
            assert not any(telemetry.measures.publish_failures.values())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_leases_and_members_are_on_servers_of_their_own(
    sqlite_bench: Bench, store: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a cluster: whatever fills the disks of the others leaves theirs alone."""
    caplog.set_level(logging.INFO)
    tagged = {"n1": {"server_tags": ["kind:leases"]}, "n2": {"server_tags": ["kind:other"]}}
    buckets = [f"KV_{bucket}" for bucket in (names.LEASES_BUCKET, names.nodes_bucket(store.name))]

    async def are_on(nc: Client, server: str) -> bool:
        """Whether both are there and nowhere else; a stream that is being moved is in two places.

        Its leader answers, and while it has none, nobody does: a question of that moment is lost, so that each has
        little time.
        """
        js = nc.jetstream(timeout=2)
        try:
            found = [(await js.stream_info(bucket)).cluster for bucket in buckets]
        except (nats.errors.Error, APIError):
            return False
        return all(one is not None and one.leader == server and not one.replicas for one in found)

    with NatsCluster(tmp_path, of_one=tagged) as cluster:
        sizes = StreamSizes(lease_tags=("kind:leases",))
        async with provisioning(sqlite_bench, cluster.urls[0], sizes) as (provisioner, js, nc, telemetry):
            await provisioner.ensure(store)
            await until(lambda: are_on(nc, "n1"))
            await provisioner.ensure(store)
            assert "event=provision.changed" not in caplog.text, "nothing is to be changed the second time"
            await js.publish(f"$KV.{names.LEASES_BUCKET}.w", b"{}")

            def other(*tags: str) -> Provisioner:
                sizes = StreamSizes(lease_tags=tags)
                stores = sqlite_bench.repo.stores
                return Provisioner(js, stores, replicas=1, interval_s=30, sizes=sizes, telemetry=telemetry)

            with pytest.raises(UnavailableError, match=r"NATS can't prepare it for workers now.*no suitable peers"):
                await other("kind:none").ensure(store)
            await other("kind:other").ensure(store)
            await until(lambda: are_on(nc, "n2"))
            assert (await (await js.key_value(names.LEASES_BUCKET)).get("w")).value == b"{}"


async def test_events_resume_when_a_full_broker_has_room_again(sqlite_bench: Bench, store: Any, tmp_path: Path) -> None:
    """An operator's stream without a limit takes all there is: events stay in the outbox, and nothing is lost."""
    jetstream = {"store_dir": str(tmp_path / "js"), "max_file_store": 16 * limits.MIB}
    with NatsServer(tmp_path, jetstream=jetstream) as server:
        async with provisioning(sqlite_bench, server.url, _SMALL) as (provisioner, js, nc, telemetry):
            await provisioner.ensure(store)
            await js.add_stream(StreamConfig(name="greedy", subjects=["greedy"]))
            with contextlib.suppress(APIError):
                while True:
                    await js.publish("greedy", b"x" * 500_000)
            relay = Relay(sqlite_bench.repo.events, nc, provisioner, batch=1000, poll_s=0.05, telemetry=telemetry)
            task = asyncio.create_task(relay.run())
            for number in range(5):
                request = sqlite_bench.request({f"r{number}": "v"}, store=store)
                relay.committed((await sqlite_bench.repo.writer.write([request], number + 1)).events)
            async with asyncio.timeout(PATIENCE_S):
                while not telemetry.measures.publish_failures["refused"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert len(await sqlite_bench.events()) == 5
            await js.purge_stream("greedy")
            await asyncio.wait_for(relay.flush(), PATIENCE_S)
            assert (await js.stream_info(names.notify_stream(store.name))).state.messages == 5
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_broker_that_does_not_answer(sqlite_bench: Bench, store: Any, tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    with server:
        async with provisioning(sqlite_bench, server.url, _SMALL, timeout_s=0.1) as (provisioner, *_):
            await asyncio.to_thread(server.kill)
            with pytest.raises(UnavailableError, match="it is tried again once NATS answers"):
                await provisioner.ensure(store)


async def test_only_a_store_of_exclusive_ownership_has_a_bucket_of_owners(
    sqlite_bench: Bench, new_store: Any, store: Any, nats_url: str
) -> None:
    sticky = new_store(f"{store.name}s")
    times = {"lease_ttl_ms": 10_000, "call_bound_ms": 1_000}
    settings = msgspec.structs.replace(sticky.settings, strategy=Strategy.STICKY, **times)
    sticky = replace(sticky, settings=settings)
    sticky = await sqlite_bench.repo.stores.create_store(sticky)
    async with provisioning(sqlite_bench, nats_url, _SMALL) as (provisioner, js, _, _):
        await provisioner.ensure(store)
        for make in (names.owners_bucket, names.wishes_bucket):
            with pytest.raises(NotFoundError):
                await js.stream_info(f"KV_{make(store.name)}")
        buckets = {
            f"KV_{names.owners_bucket(sticky.name)}": owners(sticky.name, _SMALL),
            f"KV_{names.wishes_bucket(sticky.name)}": wishes(sticky.name),
        }
        for _ in range(2):  # made, and made again where the server lost it
            await provisioner.ensure(sticky)
            for stream, wanted in buckets.items():
                found = (await js.stream_info(stream)).config
                assert not differences(wanted, found)
                await js.delete_stream(stream)
        await provisioner.ensure(sticky)
        await provisioner.remove(sticky.name)
        for stream in buckets:
            with pytest.raises(NotFoundError):
                await js.stream_info(stream)


async def test_what_operators_want_of_a_key_stays_until_the_key_is_purged(nats_url: str, store_name: str) -> None:
    nc = await nats.connect(nats_url)
    try:
        js, bucket = nc.jetstream(), names.wishes_bucket(store_name)
        await clear_wishes(js, store_name, "k")  # a store without such a bucket
        await js.add_stream(wishes(store_name))
        assert (await js.stream_info(f"KV_{bucket}")).config.max_age == 0, "no record of it ends by itself"
        kv = await js.key_value(bucket)
        await clear_wishes(js, store_name, "k")  # nothing is wanted of it
        for key in ("k", "other"):
            await kv.put(names.wishes_key(key), b"x" * limits.MAX_WISHES_BYTES)
        with pytest.raises(APIError, match="message size exceeds maximum allowed"):
            await kv.put(names.wishes_key("k"), b"x" * (limits.MAX_WISHES_BYTES + limits.CHUNK_HEADROOM_BYTES + 1))
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await js.publish(f"$KV.{bucket}.k.lead.wishes", b"x", timeout=PATIENCE_S)
        await clear_wishes(js, store_name, "k")
        with pytest.raises(KeyNotFoundError):
            await kv.get(names.wishes_key("k"))
        assert (await kv.get(names.wishes_key("other"))).value
        await clear_wishes(js, store_name, "k")  # it is gone already
    finally:
        await nc.close()


async def test_the_bucket_of_owners_takes_its_records_and_no_others(nats_url: str, store_name: str) -> None:
    """It has limits, and goes with its store."""
    nc = await nats.connect(nats_url)
    try:
        js, bucket = nc.jetstream(), names.owners_bucket(store_name)
        wanted = owners(store_name, StreamSizes(members_max_bytes=2 * limits.MIB))
        await js.add_stream(wanted)
        found = (await js.stream_info(f"KV_{bucket}")).config
        assert not differences(wanted, found)
        assert (found.max_age, found.max_msgs_per_subject, found.max_bytes) == (86_400, 1, 2 * limits.MIB)
        largest = b"x" * limits.MAX_TABLE_BYTES
        keys = (
            names.term_key("k"),
            names.table_key("k"),
            names.state_key("k", "w"),
            names.session_key("w"),
            names.load_key("w"),
            names.gone_key("k", "a"),
        )
        for key in keys:
            await js.publish(f"$KV.{bucket}.{key}", largest)
        with pytest.raises(APIError, match="message size exceeds maximum allowed"):
            await js.publish(
                f"$KV.{bucket}.{keys[1]}", b"x" * (limits.MAX_TABLE_BYTES + limits.CHUNK_HEADROOM_BYTES + 1)
            )
        for other in ("k", "k.w", "k.lead.other", "k.lead.wishes", "k.wishes", "k.state.w.x", "~ended.w"):
            with pytest.raises(nats.js.errors.NoStreamResponseError):
                await js.publish(f"$KV.{bucket}.{other}", b"x", timeout=PATIENCE_S)
        await remove_store(js, store_name)
        with pytest.raises(NotFoundError):
            await js.stream_info(f"KV_{bucket}")
    finally:
        await nc.close()


async def test_what_streams_have_is_known_and_a_limit_that_is_near_is_told_once(
    sqlite_bench: Bench, store: Any, nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = names.notify_stream(store.name)
    async with provisioning(sqlite_bench, nats_url) as (provisioner, js, nc, _):
        await provisioner.ensure(store)
        (events,) = (state for state in provisioner.states() if state.name == stream)
        assert (events.store, events.kind, events.refuses) == (store.name, "events", False)
        assert events.max_bytes == events.wanted_bytes == StreamSizes().events_max_bytes
        assert (events.consumers, events.consumer_limit, events.replicas_behind) == (0, 1_000, 0)
        assert {state.kind for state in provisioner.states() if state.store == store.name} == {
            *("settings", "events", "members", "dead_letters", "groups")
        }
        await js.publish(names.notify_subject(store.name, "k", 0), b"event")
        # A stream with a limit of its own has no more consumers than that.
        wanted = (await js.stream_info(stream)).config
        await js.delete_stream(stream)
        await js.add_stream(wanted.evolve(max_consumers=3))
        for number in range(3):
            await js.add_consumer(stream, ConsumerConfig(durable_name=f"c{number}"))
        for _ in range(2):
            await provisioner.ensure(store)
        (events,) = (state for state in provisioner.states() if state.name == stream)
        assert (events.consumers, events.consumer_limit) == (3, 3)
        told = [record for record in caplog.records if getattr(record, "event", "") == "broker.near_limit"]
        assert [(each.what, each.used, each.limit) for each in told] == [("consumers", 3, 3)]  # type: ignore[attr-defined]
        provisioner.states.keep({"other"})
        assert {state.store for state in provisioner.states()} == {""}
        await provisioner.ensure(store)
        told = [record for record in caplog.records if getattr(record, "event", "") == "broker.near_limit"]
        assert len(told) == 2, "it is told of another store of that name too"

        account = AccountWatch(nc, interval_s=30)
        assert (account.state, account.age_s) == (None, float("inf"))
        await account.read()
        assert account.state is not None
        assert account.state.reserved_storage >= StreamSizes().events_max_bytes
        assert account.state.consumers >= 3
        assert account.state.streams >= 6
        assert (account.problem, account.age_s < 60) == ("", True)


async def test_an_account_that_nats_says_nothing_of_is_not_empty(tmp_path: Path) -> None:
    accounts = {"A": {"jetstream": "enabled"}, "B": {"users": [{"user": "b", "password": "p"}]}}
    with NatsServer(tmp_path / "nats", accounts=accounts) as server:
        nc = await nats.connect(server.url, user="b", password="p")
        account = AccountWatch(nc, interval_s=30)
        await account.read()
        await nc.close()
    assert (account.state, account.age_s) == (None, float("inf"))
    assert account.problem == "JetStream not enabled for account"


@pytest.mark.parametrize(
    ("cluster", "behind", "problem"),
    [
        ({"leader": "n0"}, 2, ""),  # its others have not been heard of yet
        ({"leader": "n0", "replicas": [_peer(), _peer()]}, 0, ""),
        ({"leader": "n0", "replicas": [_peer(current=False), _peer()]}, 1, ""),
        ({"leader": "n0", "replicas": [_peer(offline=True), _peer()]}, 1, ""),
        ({"replicas": [_peer(current=False)] * 3}, 3, NO_LEADER),  # the server that answers is one of them
    ],
)
def test_copies_that_are_behind_and_a_leader_that_is_missing(
    cluster: dict[str, Any], behind: int, problem: str
) -> None:
    """The answers are those of servers of which one, then two of three were killed."""
    config = streams.leases(StreamSizes()).evolve(num_replicas=3)
    states = StreamStates()
    states.saw(config, _info(config, cluster={"name": "c", **cluster}))
    (found,) = states()
    assert (found.store, found.kind, found.replicas_behind, found.problem) == ("", "leases", behind, problem)


def test_the_age_of_a_stream_is_that_of_what_nats_said_of_it_last() -> None:
    config = streams.leases(StreamSizes())
    states = StreamStates()
    states.could_not_see(config.name or "", TimeoutError("no answer"))
    (never,) = states()
    assert (never.found_at_s, never.problem) == (None, "no answer")
    states.saw(config, _info(config))
    (seen,) = states()
    states.could_not_see(config.name or "", TimeoutError("no answer"))
    (since,) = states()
    assert since.found_at_s == seen.found_at_s is not None


def _info(config: StreamConfig, **more: Any) -> StreamInfo:
    """A stream with one message, as a server tells of it."""
    state = {"messages": 1, "bytes": 100, "first_seq": 1, "last_seq": 1, "consumer_count": 0}
    info: StreamInfo = StreamInfo.from_response({"config": config.as_dict(), "state": state, **more})
    return info
