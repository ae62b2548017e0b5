"""Reading a topology from real buckets, written here as the service and the workers write them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from ringcast.topology import read_topologies, read_topology
from ringcast_core import assign_jump, assign_ring
from ringcast_wire import (
    LeaseRecord,
    Migration,
    Mode,
    NodeRecord,
    SlotClaim,
    Stage,
    StoreSettings,
    Strategy,
    UnavailableError,
    UnknownStoreError,
    encode_migration,
    encode_record,
    limits,
    names,
)
from ringcast_wire.owner_records import Entry, Rule, Session, State, Table, encode_state, encode_table

PARTITIONS = 64
TIMES = {"lease_ttl_ms": 10_000, "call_bound_ms": 1_000}


@asynccontextmanager
async def _store(url: str, store: str, **settings: object) -> AsyncIterator[JetStreamContext]:
    """A store's buckets, and the bucket of leases."""
    client = await nats.connect(url)
    try:
        js = client.jetstream()
        meta = await js.create_key_value(bucket=names.meta_bucket(store), direct=True)
        values = StoreSettings(partition_count=PARTITIONS, **settings)  # type: ignore[arg-type]
        for name, value in values.to_kv().items():
            await meta.create(name, value)
        await js.create_key_value(bucket=names.nodes_bucket(store), direct=True)
        try:
            await js.key_value(names.LEASES_BUCKET)  # the server is shared
        except NotFoundError:
            await js.create_key_value(bucket=names.LEASES_BUCKET, history=1, ttl=limits.LEASE_TTL_S, direct=True)
        yield js
    finally:
        await client.close()


async def _join(js: JetStreamContext, store: str, key: str, worker: str, slot: int, *, alive: bool = True) -> None:
    nodes = await js.key_value(names.nodes_bucket(store))
    lease = f"{store}-{worker}"
    record = NodeRecord(slot=slot, lease=lease, incarnation="i")
    await nodes.put(names.node_key(key, worker), encode_record(record))
    if alive:
        leases = await js.key_value(names.LEASES_BUCKET)
        await leases.put(lease, encode_record(LeaseRecord(incarnation="i", host="h", pid=7, started_at_ms=1)))


async def test_jump_over_the_slots_of_the_living(nats_url: str, store_name: str) -> None:
    async with _store(nats_url, store_name) as js:
        await _join(js, store_name, "list", "a", 0)
        await _join(js, store_name, "list", "b", 2)
        await _join(js, store_name, "list", "gone", 1, alive=False)
        await _join(js, store_name, "other", "c", 0)
        topology = await read_topology(nats_url, store_name, "list")
    by_slot = {0: "a", 2: "b"}
    assert topology.owners == tuple(by_slot[slot] for slot in assign_jump(PARTITIONS, [0, 2], 1.25))
    assert [(m.worker_id, m.slot, m.alive, m.host, m.pid) for m in topology.members] == [
        ("a", 0, True, "h", 7),
        ("b", 2, True, "h", 7),
        ("gone", 1, False, None, None),
    ]
    for member in topology.members:
        assert member.partitions == tuple(p for p, owner in enumerate(topology.owners) if owner == member.worker_id)


async def test_a_registration_of_a_build_to_come_is_named(nats_url: str, store_name: str) -> None:
    """With a phase that this build does not know it is no member for a worker of this build, either."""
    async with _store(nats_url, store_name) as js:
        await _join(js, store_name, "list", "a", 0)
        nodes = await js.key_value(names.nodes_bucket(store_name))
        newer = b'{"slot":1,"lease":"b","incarnation":"i","phase":"resting","zone":"z"}'
        await nodes.put(names.node_key("list", "b"), newer)
        topology = await read_topology(nats_url, store_name, "list")
    assert [each.worker_id for each in topology.members] == ["a"]
    assert list(topology.unreadable) == ["list.b"]
    assert "'resting'" in topology.unreadable["list.b"]


async def test_the_claim_decides_between_two_with_one_slot(nats_url: str, store_name: str) -> None:
    async with _store(nats_url, store_name) as js:
        await _join(js, store_name, "list", "a", 0)
        await _join(js, store_name, "list", "b", 0)
        nodes = await js.key_value(names.nodes_bucket(store_name))
        await nodes.put(names.slot_key("list", 0), encode_record(SlotClaim(worker_id="b", lease=f"{store_name}-b")))
        topology = await read_topology([nats_url], store_name, "list")
    assert set(topology.owners) == {"b"}


async def test_ring(nats_url: str, store_name: str) -> None:
    async with _store(nats_url, store_name, strategy=Strategy.RING) as js:
        await _join(js, store_name, "list", "b", 0)
        await _join(js, store_name, "list", "a", 1)
        topology = await read_topology(nats_url, store_name, "list")
    assert topology.owners == tuple("ab"[index] for index in assign_ring(PARTITIONS, ["a", "b"]))


async def test_a_store_of_exclusive_ownership_without_its_buckets(nats_url: str, store_name: str) -> None:
    sentence = f"store '{store_name}' has no bucket of owners: its config service has not made it"
    async with _store(nats_url, store_name, strategy=Strategy.STICKY, **TIMES) as js:
        await _join(js, store_name, "list", "a", 0)
        with pytest.raises(UnavailableError, match=sentence):
            await read_topology(nats_url, store_name, "list")
        with pytest.raises(UnavailableError, match=sentence):
            await read_topologies(nats_url, store_name)


async def test_sessions_are_read_where_workers_live_under_an_agent(nats_url: str, store_name: str) -> None:
    """Of a worker that has a lease of its own, no session and no time of the server is asked for."""
    bucket, agent = names.owners_bucket(store_name), "agent-1"
    async with _store(nats_url, store_name, strategy=Strategy.STICKY, **TIMES) as js:
        owners = await js.create_key_value(bucket=bucket, direct=True)
        await js.create_key_value(bucket=names.wishes_bucket(store_name), direct=True)
        await _join(js, store_name, "list", "own", 0)
        lease = encode_record(LeaseRecord(incarnation="i", host="h", pid=8, started_at_ms=1))
        await js.publish(f"$KV.{bucket}.{names.session_key('hosted')}", lease)
        async with _asked(nats_url, f"$JS.API.STREAM.INFO.KV_{bucket}") as asked:
            await owners.put(names.state_key("list", "own"), encode_state(State(lease="own", session=1)))
            assert [each.worker_id for each in (await read_topology(nats_url, store_name, "list")).members] == ["own"]
            assert not [each for each in await asked() if b"session" in each or not each]
            hosted = encode_state(State(lease="hosted", session=2, agent=agent))
            await owners.put(names.state_key("list", "hosted"), hosted)
            members = (await read_topology(nats_url, store_name, "list")).members
            assert [(each.worker_id, each.alive, each.pid) for each in members] == [
                ("hosted", True, 8),
                ("own", False, None),
            ]
            assert [each for each in await asked() if b"session" in each]


@asynccontextmanager
async def _asked(url: str, subject: str) -> AsyncIterator[Callable[[], Awaitable[list[bytes]]]]:
    """What is asked on a subject since the last look."""
    client = await nats.connect(url)
    try:
        tapped = await client.subscribe(subject)
        await client.flush()

        async def since() -> list[bytes]:
            await client.flush()  # what was answered has come here, too
            return [(await tapped.next_msg()).data for _ in range(tapped.pending_msgs)]

        yield since
    finally:
        await client.close()


async def test_every_key_that_has_workers(nats_url: str, store_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_SERVERS", nats_url)
    async with _store(nats_url, store_name) as js:
        assert await read_topologies(None, store_name) == []
        await _join(js, store_name, "two", "a", 0)
        await _join(js, store_name, "one", "b", 0)
        found = await read_topologies(None, store_name)
    assert [(topology.key, topology.members[0].worker_id) for topology in found] == [("one", "b"), ("two", "a")]


async def test_nobody_owns_anything_without_workers_or_in_mode_full(nats_url: str, store_name: str) -> None:
    async with _store(nats_url, store_name, mode=Mode.FULL):
        topology = await read_topology(nats_url, store_name, "list")
    assert topology.members == ()
    assert topology.owners == (None,) * PARTITIONS


async def test_an_unknown_store_and_an_unreachable_server(nats_url: str, store_name: str) -> None:
    with pytest.raises(UnknownStoreError, match=f"store '{store_name}' does not exist"):
        await read_topology(nats_url, store_name, "list")
    with pytest.raises(UnavailableError, match=r"NATS at nats://127\.0\.0\.1:1 can't be reached: connection refused"):
        await read_topology("nats://127.0.0.1:1", store_name, "list")


async def test_whom_a_migration_waits_for(nats_url: str, store_name: str) -> None:
    """A worker that has ended, one that says that it has stopped, and one that lives and may have calls."""
    step = Migration(stage=Stage.SWITCH, number=3, lease_ttl_ms=10_000, call_bound_ms=1_000)
    async with _store(nats_url, store_name, wire_version=2) as js:
        meta = await js.key_value(names.meta_bucket(store_name))
        await meta.put(names.META_MIGRATION, encode_migration(step))
        bucket = await js.create_key_value(bucket=names.owners_bucket(store_name), direct=True)
        sessions = {name: Session(name, name, number) for number, name in enumerate(("dead", "done", "busy"), 1)}
        for name, session in sessions.items():
            await _join(js, store_name, "list", name, session.number, alive=name != "dead")
            await js.publish(f"$KV.{names.owners_bucket(store_name)}.{names.session_key(name)}", b"{}")
        states = {
            "dead": State(lease="dead", session=1),
            "done": State(lease="done", session=2, guarded=3, stopped=5),
            "busy": State(lease="busy", session=3, guarded=3),
        }
        for name, state in states.items():
            await bucket.put(names.state_key("list", name), encode_state(state))
        table = Table(9, (Entry(None, 0),) * PARTITIONS, Rule.NOBODY, 5, (sessions["done"], sessions["busy"]), 3)
        await bucket.put(names.table_key("list"), encode_table(table))
        shadow = (await read_topology(nats_url, store_name, "list")).shadow
        now_s = time.time()
    assert shadow is not None
    assert (shadow.rule, shadow.unguarded, shadow.calling) == ("nobody", ("dead",), ("busy",))
    assert set(shadow.awaited) == {"dead", "done", "busy"}
    dead, busy = shadow.awaited["dead"], shadow.awaited["busy"]
    assert (dead.alive, busy.alive) == (False, True)
    assert now_s - 60 < dead.seen_s <= now_s
    assert dead.until_s is not None
    assert now_s + 86_000 < dead.until_s <= now_s + 86_400
