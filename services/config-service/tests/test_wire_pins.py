"""To which wire version the events of a store are pinned, as a build has it that knows version 3 beside the first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import nats
import pytest
from nats.aio.client import Client
from ringcast_config_service import handlers, wire_pins
from ringcast_config_service.maintenance import Term
from ringcast_config_service.nats.readers import Readers, read_workers
from ringcast_config_service.repository import Lead, StoreRecord
from ringcast_config_service.wire_pins import LOOKS_TO_RISE, Rises, WirePins
from ringcast_meta import MemoryServer, MemoryStore, MetadataStore
from ringcast_meta.cluster import (
    AgentLoad,
    MemberKind,
    MemberRecord,
    MemberState,
    ServiceLoad,
    encode_member,
    member_key,
)
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import (
    LeaseRecord,
    NodeRecord,
    StoreSettings,
    Strategy,
    UnavailableError,
    decode_event,
    encode_record,
    names,
)
from ringcast_wire.grpc import pb
from ringcast_wire.owner_records import State, encode_state

Bench = Any  # of conftest.py
Running = Any
Workers = Any

LEASE = encode_record(LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1))
LOADS: dict[MemberKind, ServiceLoad | AgentLoad] = {
    MemberKind.SERVICE: ServiceLoad(
        writes_per_s=0, outbox_events=0, outbox_age_s=0, waiting_fetches=0, open_calls=0, cpu=0
    ),
    MemberKind.AGENT: AgentLoad(groups=0, consumers=0, lag=0, cpu=0),
}
TERM = Term(Lead("a", 1), float("inf"))


@pytest.fixture
def next_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast_wire._common.versions.WIRE_VERSIONS", (1, 3))
    monkeypatch.setattr("ringcast_config_service.wire_pins.NEWEST_WIRE_VERSION", 3)
    monkeypatch.setattr("ringcast_config_service.nats.readers.NEWEST_WIRE_VERSION", 3)
    monkeypatch.setattr(wire_pins, "LOOK_S", 0.02)
    monkeypatch.setattr(handlers, "_STORE_AGE_S", 0.0)


# ---- the decision


@pytest.mark.usefixtures("next_build")
def test_a_pin_falls_at_once_and_rises_after_looks_that_agree() -> None:
    rises = Rises()
    all_of_them, some = Readers(3), Readers(3, complete=False)
    pins = [rises.decide("s", 1, all_of_them) for _ in range(LOOKS_TO_RISE)]
    assert pins == [1] * (LOOKS_TO_RISE - 1) + [3]
    assert [rises.decide("s", 3, found) for found in (all_of_them, some)] == [3, 3]
    assert rises.decide("s", 3, Readers(1, ("old",), complete=False)) == 1
    for interrupting in (some, Readers(1), Readers(2)):
        for found in (all_of_them,) * (LOOKS_TO_RISE - 1) + (interrupting, *(all_of_them,) * (LOOKS_TO_RISE - 1)):
            assert rises.decide("s", 1, found) == 1, "what stands between looks that agree, they begin again"
        assert rises.decide("s", 1, interrupting) == 1
    for _ in range(LOOKS_TO_RISE - 1):
        assert rises.decide("other", 1, all_of_them) == 1, "each store counts for itself"


def test_a_pin_does_not_rise_by_looks_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast_wire._common.versions.WIRE_VERSIONS", (1, 3, 4))
    assert LOOKS_TO_RISE == 3
    rises = Rises()
    assert [rises.decide("s", 1, Readers(reads)) for reads in (3, 3, 4, 3, 4, 4, 4)] == [1] * 6 + [4]


@pytest.mark.usefixtures("next_build")
def test_a_pin_of_a_newer_build_falls_to_what_this_one_knows() -> None:
    assert Rises().decide("s", 7, Readers(3)) == 3
    assert Rises().decide("s", 7, Readers(9, complete=False)) == 3


def test_of_processes_those_that_read_the_least_are_named() -> None:
    found = Readers(3).and_one("a", 3).and_one("b", 1).and_one("c", 1).and_one("d", 3)
    assert found == Readers(1, ("b", "c"))
    assert found.and_one("e", None) == Readers(1, ("b", "c"), complete=False)
    assert Readers(3, ("a",)).and_of(Readers(1, ("b",), complete=False)) == Readers(1, ("b",), complete=False)
    many = Readers(3)
    for number in range(99):
        many = many.and_one(f"w{number}", 1)
    assert many == Readers(1, ("w0", "w1", "w2", "w3", "w4"))


# ---- what writers do


@pytest.mark.usefixtures("next_build")
@pytest.mark.parametrize(("pin", "version"), [(1, 1), (3, 3), (2, 1), (9, 3)])
async def test_events_are_of_the_pinned_version(bench: Bench, pin: int, version: int) -> None:
    """And of none that this build does not know."""
    assert bench.store.wire_pin == 1
    await bench.repo.stores.pin_wire(await bench.lead(), "s", pin)
    bench.store = await bench.repo.stores.get_record("s")
    assert bench.store.wire_pin == pin
    await bench.write({"a": "1"})
    await bench.write({f"r{number}": "x" for number in range(200)})
    assert {event.wire_version for _, event in await bench.events()} == {version}


async def test_this_build_pins_every_store_to_the_first_version(bench: Bench) -> None:
    """It reads no other: where a newer one has pinned a store, and this one leads now, the pin falls at its first look,
    without a question to NATS."""
    lead = await bench.lead()
    await bench.repo.stores.pin_wire(lead, "s", 3)
    pins = WirePins(cast(Any, None), bench.repo.stores, None)
    task = asyncio.create_task(pins.keep(Term(lead, float("inf"))))

    async def has_fallen() -> bool:
        return bool((await bench.repo.stores.get_record("s")).wire_pin == 1)

    await until(has_fallen)
    task.cancel()
    await asyncio.wait({task})


# ---- what is read


class Stores:
    """The stores of a database that is there."""

    def __init__(self, *records: StoreRecord) -> None:
        self.records = {record.name: record for record in records}
        self.looks = 0

    async def store_records(self) -> list[StoreRecord]:
        self.looks += 1
        return list(self.records.values())

    async def pin_wire(self, lead: Lead, name: str, version: int) -> None:
        self.records[name] = replace(self.records[name], wire_pin=version)


def member(kind: MemberKind, member_id: str, wire: int) -> MemberRecord:
    return MemberRecord(
        kind=kind,
        id=member_id,
        address="h:1",
        host="h",
        pid=1,
        version="0",
        state=MemberState.ACTIVE,
        started_at_ms=1,
        reported_at_ms=1,
        load=LOADS[kind],
        wire=wire,
    )


@asynccontextmanager
async def memory(server: MemoryServer) -> AsyncIterator[MetadataStore]:
    yield MemoryStore(server)


@asynccontextmanager
async def keeping(stores: Stores, nc: Client, open_cluster: Callable[[], Any] | None) -> AsyncIterator[None]:
    pins = WirePins(nc.jetstream(), cast(Any, stores), open_cluster)
    task = asyncio.create_task(pins.keep(TERM))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def looked(stores: Stores) -> None:
    """Returns once what is there now has been looked at as often as it takes a pin to rise, and once more."""
    before = stores.looks
    await until(lambda: stores.looks > before + LOOKS_TO_RISE + 2)


@pytest.mark.usefixtures("next_build")
@pytest.mark.parametrize("kind", list(MemberKind))
async def test_services_and_agents_count_for_every_store(nats_url: str, kind: MemberKind) -> None:
    server = MemoryServer()
    stores = Stores(*(StoreRecord(name, StoreSettings(partition_count=8), 0, 1) for name in ("one", "two")))

    def pins() -> list[int]:
        return [record.wire_pin for record in stores.records.values()]

    async with memory(server) as cluster:
        key = member_key(kind, "old")
        at = await cluster.create(key, encode_member(member(kind, "old", 1)))
        await cluster.create(member_key(MemberKind.SERVICE, "new"), encode_member(member(MemberKind.SERVICE, "new", 3)))
        nc = await nats.connect(nats_url)
        async with keeping(stores, nc, lambda: memory(server)):
            await looked(stores)
            assert pins() == [1, 1]
            at = await cluster.put(key, b"{}", last=at)
            await looked(stores)
            assert pins() == [1, 1], "it can't be read, so it may read less"
            await cluster.delete(key, last=at)
            await until(lambda: pins() == [3, 3])
            at = await cluster.create(key, b"{}")
            await looked(stores)
            assert pins() == [3, 3]
            await cluster.put(key, encode_member(member(kind, "old", 1)), last=at)
            await until(lambda: pins() == [1, 1])
        await nc.close()


@pytest.mark.usefixtures("next_build")
async def test_a_pin_does_not_rise_where_the_cluster_can_not_be_read(nats_url: str) -> None:
    server = MemoryServer()
    stores = Stores(StoreRecord("one", StoreSettings(partition_count=8), 0, 1))
    away = True

    @asynccontextmanager
    async def open_cluster() -> AsyncIterator[MetadataStore]:
        if away:
            raise UnavailableError("away")
        async with memory(server) as cluster:
            yield cluster

    nc = await nats.connect(nats_url)
    async with keeping(stores, nc, open_cluster):
        await looked(stores)
        assert stores.records["one"].wire_pin == 1
        away = False
        await until(lambda: stores.records["one"].wire_pin == 3)
    await nc.close()


@pytest.mark.usefixtures("next_build")
async def test_workers_of_a_store_count_while_their_leases_live(workers: Workers) -> None:
    service, store = workers.service, workers.store
    await service.create(store)
    await service.create(f"{store}-b", strategy=pb.STRATEGY_STICKY)
    settings = StoreSettings(partition_count=8)
    sticky = StoreSettings(partition_count=8, strategy=Strategy.STICKY, lease_ttl_ms=10_000, call_bound_ms=1_000)
    both = StoreRecord(store, settings, 0, 1), StoreRecord(f"{store}-b", sticky, 0, 1)
    js = service.nc.jetstream()

    async def found() -> tuple[Readers, Readers]:
        read = await read_workers(js, both)
        return read[store], read[f"{store}-b"]

    async def says(name: str, wire: int) -> None:
        node = NodeRecord(slot=0, lease=name, incarnation="i", wire=wire)
        await workers.put(names.nodes_bucket(store), names.node_key("k", name), encode_record(node))
        state = State(lease=name, session=1, wire=wire)
        await workers.put(names.owners_bucket(f"{store}-b"), names.state_key("k", name), encode_state(state))

    assert await found() == (Readers(3), Readers(3))
    await says("w-old", 1)
    await says("w-new", 3)
    await workers.put(names.nodes_bucket(store), names.ended_key("w-new"), b'{"leases":[]}')
    await workers.put(names.nodes_bucket(store), names.slot_key("k", 0), b"no record of a worker")
    await workers.put(names.LEASES_BUCKET, "w-new", LEASE)
    assert await found() == (Readers(3, ("worker w-new",)),) * 2, "the other one is dead"
    await workers.put(names.owners_bucket(f"{store}-b"), names.session_key("w-old"), LEASE)
    under_an_agent = Readers(1, ("worker w-old",))
    assert await found() == (Readers(3, ("worker w-new",)), under_an_agent), "a session counts as a lease does"
    await workers.put(names.LEASES_BUCKET, "w-old", LEASE)
    assert await found() == (Readers(1, ("worker w-old",)),) * 2
    await workers.put(names.nodes_bucket(store), names.node_key("k", "bad"), b"{}")
    await workers.put(names.owners_bucket(f"{store}-b"), names.state_key("k", "bad"), b"{}")
    assert await found() == (Readers(1, ("worker w-old",), complete=False),) * 2


@pytest.mark.usefixtures("next_build")
async def test_what_nats_does_not_say_is_not_complete(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = StoreRecord("s", StoreSettings(partition_count=8), 0, 1)
    nc = await nats.connect(nats_url)
    await nc.close()
    assert await read_workers(nc.jetstream(), [store]) == {"s": Readers(3, complete=False)}

    async def leases_fail(js: Any, bucket: str, *words: Any, **more: Any) -> Any:
        if bucket == names.LEASES_BUCKET:
            raise TimeoutError
        return SimpleNamespace(entries={"k.w": (1, encode_record(NodeRecord(slot=0, lease="w", incarnation="i")))})

    monkeypatch.setattr("ringcast_config_service.nats.readers.read_newest", leases_fail)
    assert await read_workers(cast(Any, None), [store]) == {"s": Readers(3, complete=False)}


# ---- all of it


@pytest.mark.usefixtures("next_build")
async def test_a_store_is_pinned_to_what_all_of_its_workers_read(workers: Workers) -> None:
    service, store = workers.service, workers.store
    events = await service.nc.subscribe(names.notify_subject(store, "k", "*"))
    await service.create(store)

    async def pinned(version: int) -> None:
        async def is_so() -> bool:
            return bool((await service.stub.GetStore(pb.GetStoreRequest(name=store))).wire_pin == version)

        await until(is_so)
        await service.put(store, "a")
        event = decode_event((await events.next_msg(timeout=PATIENCE_S)).data)
        assert event.wire_version == version

    await pinned(3)
    await workers.register("old")
    await workers.put(names.LEASES_BUCKET, "old", LEASE)
    await pinned(1)
    await workers.leave("old")
    await pinned(3)
