"""What a dry wave asks and is answered, as bytes: what can't be read is refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from ringcast_wire import WIRE_VERSION, InvalidInputError, ProtocolError, Rollout, check_canary, names
from ringcast_wire import reports as wire

LABEL = "site=test"


def test_staged_rows_come_as_they_were_staged() -> None:
    request = wire.StagedRequest(WIRE_VERSION, 7, [0, 2, 5, 1], 1_000)
    assert wire.decode_staged_request(wire.encode_staged(request)) == request
    rows = [wire.StagedRow(0, "a", "1", 3, {"x": "y"}), wire.StagedRow(5, "b", None, 0)]
    reply = wire.StagedReply(WIRE_VERSION, rows, 1_002)
    assert wire.decode_staged_reply(wire.encode_staged(reply)) == reply
    assert names.parse_fetch_subject(names.fetch_subject("s", "k", names.FETCH_STAGED)).what == names.FETCH_STAGED


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "can't be read"),
        (b"nonsense", "can't be read"),
        (msgspec.msgpack.encode([WIRE_VERSION, 0, []]), "can't be read"),
        (msgspec.msgpack.encode([WIRE_VERSION, 1, [], -1]), "can't be read"),
        (msgspec.msgpack.encode([WIRE_VERSION, 1, [0] * 4_097]), "can't be read"),
        (msgspec.msgpack.encode([WIRE_VERSION, 1, [0]]), "must be pairs"),
        (msgspec.msgpack.encode([WIRE_VERSION, 1, [4_095, 2]]), "2 partitions from 4095"),
        (msgspec.msgpack.encode([WIRE_VERSION + 1, 1, []]), "has wire version"),
    ],
)
def test_a_request_for_staged_rows_that_is_none_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        wire.decode_staged_request(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        msgspec.msgpack.encode([WIRE_VERSION, [[4_096, "a", "1", 1]], 0]),
        msgspec.msgpack.encode([WIRE_VERSION, [[0, "a", "1", -1]], 0]),
        msgspec.msgpack.encode([WIRE_VERSION + 1, [], 0]),
    ],
)
def test_staged_rows_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_staged_reply(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: wire.DryWaveRequest("0" * 15, 1, LABEL, []),
        lambda: wire.DryWaveRequest("0" * 16, 0, LABEL, []),
        lambda: wire.DryWaveRequest("0" * 16, 1, "site", []),
        lambda: wire.DryWaveRequest("0" * 16, 1, LABEL, [3]),
        lambda: wire.DryWaveRequest("0" * 16, 1, LABEL, [3, 0]),
    ],
)
def test_a_request_for_a_dry_wave_that_is_none_is_refused(make: Callable[[], wire.DryWaveRequest]) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_report_request(wire.encode_report(wire.ReportRequest(WIRE_VERSION, "0" * 16, dry_wave=make())))


def test_the_place_of_a_dry_wave_is_one_more_0() -> None:
    assert check_canary(LABEL, [10, 100], dry_wave=True) == (0, 0, 10, 100)
    assert check_canary(LABEL, [10, 100]) == (0, 10, 100)
    with pytest.raises(InvalidInputError, match="dry_wave needs a canary: its workers judge the rows"):
        check_canary("", [10, 100], dry_wave=True)


def test_rows_that_are_laid_over_are_asked_for_and_come_with_the_state_of_their_release() -> None:
    request = wire.StagedRequest(WIRE_VERSION, 7, [], 0, provisional=True)
    assert wire.decode_staged_request(wire.encode_staged(request)) == request
    reply = wire.StagedReply(WIRE_VERSION, [], 0, "undone")
    assert wire.decode_staged_reply(wire.encode_staged(reply)) == reply
    of_before = msgspec.msgpack.encode([WIRE_VERSION, 7, [0, 2], 0])
    assert not wire.decode_staged_request(of_before).provisional
    asked = wire.ReportRequest(WIRE_VERSION, "0" * 16, provisional=wire.ProvisionalRequest(7, LABEL, again=True))
    assert wire.decode_report_request(wire.encode_report(asked)) == asked
    with pytest.raises(ProtocolError):
        wire.decode_report_request(
            wire.encode_report(wire.ReportRequest(WIRE_VERSION, "0" * 16, provisional=wire.ProvisionalRequest(7, "x")))
        )


def test_a_release_is_provisional_in_front_where_its_canary_has_no_partitions() -> None:
    assert Rollout((0, 10, 100), (0, 1, 8), canary=LABEL).provisional
    assert not Rollout((0, 10, 100), (1, 2, 8), canary=LABEL).provisional
    assert not Rollout((10, 100), (1, 8)).provisional
