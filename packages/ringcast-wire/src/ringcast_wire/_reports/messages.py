"""The messages of the report round: MessagePack arrays with the wire version first, as all messages on the bus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from ringcast_wire._common.errors import InvalidInputError, ProtocolError
from ringcast_wire._common.labels import LABEL_PATTERN
from ringcast_wire._common.limits import KIB, MAX_LABELS, MAX_PARTITIONS, MAX_ROW_ID_BYTES
from ringcast_wire._common.rows import check_row_id
from ringcast_wire._common.versions import WIRE_VERSION, Reads, check_version, check_version_of
from ringcast_wire._reports.dry_waves import DryWaveReport, DryWaveRequest, RandomId, check_spans
from ringcast_wire._reports.provisional_rows import ProvisionalReport, ProvisionalRequest

MAX_REPORT_BYTES: Final = 80 * KIB
"""A report as bytes, all its chunks together: 4096 partitions at the highest revisions, and all texts, take less. One
without a dry wave takes less than 64 KiB, which is all that builds of before read."""
MAX_REPORT_TEXT: Final = 512
"""Characters of an error, or of another sentence, in a report."""
MAX_REFUSALS: Final = 8
"""Rows that a report names of those that the handler did not take."""
MAX_REFUSAL_TEXT: Final = 128
"""Characters of the error of each of them."""
_MOST_MS: Final = 2**53 - 1

_Text = Annotated[str, msgspec.Meta(max_length=MAX_REPORT_TEXT)]
_Name = Annotated[str, msgspec.Meta(max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_Ms = Annotated[int, msgspec.Meta(ge=0, le=_MOST_MS)]
_Revision = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTITIONS)]
_Label = Annotated[str, msgspec.Meta(pattern=LABEL_PATTERN)]
_Revisions = Annotated[list[_Revision], msgspec.Meta(max_length=3 * MAX_PARTITIONS)]
_NO_RANGES: Final = msgspec.Raw(msgspec.msgpack.encode([]))


class WorkerKind(StrEnum):
    """To what a worker hands changes over."""

    APPLICATION = "application"
    GROUPS = "groups"
    """A heartbeat agent, for the groups of its consumers: how far these are, their positions say."""
    OBSERVER = "observer"
    """It follows every partition and owns none."""


class RowFailure(StrEnum):
    """What has become of a change that the handler did not take."""

    RETRYING = "retrying"
    """The handler has failed, and is called again."""
    DROPPED = "dropped"
    DEAD_LETTERED = "dead_lettered"
    SENDING = "sending"
    """It is given up, and the stream of dead letters has not taken it yet."""
    BLOCKED = "blocked"


class ReportRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks the workers of a key how far they are, and where a ``row_id`` is given, what they know of that row.

    ``ranges``: partition, first and last revision, partition, …: what of these the handler did not take. They come as
    :func:`packed_ranges` has made them, and only :func:`ranges_of` reads them: few workers have refused anything, and
    to read those of 4,096 partitions takes far longer than all the rest. ``dry_wave``: has staged rows judged.
    ``provisional``: has them laid over.
    """

    wire_version: int
    round_id: RandomId
    row_id: str = ""
    ranges: msgspec.Raw = _NO_RANGES
    dry_wave: DryWaveRequest | None = None
    reads: Reads = WIRE_VERSION
    provisional: ProvisionalRequest | None = None


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """A change that the handler did not take. The row may have a later version by now."""

    partition: _Partition
    row_id: Annotated[str, msgspec.Meta(max_length=MAX_ROW_ID_BYTES)]
    version: _Revision
    what: RowFailure
    error: Annotated[str, msgspec.Meta(max_length=MAX_REFUSAL_TEXT)] = ""


class RowReport(msgspec.Struct, frozen=True, array_like=True):
    """What a worker knows of one row. Times are milliseconds, revisions those of the row's partition.

    ``state``: that of the partition, empty where the worker does not hold it. ``heard``: the highest revision that the
    worker knows of. ``version``: that of the row as the worker holds it, 0 for none. ``calling_ms``: how long the
    handler has had the row, 0 if it has not. ``ahead``: another row that the handler has had for ``ahead_ms``, the
    longest of all. ``failure`` is about ``failed_version`` of the row, and happened ``failed_ms`` ago.
    """

    partition: _Partition
    owned: bool
    state: _Name = ""
    delivered: bool = False
    """Whether the server has confirmed that it delivers the partition's events."""
    heard: _Revision = 0
    applied: _Revision = 0
    version: _Revision = 0
    calling_ms: _Ms = 0
    ahead: _Text = ""
    ahead_ms: _Ms = 0
    failure: RowFailure | None = None
    failed_version: _Revision = 0
    failed_ms: _Ms = 0
    error: _Text = ""
    release: _Revision = 0
    """The release that the row's version came by; 0: none, or the worker has not had the event."""
    provisional: _Revision = 0
    """The release whose provisional row the worker shows in place of this one; 0: none."""


class WorkerReport(msgspec.Struct, frozen=True, array_like=True):
    """How far one worker is with a key: what it has in memory at the moment at which it answers.

    ``spans`` are the partitions that it owns, ascending: first, count, first, count, …; ``applied`` has for each of
    them the revision up to which every change has been through the handler. ``assignment``: :func:`assignment_digest`
    of the owners that it computed, or ``epoch N`` for the table that it acts by in a store of exclusive ownership;
    empty where it owns all, or none was made. Counts are since the start, but for ``blocked``. Times are milliseconds.
    """

    wire_version: int
    round_id: RandomId
    incarnation: _Name
    build: _Name
    """The version of the package ``ringcast``."""
    clock_ms: _Ms
    """The worker's wall clock."""
    kind: WorkerKind
    assignment: _Name
    history: _Name
    spans: Annotated[list[int], msgspec.Meta(max_length=MAX_PARTITIONS)]
    applied: Annotated[list[_Revision], msgspec.Meta(max_length=MAX_PARTITIONS)]
    loading: _Count = 0
    """Owned partitions whose rows are still to be fetched and handed over."""
    blocked: _Count = 0
    """Rows that are held back now."""
    dead_lettered: _Count = 0
    dropped: _Count = 0
    unopened: _Count = 0
    """Encrypted values that could not be opened."""
    oldest_ms: _Ms = 0
    """How long ago the oldest event was stored that has come and is not applied; 0 for none."""
    stale_ms: _Ms = 0
    handler_ms: _Ms = 0
    """How long the handler has had a change, the longest of all."""
    failing: _Text = ""
    """Why the worker can't be registered for the key, or gets no events of it."""
    refused: _Text = ""
    """Why it does not take the service's history of the key."""
    last_error: _Text = ""
    """The newest error of the handler, with the row that it was for."""
    last_error_ms: _Ms = 0
    """How long ago that was."""
    row: RowReport | None = None
    refusals: Annotated[list[Refusal], msgspec.Meta(max_length=MAX_REFUSALS)] | None = None
    """Of the ranges that were asked for; ``None``: an older build, which does not say."""
    unnamed_refusals: _Count = 0
    """How many more there are than ``refusals`` names, or may be: not all are remembered."""
    labels: Annotated[list[_Label], msgspec.Meta(max_length=MAX_LABELS)] = []
    """Of the worker; one of an older build has none."""
    dry_wave: DryWaveReport | None = None
    """``None``: none was asked for, or not of this worker, or its build does not know them."""
    given_up: _Count = 0
    """Rows that the handler has given up for good, whether ``refusals`` names them or not. An older build says 0."""
    provisional: ProvisionalReport | None = None
    """Of the release that it was asked about, or whose rows lie over what it holds; ``None``: of none."""
    rows: _Count | None = None
    """Live rows of all partitions that it holds; ``None``: an older build, which does not say."""
    row_bytes: _Count | None = None
    """Of their ids, values and metadata, as the config service counts them."""
    may_have_refused: bool | None = None
    """Whether the handler did not take something since the start; ``None``: an older build, which does not say."""

    @property
    def unnamed_given_up(self) -> int:
        """How many of ``unnamed_refusals`` are given up for good; the others are tried again, or not remembered."""
        named = sum(each.what is not RowFailure.RETRYING for each in self.refusals or ())
        return min(max(0, self.given_up - named), self.unnamed_refusals)

    def partitions(self) -> Iterator[tuple[int, int]]:
        """Each owned partition with its applied revision."""
        return zip(partitions_of(self.spans), self.applied, strict=True)


_request = msgspec.msgpack.Decoder(ReportRequest)
_report = msgspec.msgpack.Decoder(WorkerReport)
_ranges = msgspec.msgpack.Decoder(_Revisions)
_pack = msgspec.msgpack.Encoder()


def encode_report(message: ReportRequest | WorkerReport) -> bytes:
    """A request or a report as bytes."""
    return _pack.encode(message)


def decode_report_request(data: bytes) -> ReportRequest:
    """Reads a request, but for its ranges: :func:`ranges_of` does that.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        request = _request.decode(data)
        if request.row_id:
            check_row_id(request.row_id)
        if request.dry_wave is not None:
            check_spans(request.dry_wave.spans, "request for a dry wave")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, InvalidInputError) as error:
        check_version_of(data, "request for a report")
        raise ProtocolError(f"request for a report of {len(data)} bytes can't be read: {error}") from error
    check_version(request.wire_version, "request for a report")
    return request


def decode_report(data: bytes) -> WorkerReport:
    """Reads a report.

    Raises:
        ProtocolError: it is not one, or its partitions are not ascending, or not as many as its revisions.
    """
    try:
        report = _report.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        check_version_of(data, "report")
        raise ProtocolError(f"report of {len(data)} bytes can't be read: {error}") from error
    check_version(report.wire_version, "report")
    _check_spans(report.spans, len(report.applied))
    if report.dry_wave is not None:
        check_spans(report.dry_wave.spans, "dry wave of a report")
    return report


def spans_of(numbers: Iterable[int]) -> list[int]:
    """Ascending numbers as first, count, first, count, …"""
    spans: list[int] = []
    following = -1
    for number in numbers:
        if number == following:
            spans[-1] += 1
        else:
            spans += (number, 1)
        following = number + 1
    return spans


def partitions_of(spans: Sequence[int]) -> Iterator[int]:
    """The numbers of which :func:`spans_of` has made ``spans``."""
    for first, count in zip(spans[::2], spans[1::2], strict=True):
        yield from range(first, first + count)


def assignment_digest(owners: Sequence[str | None]) -> str:
    """The same for all that computed the same owners, and so from the same membership. By partition number."""
    text = "\n".join(owner or "" for owner in owners)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def packed_ranges(numbers: Sequence[int]) -> msgspec.Raw:
    """Partition, first and last revision, partition, … as :class:`ReportRequest` has them."""
    return msgspec.Raw(_pack.encode(numbers))


def ranges_of(request: ReportRequest) -> dict[int, tuple[int, int]]:
    """The first and the last revision of each partition that are asked for.

    Raises:
        ProtocolError: they are not ranges of ascending partitions.
    """
    try:
        numbers = _ranges.decode(request.ranges)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"ranges of a request for a report can't be read: {error}") from error
    if len(numbers) % 3:
        raise ProtocolError(f"ranges has {len(numbers)} numbers: these must be triples")
    found: dict[int, tuple[int, int]] = {}
    after = -1
    for number, first, last in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        if not after < number < MAX_PARTITIONS or first > last:
            raise ProtocolError(f"ranges has {first} to {last} of partition {number}, after {after}")
        found[number], after = (first, last), number
    return found


def clipped(text: str, most: int = MAX_REPORT_TEXT) -> str:
    """``text``, or as much of its beginning as a report takes."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _check_spans(spans: list[int], revisions: int) -> None:
    if (total := check_spans(spans, "report")) != revisions:
        raise ProtocolError(f"report has {revisions} revisions for {total} partitions")
