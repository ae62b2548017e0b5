"""The dry wave of a release: code of the application judges what is staged before a row of it is published.

The request travels in that for a report, and so does the answer. The staged rows are fetched, page by page.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from ringcast_wire._common.errors import ProtocolError
from ringcast_wire._common.labels import LABEL_PATTERN
from ringcast_wire._common.limits import MAX_PARTITIONS, MAX_ROW_ID_BYTES
from ringcast_wire._common.versions import WIRE_VERSION, Reads, check_version, check_version_of

MAX_DRY_REFUSALS: Final = 8
"""Rows that an answer names of those that were refused."""
MAX_DRY_REASON: Final = 128
"""Characters of the reason of each of them."""

RandomId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
Spans = Annotated[list[int], msgspec.Meta(max_length=MAX_PARTITIONS)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Place = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTITIONS)]
_Reason = Annotated[str, msgspec.Meta(max_length=MAX_DRY_REASON)]


class DryWaveState(StrEnum):
    """How far a worker is with a dry wave."""

    UNABLE = "unable"
    """Its application has no ``validate``."""
    JUDGING = "judging"
    JUDGED = "judged"
    FAILED = "failed"
    """It has not got the rows."""


class DryWaveRequest(msgspec.Struct, frozen=True, array_like=True):
    """Has the workers with ``label`` judge what ``release`` has staged for those of their partitions that are in
    ``spans``. The first request with an ``id`` begins it, the next ones ask how far it is."""

    id: RandomId
    release: _Number
    label: Annotated[str, msgspec.Meta(pattern=LABEL_PATTERN)]
    spans: Spans


class DryRefusal(msgspec.Struct, frozen=True, array_like=True):
    """A row that the application would not take."""

    row_id: Annotated[str, msgspec.Meta(max_length=MAX_ROW_ID_BYTES)]
    reason: _Reason


class DryWaveReport(msgspec.Struct, frozen=True, array_like=True):
    """How far a worker is: ``rows`` of the partitions ``spans`` are judged, and ``refused`` of them refused.

    ``spans``: those that it owned when it began, and owns still.
    """

    id: RandomId
    state: DryWaveState
    spans: Spans = []
    rows: _Count = 0
    refused: _Count = 0
    refusals: Annotated[list[DryRefusal], msgspec.Meta(max_length=MAX_DRY_REFUSALS)] = []
    why: Annotated[str, msgspec.Meta(max_length=MAX_DRY_REASON)] = ""
    """Why it has not got the rows."""


class StagedRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for rows of a key that ``release`` has staged for the partitions ``spans``: those behind the place
    ``after``. ``provisional``: to lay them over, while it is published behind a canary; without ``spans`` only whether
    it still is."""

    wire_version: int
    release: _Number
    spans: Spans
    after: _Place = 0
    reads: Reads = WIRE_VERSION
    provisional: bool = False


class StagedRow(msgspec.Struct, frozen=True, array_like=True):
    """A staged row. ``value``: ``None`` for one that is to be deleted. ``version``: that of the row that it is to
    replace, 0 for none."""

    partition: _Partition
    row_id: str
    value: str | None
    version: _Place
    metadata: dict[str, str] | None = None


class StagedReply(msgspec.Struct, frozen=True, array_like=True):
    """A page of staged rows, and the place behind which to go on; 0: that was all.

    ``state``: that of the release, where the rows are to be laid over. Only while it is ``publishing`` there are any.
    """

    wire_version: int
    rows: list[StagedRow]
    next: _Place = 0
    state: Annotated[str, msgspec.Meta(max_length=64)] = ""


_request = msgspec.msgpack.Decoder(StagedRequest)
_reply = msgspec.msgpack.Decoder(StagedReply)
_pack = msgspec.msgpack.Encoder()


def encode_staged(message: StagedRequest | StagedReply) -> bytes:
    """A request or a page as bytes."""
    return _pack.encode(message)


def decode_staged_request(data: bytes) -> StagedRequest:
    """Reads a request.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        request = _request.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        check_version_of(data, "request for staged rows")
        raise ProtocolError(f"request for staged rows of {len(data)} bytes can't be read: {error}") from error
    check_version(request.wire_version, "request for staged rows")
    check_spans(request.spans, "request for staged rows")
    return request


def decode_staged_reply(data: bytes | bytearray) -> StagedReply:
    """Reads a page.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        reply = _reply.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        check_version_of(data, "staged rows")
        raise ProtocolError(f"staged rows of {len(data)} bytes can't be read: {error}") from error
    check_version(reply.wire_version, "staged rows")
    return reply


def check_spans(spans: list[int], what: str) -> int:
    """How many partitions ``spans`` are.

    Raises:
        ProtocolError: they are not first, count, first, count, …, ascending.
    """
    beyond = total = 0
    if len(spans) % 2:
        raise ProtocolError(f"{what} lists its partitions in {len(spans)} numbers: these must be pairs")
    for first, count in zip(spans[::2], spans[1::2], strict=True):
        if first < beyond or count < 1 or first + count > MAX_PARTITIONS:
            raise ProtocolError(f"{what} lists {count} partitions from {first}, after those up to {beyond}")
        beyond, total = first + count, total + count
    return total
