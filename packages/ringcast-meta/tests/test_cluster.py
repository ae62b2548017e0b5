"""Processes say that they are there, hear what is wanted, and are read with their age."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from ringcast_meta import LocalCache, MemoryServer, MemoryStore, MetadataStore
from ringcast_meta.cluster import (
    AgentLoad,
    MemberKind,
    MemberRecord,
    MemberReport,
    MemberState,
    Presence,
    ServiceLoad,
    decode_member,
    encode_member,
    find_services,
    forget_wishes,
    is_member_address,
    member_key,
    member_named,
    members_of,
    service_addresses,
    want_active,
    want_drain,
    wish_key,
)
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import InvalidInputError, ProtocolError

LOADS = {
    MemberKind.SERVICE: ServiceLoad(
        writes_per_s=1.5, outbox_events=2, outbox_age_s=0.5, waiting_fetches=3, open_calls=4, cpu=0.25
    ),
    MemberKind.AGENT: AgentLoad(groups=1, consumers=2, lag=3, cpu=0.5),
}


def record(member_id: str = "a", kind: MemberKind = MemberKind.SERVICE, **more: object) -> MemberRecord:
    words = {
        "kind": kind,
        "id": member_id,
        "address": f"{member_id}:7420",
        "host": "here",
        "pid": 7,
        "version": "0.1.0",
        "state": MemberState.ACTIVE,
        "started_at_ms": int(time.time() * 1000) - 60_000,
        "reported_at_ms": int(time.time() * 1000),
        "load": LOADS[kind],
    }
    return MemberRecord(**{**words, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", list(MemberKind))
def test_a_record_is_read_as_it_was_written(kind: MemberKind) -> None:
    said = record(kind=kind)
    assert decode_member(member_key(kind, "a"), encode_member(said)) == said


def test_a_process_says_which_versions_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a build that does not say so reads the first alone."""
    monkeypatch.setattr("ringcast_meta._report.NEWEST_WIRE_VERSION", 3)
    report = MemberReport(
        MemberKind.AGENT,
        "a",
        "0.2.0",
        addresses=lambda: {"grpc": "a:7420"},
        state=lambda: MemberState.ACTIVE,
        load=lambda past_s, cpu: AgentLoad(groups=0, consumers=0, lag=0, cpu=cpu),
    )
    said = encode_member(report())
    assert decode_member("agents.a", said).wire == 3
    older = {name: value for name, value in msgspec.json.decode(said).items() if name != "wire"}
    assert decode_member("agents.a", msgspec.json.encode(older)).wire == 1


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"\xff", "the record can't be read"),
        (b"{}", "the record can't be read: Object missing required field `format`"),
        (b'{"format": 2, "whatever": 1}', "the record has format 2: this build reads up to 1"),
        (b" " * 4097, "the record has 4097 bytes: at most 4096 are allowed"),
        (encode_member(record("b")), "the record is of service 'b', which belongs elsewhere"),
        (msgspec.json.encode(record(pid=-1)), "the record can't be read: Expected `int` >= 0"),
    ],
)
def test_what_is_no_record_is_one_sentence(value: bytes, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        decode_member("services.a", value)


@pytest.mark.parametrize("address", ["a:1", "tls://a.example.org:65535", "127.0.0.1:7420", "tls://[fd00::1]:443"])
def test_an_address_that_can_be_called(address: str) -> None:
    assert is_member_address(address)
    assert decode_member("services.a", encode_member(record(address=address))).address == address


@pytest.mark.parametrize(
    "address",
    ["", "a", "a:0", "a:65536", "a:", ":1", "fe80::1:7420", "a:1,b:2", "u:pw@a:1", "http://a:1", "a:1\n", "\x1b[1m:1"],
)
async def test_one_record_without_an_address_keeps_nobody_from_the_others(address: str) -> None:
    store = MemoryStore()
    await store.create("services.a", encode_member(record("a", address=address)))
    await store.create("services.b", encode_member(record("b")))
    assert await find_services(store) == ["b:7420"]
    async with LocalCache(store) as cache:
        await cache.wait_complete(PATIENCE_S)
        bad, _ = members_of(cache.entries())
    assert (bad.record, bad.problem) == (None, "the record has no address that can be called: HOST:PORT is expected")


def test_a_record_that_is_too_large_is_not_written() -> None:
    with pytest.raises(InvalidInputError, match="at most 4096 are allowed"):
        encode_member(record(address="x" * 5000))


@asynccontextmanager
async def present(
    store: MetadataStore, heard: list[bool], member_id: str = "a", *, one_life: bool = False, pid: int = 7
) -> AsyncIterator[Presence]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[MetadataStore]:
        yield store

    ready = asyncio.Event()
    ready.set()
    presence = Presence(
        opened,
        MemberKind.SERVICE,
        member_id,
        report=lambda: record(
            member_id,
            pid=pid,
            started_at_ms=pid,
            state=MemberState.DRAINED if heard and heard[-1] else MemberState.ACTIVE,
        ),
        on_wish=heard.append,
        one_life=one_life,
    )
    running = asyncio.create_task(presence.run(ready))
    try:
        yield presence
    finally:
        await presence.stop()
        await running


async def test_a_process_hears_what_is_wanted_and_says_what_it_does() -> None:
    store, heard = MemoryStore(), list[bool]()

    def states() -> list[str]:
        return [str(each.record.state) for each in members_of(cache.entries()) if each.record]

    async with LocalCache(store) as cache:
        async with present(store, heard, one_life=True) as presence:
            await cache.wait_until(lambda: states() == ["active"], PATIENCE_S)
            assert service_addresses(cache.entries()) == await find_services(store) == ["a:7420"]
            assert await want_drain(store, MemberKind.SERVICE, "a", "for the upgrade")
            assert await find_services(store) == []
            assert not await want_drain(store, MemberKind.SERVICE, "a")
            presence.changed()
            await cache.wait_until(lambda: states() == ["drained"], PATIENCE_S)
            assert service_addresses(cache.entries()) == []
            assert member_named(members_of(cache.entries()), "a").drain_wanted
            assert await want_active(store, MemberKind.SERVICE, "a")
            assert not await want_active(store, MemberKind.SERVICE, "a")
            presence.changed()
            await cache.wait_until(lambda: states() == ["active"], PATIENCE_S)
            assert heard == [True, False]
            await want_drain(store, MemberKind.SERVICE, "a")
        # Its record goes with it, and the wish too: nobody will have this id again.
        await cache.wait_until(lambda: not cache.entries(), PATIENCE_S)


async def test_of_two_processes_with_one_id_the_later_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()

    def pids() -> list[int]:
        return [each.record.pid for each in members_of(cache.entries()) if each.record]

    async with LocalCache(store) as cache, present(store, [], pid=1) as first:
        await cache.wait_until(lambda: pids() == [1], PATIENCE_S)
        async with present(store, [], pid=2) as second:
            await cache.wait_until(lambda: pids() == [2], PATIENCE_S)
            first.changed()
            await until(lambda: "event=cluster.id_taken key=services.a" in caplog.text)
            first.changed()
            second.changed()
            await cache.wait_until(lambda: pids() == [2], PATIENCE_S)
            assert caplog.text.count("cluster.id_taken") == 1
        first.changed()
        await cache.wait_until(lambda: pids() == [1], PATIENCE_S)


async def test_a_wish_is_heard_before_the_first_report() -> None:
    store, heard = MemoryStore(), list[bool]()
    await want_drain(store, MemberKind.SERVICE, "a")
    async with LocalCache(store) as cache:
        async with present(store, heard):
            await cache.wait_until(lambda: len(cache.entries()) == 2, PATIENCE_S)
            (member,) = members_of(cache.entries())
            assert member.record is not None
            assert member.record.state is MemberState.DRAINED
        await cache.wait_until(lambda: set(cache.entries()) == {wish_key(MemberKind.SERVICE, "a")}, PATIENCE_S)
        await forget_wishes(store, cache.entries())
        await cache.wait_until(lambda: not cache.entries(), PATIENCE_S)


async def test_a_report_grows_old_and_is_then_no_word_of_how_things_are() -> None:
    store = MemoryStore(MemoryServer())
    await store.create("services.a", encode_member(record("a", reported_at_ms=int(time.time() * 1000) - 30_000)))
    await store.create("services.b", encode_member(record("b")))
    await store.create("services.c", b'{"format": 9}')
    await store.create("agents.a", encode_member(record("a", MemberKind.AGENT)))
    async with LocalCache(store) as cache:
        await cache.wait_complete(PATIENCE_S)
        members = members_of(cache.entries())
        assert [(each.kind, each.id, each.stale) for each in members] == [
            ("service", "a", True),
            ("service", "b", False),
            ("service", "c", True),
            ("agent", "a", False),
        ]
        assert 29 < members[0].report_age_s < 30 + PATIENCE_S
        assert members[2].problem == "the record has format 9: this build reads up to 1"
        assert service_addresses(cache.entries()) == ["b:7420", "a:7420"]
    with pytest.raises(InvalidInputError, match="no process 'x' is there: there are a, b, c, a"):
        member_named(members, "x")
    with pytest.raises(InvalidInputError, match="id 'a' is that of a service and of an agent"):
        member_named(members, "a")
