"""Every revision of a partition, over gRPC, in order."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
from ringcast_client.blocking import retried
from ringcast_wire import EventLog
from ringcast_wire.grpc import pb

from pyspark_ringcast._client.service import shared_stub
from pyspark_ringcast._common.columns import SCHEMA
from pyspark_ringcast._common.offsets import ChangesLostError, Range
from pyspark_ringcast._common.options import OnGap, Options

_log = EventLog(logging.getLogger(__name__))

_END: Final = pb.HistoryResponse()
_SEARCHES_AT_ONCE: Final = 8


class History:
    """The revisions of a range. Some may be gone: one that has a newer one of its row is kept for a time only."""

    def __init__(self, options: Options, wanted: Range) -> None:
        """Asks for nothing yet."""
        self._options = options
        self._wanted = wanted
        self._stub = shared_stub(options.service)
        self._read_to = wanted.after
        self._call: Any = None

    def pages(self, *, complete: bool) -> Iterator[Sequence[pb.Revision]]:
        """The revisions that are there; with ``complete`` exactly one for each number.

        A connection that breaks is opened again behind the last revision that came.

        Raises:
            ChangesLostError: ``complete``, and some are gone.
            UnavailableError: the service did not answer in time.
        """
        while self._read_to < self._wanted.upto:
            page = retried(self._next, self._options.timeout_s)
            if page is _END:
                break
            found = [one for one in page.revisions if one.row.version <= self._wanted.upto]
            if complete:
                self._check_complete(found)
            self._read_to = page.revisions[-1].row.version
            if found:
                yield found
        if complete and self._read_to < self._wanted.upto:
            raise self._lost(self._wanted.upto)

    def check_first(self) -> None:
        """Raises ``ChangesLostError`` where the first revision of the range is gone."""
        first = _first_above(self._options, self._wanted.partition, self._wanted.after)
        begin = self._wanted.upto + 1 if first is None else first.row.version
        if begin > self._wanted.after + 1:
            raise self._lost(min(begin - 1, self._wanted.upto))

    def newest(self) -> list[pb.Row]:
        """Each row as of the end of the range; raises ``ChangesLostError`` if revisions are gone."""
        found: dict[str, pb.Row] = {}
        for page in self.pages(complete=True):
            for revision in page:
                found[revision.row.row_id] = revision.row
        return list(found.values())

    def _next(self, left_s: float) -> pb.HistoryResponse:
        if self._call is None:
            request = pb.HistoryRequest(
                store=self._options.store,
                key=self._options.key,
                partition=self._wanted.partition,
                since=self._read_to,
                limit=self._wanted.upto - self._read_to,
                with_previous=self._options.read_change_feed,
            )
            self._call = self._stub.History(request, timeout=left_s)
        try:
            return next(self._call, _END)
        except BaseException:
            self._call = None
            raise

    def _check_complete(self, found: Sequence[pb.Revision]) -> None:
        for expected, one in enumerate(found, self._read_to + 1):
            if one.row.version != expected:
                self._read_to = expected - 1
                raise self._lost(one.row.version - 1)

    def _lost(self, to: int) -> ChangesLostError:
        place, partition = self._options.place, self._wanted.partition
        return ChangesLostError(
            f"the changes of partition {partition} of {place} from revision {self._read_to + 1} to {to} are gone: the "
            f"service keeps them for a time only; start with another checkpoint, or go on without them with onGap=skip"
        )


def check_first(options: Options, wanted: Sequence[Range]) -> None:
    """Raises ``ChangesLostError`` where the first revision of a range is gone; a range that loads needs none."""
    with ThreadPoolExecutor(_SEARCHES_AT_ONCE) as pool:
        list(pool.map(lambda one: History(options, one).check_first(), [one for one in wanted if not one.loading]))


def lose(options: Options, what: str, *, without: str, instead: str) -> None:
    """Some changes can't be read any more: an error, or with ``onGap=skip`` a warning.

    Raises:
        ChangesLostError: ``onGap`` is ``fail``.
    """
    if options.on_gap is OnGap.FAIL:
        raise ChangesLostError(f"{what}; start with another checkpoint, or go on without {without} with onGap=skip")
    _log.warning("changes.lost", reason=what, going_on=instead)


def to_batch(rows: Iterable[pb.Row]) -> pa.RecordBatch:
    """Rows of the service as a read gives them."""
    return pa.RecordBatch.from_arrays(row_columns(list(rows)), schema=SCHEMA)


def row_columns(rows: Sequence[pb.Row]) -> list[pa.Array]:
    """The columns of a read; a deleted row has no value."""
    return [
        pa.array([row.row_id for row in rows], pa.string()),
        pa.array([None if row.deleted else row.value for row in rows], pa.string()),
        pa.array([row.version for row in rows], pa.int64()),
        pa.array([row.partition for row in rows], pa.int32()),
        pa.array([row.deleted for row in rows], pa.bool_()),
        pa.array([list(row.metadata.items()) or None for row in rows], SCHEMA.field("metadata").type),
    ]


def revisions_before(options: Options, at_ms: int, heads: Sequence[int], chosen: Sequence[int]) -> dict[int, int]:
    """By partition, the revision before its first kept one that was written at a time or later.

    Raises:
        UnavailableError: the service did not answer in time.
    """
    with ThreadPoolExecutor(_SEARCHES_AT_ONCE) as pool:
        found = pool.map(lambda partition: _revision_before(options, at_ms, partition, heads[partition]), chosen)
        return dict(zip(chosen, found, strict=True))


def _revision_before(options: Options, at_ms: int, partition: int, head: int) -> int:
    """By halving: within a partition later revisions have later times."""
    low, high, later = 0, head, head + 1
    while low < high:
        middle = (low + high) // 2
        first = _first_above(options, partition, middle)
        if first is None:
            high = middle
        elif first.written_at_ms >= at_ms:
            high, later = middle, first.row.version
        else:
            low = first.row.version
    return later - 1


def _first_above(options: Options, partition: int, revision: int) -> pb.Revision | None:
    """The first revision above one that is still there."""
    stub = shared_stub(options.service)
    request = pb.HistoryRequest(store=options.store, key=options.key, partition=partition, since=revision, limit=1)
    pages = retried(lambda left_s: list(stub.History(request, timeout=left_s)), options.timeout_s)
    return next((one for page in pages for one in page.revisions), None)
