"""The tasks of a job whose rows are staged as a release: what differs from the rows that are there.

Nothing is written and nothing is staged here. A task gives what differs to the driver, which stages it once all tasks
are done. Spark takes that of one attempt of each task, so tasks that are tried again, or run twice, change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from ringcast_wire import LimitExceededError, RingcastError, limits
from ringcast_wire.grpc import pb

from pyspark_ringcast._batch.checks import check_rejected
from pyspark_ringcast._client.service import get_rows
from pyspark_ringcast._common.batches import BatchMaker, Rejected
from pyspark_ringcast._common.mapping import WriteColumns
from pyspark_ringcast._common.options import Options
from pyspark_ringcast._common.task_failures import CURABLE


class Kind(Enum):
    """What a row needs."""

    PUT = 0
    DELETE = 1
    SAME = 2
    """Nothing: it is as it is to be."""
    ABSENT = 3
    """Nothing: it is to be deleted, and is not there."""


class Difference(NamedTuple):
    """What a row needs; ``write`` is a ``RowWrite`` with its condition, as bytes, where that is anything."""

    kind: Kind
    write: bytes = b""


@dataclass
class Compared(WriterCommitMessage):
    """What a task found. ``rows``: by id, the last one of each; ``seen``: how many rows there were."""

    rows: dict[str, Difference] = field(default_factory=dict)
    seen: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    failure: RingcastError | None = None
    """Why the task stopped, where another try would stop there as well."""


def compare(options: Options, frames: Iterable[pa.RecordBatch]) -> Compared:
    """Compares the rows of a task with those that are live.

    What another try can't cure is not raised here, where Spark would try the task again three times.

    Raises:
        UnavailableError: the service stayed away.
        ProtocolError, InternalError: an answer can't be understood, or the service failed.
    """
    done = Compared()
    maker = BatchMaker(options)
    try:
        _compare(options, maker, frames, done)
    except CURABLE:
        raise
    except RingcastError as error:
        done.failure = error
    done.rejected = maker.rejected
    return done


def check_size(place: str, rows: int, size: int) -> None:
    """Raises ``LimitExceededError`` where a release has no room for so many rows and bytes."""
    for what, value, most in (("rows", rows, limits.MAX_RELEASE_ROWS), ("bytes", size, limits.MAX_RELEASE_BYTES)):
        if value > most:
            raise LimitExceededError(
                f"at least {value} {what} of {place} differ, a release has at most {most}: nothing is staged",
                field="rows",
            )


def _compare(options: Options, maker: BatchMaker, frames: Iterable[pa.RecordBatch], done: Compared) -> None:
    columns = WriteColumns(options)
    changes = size = 0
    for batch in maker.batches(columns.rows(frame, maker.rejected) for frame in frames):
        for row_id, difference in _differences(options, batch):
            done.rows[row_id] = difference
            done.seen += 1
            changes += bool(difference.write)
            size += len(difference.write)
        check_size(options.place, changes, size)
        check_rejected(options, maker.rejected)
    check_rejected(options, maker.rejected)


def _differences(options: Options, batch: pb.WriteBatch) -> Iterator[tuple[str, Difference]]:
    writes = [*batch.rows, *map(_plain, batch.row_ids, batch.values)]
    ids = list(dict.fromkeys(write.row_id for write in writes))
    live = {row.row_id: row for row in get_rows(options.service, options.store, options.key, ids, options.timeout_s)}
    for write in writes:
        yield write.row_id, _difference(write, live.get(write.row_id))


def _plain(row_id: str, value: str) -> pb.RowWrite:
    return pb.RowWrite(row_id=row_id, value=value)


def _difference(write: pb.RowWrite, live: pb.Row | None) -> Difference:
    if live is None:
        if write.delete:
            return Difference(Kind.ABSENT)
        write.if_absent = True
        return Difference(Kind.PUT, write.SerializeToString())
    if not write.delete and (write.value, dict(write.metadata)) == (live.value, dict(live.metadata)):
        return Difference(Kind.SAME)
    write.if_version = live.version
    return Difference(Kind.DELETE if write.delete else Kind.PUT, write.SerializeToString())
