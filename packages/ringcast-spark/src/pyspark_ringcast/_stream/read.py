"""What a task of a stream reads: changes of partitions between two revisions.

``latest`` is each row as of the end of the range: a fetch over NATS gives the newest version of every row changed since
its beginning, which is that unless a row was written again after the end. Then the fetch has fewer rows than the range
has revisions and at least one beyond it, and the revisions of the range are read instead. They may be gone (the service
keeps them for days): the row is then left to a later batch, which reads its newer version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from ringcast_client.fetches import BlockingFetchClient, FetchRequest, partition_request

from pyspark_ringcast._client.history import History, lose, to_batch
from pyspark_ringcast._common.columns import READS, Reply, read_reply
from pyspark_ringcast._common.offsets import ChangesLostError, Range
from pyspark_ringcast._common.options import Changes, OnGap, Options
from pyspark_ringcast._stream.feed import feed_batch

_FETCH_AHEAD: Final = 8
"""A fetch gives all that changed to this day, many times faster a row than the revisions: it may be this much more."""


def read_ranges(options: Options, wanted: Sequence[Range], client: BlockingFetchClient) -> Iterator[pa.RecordBatch]:
    """The changes in these ranges; never one of a version outside them.

    Raises:
        ChangesLostError: some are gone, and ``onGap`` is ``fail``.
        RingcastError: the service refused or stayed away.
    """
    if options.changes is Changes.EVERY:
        found: Iterator[pa.RecordBatch] = (batch for one in wanted for batch in _every(options, one))
    else:
        found = _latest(options, wanted, client)
    return (batch for batch in found if batch.num_rows)


def _every(options: Options, wanted: Range) -> Iterator[pa.RecordBatch]:
    complete = not wanted.loading and options.on_gap is OnGap.FAIL
    for page in History(options, wanted).pages(complete=complete):
        if options.read_change_feed:
            yield feed_batch(options, wanted, page)
        else:
            yield to_batch(revision.row for revision in page)


def _latest(options: Options, wanted: Sequence[Range], client: BlockingFetchClient) -> Iterator[pa.RecordBatch]:
    fetched = []
    for one in wanted:
        cut = not one.loading and one.head - one.after > _FETCH_AHEAD * one.revisions
        batch = _as_of_end(options, one) if cut else None
        if batch is None:
            fetched.append(one)
        else:
            yield batch
    bodies = client.fetch_bodies((_request(options, one) for one in fetched), options.timeout_s)
    for one, body in zip(fetched, bodies, strict=True):
        yield _changed(options, one, read_reply(body, options.place))


def _request(options: Options, wanted: Range) -> FetchRequest:
    return partition_request(options.store, options.key, wanted.partition, wanted.after or None, reads=READS)


def _changed(options: Options, wanted: Range, reply: Reply) -> pa.RecordBatch:
    """The rows of the range, from a fetch of what changed since its beginning."""
    entry = reply.entry
    if entry.revision < wanted.upto:
        raise ChangesLostError(
            f"partition {wanted.partition} of {options.place} is at revision {entry.revision}, before "
            f"the {wanted.upto} that it had: its database was restored from a backup; start with another checkpoint"
        )
    versions = reply.batch.column("version")
    inside = reply.batch.filter(pc.and_(pc.greater(versions, wanted.after), pc.less_equal(versions, wanted.upto)))
    if wanted.loading:
        return inside.filter(pc.invert(inside.column("deleted")))
    beyond = entry.revision > wanted.upto
    if entry.whole or (beyond and inside.num_rows < wanted.revisions):
        found = _as_of_end(options, wanted)
        if found is None and entry.whole:
            lose(
                options,
                f"deletes in partition {wanted.partition} of {options.place} between revision {wanted.after} and "
                f"{wanted.upto} are unknown now: the service keeps them for a time only",
                without="them",
                instead="with the rows that are there",
            )
        return inside if found is None else found
    return inside


def _as_of_end(options: Options, wanted: Range) -> pa.RecordBatch | None:
    """The newest version of each row changed in the range, or nothing if revisions of it are gone."""
    try:
        return to_batch(History(options, wanted).newest())
    except ChangesLostError:
        return None
