from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from ringcast_wire import (
    MIGRATING_WIRE_VERSION,
    NEWEST_WIRE_VERSION,
    WIRE_VERSION,
    WIRE_VERSIONS,
    BatchRequest,
    Event,
    FetchReply,
    FetchReplyWriter,
    FullRequest,
    HeadsReply,
    HeadsRequest,
    NodeRecord,
    PartitionRequest,
    ProtocolError,
    ReplayAnswer,
    ReplayOutcome,
    ReplayRequest,
    batch_payload,
    decode_batch_request,
    decode_event,
    decode_fetch_reply,
    decode_full_request,
    decode_heads_reply,
    decode_heads_request,
    decode_partition_request,
    decode_record,
    decode_replay_answer,
    decode_replay_request,
    encode,
    encode_replay,
    full_payload,
    heads_payload,
    partition_payload,
    version_for,
)
from ringcast_wire import reports as wire
from ringcast_wire.owner_records import decode_state
from ringcast_wire.reports import WorkerKind

NEXT = 3
"""The version that a next build reads beside this one's."""
_ID = "0" * 32

MESSAGES: list[tuple[str, Callable[[bytes], Any], Callable[[int], bytes]]] = [
    ("event", decode_event, lambda version: encode(Event(version, 0, 1, 0, None))),
    ("partition request", decode_partition_request, lambda version: encode(PartitionRequest(version))),
    ("heads request", decode_heads_request, lambda version: encode(HeadsRequest(version))),
    ("batch request", decode_batch_request, lambda version: encode(BatchRequest(version, ["a"]))),
    ("request for a whole key", decode_full_request, lambda version: encode(FullRequest(version))),
    ("fetch reply", decode_fetch_reply, lambda version: encode(FetchReply(version, []))),
    ("heads reply", decode_heads_reply, lambda version: encode(HeadsReply(version, []))),
    (
        "request for a report",
        wire.decode_report_request,
        lambda version: wire.encode_report(wire.ReportRequest(version, "0" * 16)),
    ),
    (
        "report",
        wire.decode_report,
        lambda version: wire.encode_report(
            wire.WorkerReport(version, "0" * 16, "i", "0", 1, WorkerKind.APPLICATION, "", "h", [], [])
        ),
    ),
    (
        "request for staged rows",
        wire.decode_staged_request,
        lambda version: wire.encode_staged(wire.StagedRequest(version, 1, [])),
    ),
    ("staged rows", wire.decode_staged_reply, lambda version: wire.encode_staged(wire.StagedReply(version, []))),
    (
        "request to replay",
        decode_replay_request,
        lambda version: encode_replay(ReplayRequest(version, _ID, 0, "a", 0, "", "", "", 0, 0)),
    ),
    (
        "answer to a replay",
        decode_replay_answer,
        lambda version: encode_replay(ReplayAnswer(version, _ID, ReplayOutcome.HANDLED)),
    ),
]


@pytest.fixture
def next_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is read as by a build that knows one version more."""
    monkeypatch.setattr("ringcast_wire._common.versions.WIRE_VERSIONS", (WIRE_VERSION, NEXT))


def test_no_message_has_the_version_of_the_settings_of_a_store_that_migrates() -> None:
    assert MIGRATING_WIRE_VERSION not in WIRE_VERSIONS
    assert list(WIRE_VERSIONS) == sorted(set(WIRE_VERSIONS))
    assert (WIRE_VERSIONS[0], WIRE_VERSIONS[-1]) == (WIRE_VERSION, NEWEST_WIRE_VERSION)


@pytest.mark.parametrize(("what", "decode", "make"), MESSAGES, ids=[what for what, *_ in MESSAGES])
def test_a_message_of_a_version_that_is_not_read_is_named(
    what: str, decode: Callable[[bytes], Any], make: Callable[[int], bytes]
) -> None:
    for version, todo in ((0, ""), (2, "; upgrade it"), (NEXT, "; upgrade it")):
        with pytest.raises(ProtocolError, match=f"^{what} has wire version {version}: this build speaks 1{todo}$"):
            decode(make(version))
    of_another_form = msgspec.msgpack.encode([NEXT, {"rows": "in"}, "a", ["form", "of its own"]])
    with pytest.raises(ProtocolError, match=f"^{what} has wire version {NEXT}: this build speaks 1; upgrade it$"):
        decode(of_another_form)
    assert decode(make(WIRE_VERSION)).wire_version == WIRE_VERSION


@pytest.mark.usefixtures("next_build")
@pytest.mark.parametrize(("what", "decode", "make"), MESSAGES, ids=[what for what, *_ in MESSAGES])
def test_a_build_reads_every_version_of_its_range(
    what: str, decode: Callable[[bytes], Any], make: Callable[[int], bytes]
) -> None:
    assert [decode(make(version)).wire_version for version in (WIRE_VERSION, NEXT)] == [WIRE_VERSION, NEXT]
    for version, todo in ((2, ""), (4, "; upgrade it")):
        with pytest.raises(
            ProtocolError, match=f"^{what} has wire version {version}: this build speaks 1 and 3{todo}$"
        ):
            decode(make(version))


@pytest.mark.usefixtures("next_build")
def test_an_answer_is_of_the_newest_version_that_its_asker_reads() -> None:
    assert [version_for(reads) for reads in (1, 2, NEXT, 9)] == [1, 1, NEXT, NEXT]
    for version in (WIRE_VERSION, NEXT):
        writer = FetchReplyWriter(1, version)
        writer.begin(3, 7, True)
        assert decode_fetch_reply(writer.finish("h")).wire_version == version


def test_a_request_of_a_build_that_does_not_say_what_it_reads_is_answered_in_the_first_version() -> None:
    older: list[tuple[Callable[[bytes], Any], list[Any]]] = [
        (decode_partition_request, [WIRE_VERSION, 7, "h", None]),
        (decode_heads_request, [WIRE_VERSION, 5]),
        (decode_batch_request, [WIRE_VERSION, ["a"]]),
        (wire.decode_report_request, [WIRE_VERSION, "0" * 16, "", [], None]),
        (wire.decode_staged_request, [WIRE_VERSION, 1, [], 0]),
        (decode_replay_request, [WIRE_VERSION, _ID, 0, "a", 0, "", "", "", 0, 0]),
    ]
    for decode, fields in older:
        assert decode(msgspec.msgpack.encode(fields)).reads == WIRE_VERSION
    for decode in (decode_partition_request, decode_heads_request, decode_full_request):
        assert decode(b"").reads == WIRE_VERSION
    with pytest.raises(ProtocolError, match="can't be read"):
        decode_heads_request(msgspec.msgpack.encode([WIRE_VERSION, None, 0]))


def test_a_fetch_says_what_its_asker_reads() -> None:
    """What reads the first version alone asks as builds of before do, which take no body with a whole key."""
    assert (partition_payload(reads=1), heads_payload(reads=1), full_payload(reads=1)) == (b"", b"", b"")
    assert decode_partition_request(partition_payload(5, "h", reads=NEXT)) == PartitionRequest(1, 5, "h", None, NEXT)
    assert decode_partition_request(partition_payload(as_of=5, history="h", reads=1)).as_of == 5
    assert decode_partition_request(partition_payload(reads=NEXT)) == PartitionRequest(reads=NEXT)
    assert decode_heads_request(heads_payload(reads=NEXT)).reads == NEXT
    assert decode_heads_request(heads_payload(99, reads=1)) == HeadsRequest(at_ms=99)
    assert decode_batch_request(batch_payload(["a"], reads=NEXT)) == BatchRequest(1, ["a"], NEXT)
    assert decode_full_request(full_payload(reads=NEXT)).reads == NEXT


def test_a_worker_of_a_build_that_does_not_say_what_it_reads_reads_the_first_version() -> None:
    assert decode_record(b'{"slot":0,"lease":"w","incarnation":"i"}', NodeRecord).wire == WIRE_VERSION
    assert decode_record(b'{"slot":0,"lease":"w","incarnation":"i","wire":3}', NodeRecord).wire == NEXT
    assert decode_state(b'{"lease":"w","session":1}').wire == WIRE_VERSION
    assert decode_state(b'{"lease":"w","session":1,"wire":3}').wire == NEXT
