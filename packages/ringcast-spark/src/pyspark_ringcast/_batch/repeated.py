"""What a further attempt of a task has still to write: rows that nobody wrote since the job began.

Rows that were written since as they are to be are of an attempt before it, and the job's: they count as written, also
those that the service writes only after this attempt has looked. So do those of a batch that was sent twice because its
connection broke. A delete that was done before leaves nothing to tell
it by, and counts as unchanged when it is done again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Protocol, TypeAlias

from ringcast_wire.grpc import pb

from pyspark_ringcast._client.service import get_rows
from pyspark_ringcast._common.options import Options

_Content: TypeAlias = tuple[str, dict[str, str]]
"""A value and its metadata."""


class Counted(Protocol):
    """Has the counts of rows that the job wrote, and of those that it left alone."""

    written: int
    unchanged: int


class RowsBefore:
    """The live rows of a key that are as old as the job, or older, and those that are not there."""

    def __init__(self, options: Options, heads: Sequence[int], *, overwrite: bool = False) -> None:
        """Sends nothing yet.

        Args:
            options: Of the write.
            heads: The revision of each partition when the job began; none if there was no such key.
            overwrite: Rows that another writer changed meanwhile are to be written all the same.
        """
        self._overwrite = overwrite
        self._options = options
        self._heads = heads

    def only(self, batches: Iterator[pb.WriteBatch], done: Counted) -> Iterator[pb.WriteBatch]:
        """Batches without the rows that were written since; ``done`` counts those. No batch is empty.

        Raises:
            RingcastError: the service refused, or did not answer in time.
        """
        for batch in batches:
            later = self._written_since([*batch.row_ids, *(row.row_id for row in batch.rows)])
            same = {row_id for row_id, content in _contents(batch) if later.get(row_id) == content}
            if same:
                done.written += _leave_out(batch, same)
            if later.keys() - same and not self._overwrite:
                done.unchanged += _leave_out(batch, later.keys() - same)
            if batch.rows or batch.row_ids:
                yield batch

    def written_already(self, batch: pb.WriteBatch, result: pb.WriteResult) -> int:
        """How many of the unchanged rows of a batch were written when it was sent before, or by an attempt before.

        They are as the batch has them, and were written since the job began.

        Raises:
            RingcastError: the service refused, or did not answer in time.
        """
        wanted = dict(_contents(batch))
        if not result.unchanged or not wanted:
            return 0
        later = self._written_since(list(wanted))
        written = sum(later.get(row_id) == content for row_id, content in wanted.items())
        return min(result.unchanged, max(0, written - result.written))

    def _written_since(self, row_ids: Sequence[str]) -> dict[str, _Content]:
        options, ids = self._options, list(dict.fromkeys(row_ids))
        found = get_rows(options.service, options.store, options.key, ids, options.timeout_s)
        later = (row for row in found if not self._heads or row.version > self._heads[row.partition])
        return {row.row_id: (row.value, dict(row.metadata)) for row in later}


def _contents(batch: pb.WriteBatch) -> Iterator[tuple[str, _Content]]:
    """What the batch writes; not what it deletes."""
    yield from ((row_id, (value, {})) for row_id, value in zip(batch.row_ids, batch.values, strict=True))
    yield from ((row.row_id, (row.value, dict(row.metadata))) for row in batch.rows if not row.delete)


def _leave_out(batch: pb.WriteBatch, row_ids: Set[str]) -> int:
    """Takes rows out of a batch; returns how many."""
    before = len(batch.rows) + len(batch.row_ids)
    rows = [row for row in batch.rows if row.row_id not in row_ids]
    plain = [pair for pair in zip(batch.row_ids, batch.values, strict=True) if pair[0] not in row_ids]
    for name in ("rows", "row_ids", "values"):
        batch.ClearField(name)
    batch.rows.extend(rows)
    batch.row_ids.extend(row_id for row_id, _ in plain)
    batch.values.extend(value for _, value in plain)
    return before - len(rows) - len(plain)
