from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_wire import (
    MIGRATING_WIRE_VERSION,
    WIRE_VERSION,
    BatchRequest,
    Change,
    Event,
    FetchReply,
    HeadsReply,
    LeaseRecord,
    Migration,
    MismatchError,
    Mode,
    NodeRecord,
    PartitionRequest,
    PartitionRows,
    ProtocolError,
    Row,
    SlotClaim,
    Stage,
    StoreSettings,
    Strategy,
    decode_batch_request,
    decode_event,
    decode_fetch_reply,
    decode_heads_reply,
    decode_migration,
    decode_partition_request,
    decode_record,
    encode,
    encode_migration,
    encode_record,
)

REVISIONS = st.integers(0, 2**62)
IDS = st.text(min_size=1, max_size=20)
METADATA = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
ROWS = st.builds(Row, IDS, st.text(max_size=50), REVISIONS, st.booleans(), METADATA)


@st.composite
def events(draw: st.DrawFn) -> Event:
    prev = draw(REVISIONS)
    count = draw(st.integers(1, 20))
    changes = [
        Change(draw(IDS), prev + 1 + index, draw(st.booleans()), draw(st.none() | st.text(max_size=20)), draw(METADATA))
        for index in range(count)
    ]
    return Event(WIRE_VERSION, prev, prev + count, draw(REVISIONS), draw(st.sampled_from([changes, None])), draw(IDS))


@given(events())
def test_events_survive_the_wire(event: Event) -> None:
    assert decode_event(encode(event)) == event


@given(st.lists(st.builds(PartitionRows, st.integers(0, 4095), REVISIONS, st.booleans(), st.lists(ROWS, max_size=5))))
def test_fetch_replies_survive_the_wire(partitions: list[PartitionRows]) -> None:
    reply = FetchReply(WIRE_VERSION, partitions, "h1")
    assert decode_fetch_reply(encode(reply)) == reply


def test_requests_and_heads_survive_the_wire() -> None:
    assert decode_partition_request(encode(PartitionRequest(since=7))) == PartitionRequest(since=7)
    assert decode_partition_request(b"") == PartitionRequest(since=None)
    batch = BatchRequest(WIRE_VERSION, ["a", "é"])
    assert decode_batch_request(encode(batch)) == batch
    heads = HeadsReply(WIRE_VERSION, [0, 5, 2**60], "h1", [0, 3, 1])
    assert decode_heads_reply(encode(heads)) == heads


@pytest.mark.parametrize(("prev", "rev"), [(3, 3), (4, 3), (-1, 2)])
def test_an_event_whose_revisions_contradict_each_other_is_refused(prev: int, rev: int) -> None:
    with pytest.raises(ProtocolError, match="prev must be below rev"):
        decode_event(encode(Event(WIRE_VERSION, prev, rev, 0, None)))


@pytest.mark.parametrize("version", [2, 5])
def test_an_event_that_lists_a_version_outside_its_own_is_refused(version: int) -> None:
    with pytest.raises(ProtocolError, match="outside"):
        decode_event(encode(Event(WIRE_VERSION, 2, 4, 0, [Change("a", version)])))


def test_another_wire_version_is_named() -> None:
    with pytest.raises(ProtocolError, match="heads reply has wire version 9: this build speaks 1"):
        decode_heads_reply(encode(HeadsReply(9, [])))


def test_a_batch_request_has_1_to_1000_ids() -> None:
    for count in (0, 1001):
        with pytest.raises(ProtocolError, match=f"{count} entries: 1 to 1000"):
            decode_batch_request(encode(BatchRequest(WIRE_VERSION, ["x"] * count)))
    assert len(decode_batch_request(encode(BatchRequest(WIRE_VERSION, ["x"] * 1000))).row_ids) == 1000


def test_a_negative_since_is_refused() -> None:
    with pytest.raises(ProtocolError, match="since -1"):
        decode_partition_request(encode(PartitionRequest(since=-1)))


def test_fields_appended_by_a_later_build_are_ignored() -> None:
    fields = [WIRE_VERSION, 0, 1, 99, [["a", 1, False, "v", None, "new"]], "h", 7, "new"]
    event = Event(WIRE_VERSION, 0, 1, 99, [Change("a", 1, False, "v")], "h", 7)
    assert decode_event(msgspec.msgpack.encode(fields)) == event
    before = decode_event(msgspec.msgpack.encode(fields[:6]))
    assert (before.history, before.release) == ("h", 0), "a build of before has written it, which knows of no release"


def test_mutated_messages_are_refused_or_valid_never_a_crash() -> None:
    """10,000 seeded mutations of each message: a ProtocolError, or a message that keeps its invariants."""
    rng = random.Random(42)
    rows = [Row("a", "v", 3), Row("b", "", 4, True), Row("c", "w", 5, False, {"k": "v"})]
    cases: list[tuple[Callable[[bytes], Any], bytes]] = [
        (decode_event, encode(Event(WIRE_VERSION, 2, 5, 99, [Change("a", 3, False, "v"), Change("b", 5, True)]))),
        (decode_partition_request, encode(PartitionRequest(since=12))),
        (decode_batch_request, encode(BatchRequest(WIRE_VERSION, ["a", "b", "c"]))),
        (decode_fetch_reply, encode(FetchReply(WIRE_VERSION, [PartitionRows(1, 5, True, rows)]))),
        (decode_heads_reply, encode(HeadsReply(WIRE_VERSION, [1, 2, 3]))),
    ]
    refused = 0
    for decode, good in cases:
        for _ in range(10_000):
            data = _mutate(rng, good)
            try:
                message = decode(data)
            except ProtocolError:
                refused += 1
            else:
                assert message.wire_version == WIRE_VERSION
    assert refused > 10_000


def _mutate(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(4)
        at = rng.randrange(len(data)) if data else 0
        if kind == 0 and data:
            data[at] = rng.randrange(256)
        elif kind == 1 and data:
            del data[at : at + rng.randint(1, 4)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 4))
        else:
            data = data[:at]
    return bytes(data)


def test_times_of_exclusive_ownership_are_entries_of_the_metadata_only_where_a_store_has_them() -> None:
    without = StoreSettings(partition_count=256)
    assert not StoreSettings.OPTIONAL & without.to_kv().keys()
    assert StoreSettings.from_kv(without.to_kv()) == without
    times = StoreSettings(partition_count=256, strategy=Strategy.STICKY, lease_ttl_ms=10_000, call_bound_ms=1_000)
    assert times.to_kv()["lease_ttl_ms"] == b"10000"
    assert StoreSettings.from_kv(times.to_kv()) == times
    order = list(times.to_kv())
    assert set(order[:2]) == StoreSettings.OPTIONAL, "a worker that finds what every store has finds the times too"


@pytest.mark.parametrize(
    ("lease_ttl_ms", "call_bound_ms", "sentence"),
    [
        (None, 1_000, "lacks lease_ttl_ms, as its strategy is sticky"),
        (None, None, "lacks call_bound_ms, lease_ttl_ms, as"),
        (99, 50, "can't be used: lease_ttl_ms 99 is out of range: 100 to 3600000 ms are allowed"),
        (10_000, 5_001, "can't be used: call_bound_ms 5001 is out of range: 250 to 5000 ms are allowed with a lease"),
    ],
)
def test_a_store_of_exclusive_ownership_has_times_that_can_be(
    lease_ttl_ms: int | None, call_bound_ms: int | None, sentence: str
) -> None:
    settings = StoreSettings(
        partition_count=256, strategy=Strategy.STICKY, lease_ttl_ms=lease_ttl_ms, call_bound_ms=call_bound_ms
    )
    with pytest.raises(ProtocolError, match=sentence):
        StoreSettings.from_kv(settings.to_kv())


def test_settings_go_through_the_metadata_bucket() -> None:
    settings = StoreSettings(partition_count=256, mode=Mode.FULL, strategy=Strategy.RING)
    assert StoreSettings.from_kv(settings.to_kv()) == settings
    assert settings.to_kv()["partition_count"] == b"256"


def test_a_store_of_another_hash_or_wire_version_is_refused() -> None:
    entries = StoreSettings(partition_count=4).to_kv()
    with pytest.raises(MismatchError, match="hash mismatch: the store has crc32, xxh64-42 was requested"):
        StoreSettings.from_kv({**entries, "hash": b'"crc32"'})
    with pytest.raises(MismatchError, match="wire_version mismatch: the store has 3, 1 was requested"):
        StoreSettings.from_kv({**entries, "wire_version": b"3"})


def test_a_store_that_migrates_has_the_settings_of_one_that_does_not() -> None:
    entries = StoreSettings(partition_count=4).to_kv()
    migrating = {**entries, "wire_version": str(MIGRATING_WIRE_VERSION).encode()}
    assert StoreSettings.from_kv(migrating) == StoreSettings.from_kv(entries)


def test_a_step_of_a_migration_is_read_as_it_was_written() -> None:
    for stage in Stage:
        step = Migration(stage=stage, number=7, lease_ttl_ms=10_000, call_bound_ms=1_000)
        assert decode_migration(encode_migration(step)) == step


@pytest.mark.parametrize(
    "changed", [{"stage": "shade"}, {"stage": 1}, {"number": 0}, {"number": 2**53}, {"call_bound_ms": 9_000}]
)
def test_what_is_no_step_of_a_migration_is_refused(changed: dict[str, object]) -> None:
    step = {"stage": "shadow", "number": 7, "lease_ttl_ms": 10_000, "call_bound_ms": 1_000}
    with pytest.raises(ProtocolError, match="the step of a migration can't be read"):
        decode_migration(msgspec.json.encode({**step, **changed}))
    with pytest.raises(ProtocolError, match="takes 1025 bytes"):
        decode_migration(b" " * 1025)


def test_a_strategy_that_this_build_does_not_know_is_refused_before_other_settings_are_read() -> None:
    entries = {**StoreSettings(partition_count=4).to_kv(), "load_factor": b'{"of": "a newer kind"}'}
    with pytest.raises(
        MismatchError, match="the store has the strategy 'newer', which this build does not know: "
    ) as no:
        StoreSettings.from_kv({**entries, "strategy": b'"newer"'})
    assert no.value.field == "strategy"
    assert str(no.value).endswith(f"it knows {', '.join(Strategy)}")
    with pytest.raises(MismatchError, match=f"'{'x' * 64}'"):
        StoreSettings.from_kv({**entries, "strategy": b'"' + b"x" * 1000 + b'"'})
    with pytest.raises(ProtocolError, match="can't be read"):
        StoreSettings.from_kv({**entries, "strategy": b"[1]"})


def test_incomplete_or_damaged_metadata_is_refused() -> None:
    entries = StoreSettings(partition_count=4).to_kv()
    with pytest.raises(ProtocolError, match="lacks hash"):
        StoreSettings.from_kv({name: value for name, value in entries.items() if name != "hash"})
    for damaged in (b"", b"{", b'"x"', b"[1]"):
        with pytest.raises(ProtocolError, match="can't be read"):
            StoreSettings.from_kv({**entries, "partition_count": damaged})


@pytest.mark.parametrize(
    "lease", ["", ">", "*", "a.>", "a.b.c", "a.", ".a", "a b", "a\n", "é", "x" * 65, "a." + "x" * 65]
)
def test_a_record_that_names_what_can_be_no_lease_is_refused(lease: str) -> None:
    for record in (NodeRecord(slot=0, lease=lease, incarnation="i"), SlotClaim(worker_id="w", lease=lease)):
        with pytest.raises(ProtocolError, match="lease"):
            decode_record(encode_record(record), type(record))


@pytest.mark.parametrize("lease", ["w", "A_b-9", "x" * 64, "x" * 64 + "." + "y" * 64])
def test_a_record_names_the_lease_of_a_worker_or_of_a_host(lease: str) -> None:
    for record in (NodeRecord(slot=0, lease=lease, incarnation="i"), SlotClaim(worker_id="w", lease=lease)):
        assert decode_record(encode_record(record), type(record)) == record


def test_a_mismatch_names_both_values() -> None:
    settings = StoreSettings(partition_count=256)
    settings.require(partition_count=256, mode=None)
    with pytest.raises(MismatchError, match="partition_count mismatch: the store has 256, 128 was requested"):
        settings.require(partition_count=128)
    with pytest.raises(MismatchError, match="mode mismatch: the store has PARTITIONED, FULL was requested"):
        settings.require(mode=Mode.FULL)


def test_records_are_json_and_damaged_ones_are_refused() -> None:
    node = NodeRecord(slot=3, lease="w1", incarnation="i")
    assert decode_record(encode_record(node), NodeRecord) == node
    assert encode_record(node).startswith(b"{")
    with pytest.raises(ProtocolError, match="LeaseRecord of 2 bytes"):
        decode_record(b"{}", LeaseRecord)
