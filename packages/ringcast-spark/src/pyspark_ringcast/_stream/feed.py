"""The change feed: what each change was, with the row before it, when it was written, by which principal, and why.

The words for kinds of changes are those of Delta's change data feed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa
from ringcast_wire.grpc import pb

from pyspark_ringcast._client.history import lose, row_columns
from pyspark_ringcast._common.columns import FEED_SCHEMA
from pyspark_ringcast._common.offsets import Range
from pyspark_ringcast._common.options import Options


class ChangeType(StrEnum):
    """What a row of the feed tells."""

    INSERT = "insert"
    UPDATE_PREIMAGE = "update_preimage"
    UPDATE_POSTIMAGE = "update_postimage"
    DELETE = "delete"


class _Change(NamedTuple):
    kind: ChangeType
    row: pb.Row
    revision: pb.Revision
    known: bool = True
    """Whether the row has a value: that of a delete may be gone."""


def feed_batch(options: Options, wanted: Range, revisions: Iterable[pb.Revision]) -> pa.RecordBatch:
    """The changes as rows of the feed: one each, two for an update. All have the version of the change.

    Raises:
        ChangesLostError: the row before a change is gone, and ``onGap`` is ``fail``.
    """
    found = [change for revision in revisions for change in _changes(options, wanted, revision)]
    columns = row_columns([change.row for change in found])
    place = FEED_SCHEMA.get_field_index("value")
    columns[place] = pa.array([change.row.value if change.known else None for change in found], pa.string())
    return pa.RecordBatch.from_arrays(
        [
            *columns,
            pa.array([str(change.kind) for change in found], pa.string()),
            pa.array([change.revision.written_at_ms * 1_000 for change in found], pa.timestamp("us", "UTC")),
            pa.array([change.revision.author or None for change in found], pa.string()),
            pa.array([change.revision.reason or None for change in found], pa.string()),
        ],
        schema=FEED_SCHEMA,
    )


def _changes(options: Options, wanted: Range, revision: pb.Revision) -> Iterator[_Change]:
    row = revision.row
    previous = revision.previous if revision.HasField("previous") else None
    if previous is None and revision.prev and not wanted.loading:
        lose(
            options,
            f"what revision {row.version} of partition {wanted.partition} of {options.place} replaced is gone: the "
            f"service keeps it for a time only",
            without="it",
            instead="without it",
        )
        if not row.deleted:
            yield _Change(ChangeType.UPDATE_POSTIMAGE, row, revision)
            return
    live = previous if previous is not None and not previous.deleted else None
    if row.deleted:
        yield _Change(ChangeType.DELETE, _as_of(row, live), revision, live is not None)
    elif live is None:
        yield _Change(ChangeType.INSERT, row, revision)
    else:
        yield _Change(ChangeType.UPDATE_PREIMAGE, _as_of(row, live), revision)
        yield _Change(ChangeType.UPDATE_POSTIMAGE, row, revision)


def _as_of(row: pb.Row, before: pb.Row | None) -> pb.Row:
    """The change with the contents that it ended."""
    found = pb.Row(row_id=row.row_id, version=row.version, partition=row.partition, deleted=row.deleted)
    if before is not None:
        found.value = before.value
        found.metadata.update(before.metadata)
    return found
