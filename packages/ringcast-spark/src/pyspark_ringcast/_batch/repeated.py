"""What a further attempt of a task has still to write: rows that nobody wrote since the job began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ringcast_client.blocking import retried
from ringcast_wire import InvalidInputError, UnknownKeyError
from ringcast_wire.grpc import pb

from pyspark_ringcast._client.service import shared_stub
from pyspark_ringcast._common.options import Options


class Counted(Protocol):
    """Has the count of rows that were left alone."""

    unchanged: int


class RowsBefore:
    """The live rows of a key that are as old as the job, or older, and those that are not there."""

    def __init__(self, options: Options, heads: Sequence[int]) -> None:
        """``heads``: the revision of each partition when the job began; none if there was no such key."""
        self._options = options
        self._heads = heads
        self._stub = shared_stub(options.service)

    def only(self, batches: Iterator[pb.WriteBatch], done: Counted) -> Iterator[pb.WriteBatch]:
        """Batches without the rows that were written since; ``done`` counts those. No batch is empty.

        Raises:
            RingcastError: the service refused, or did not answer in time.
        """
        for batch in batches:
            later = self._written_since([*batch.row_ids, *(row.row_id for row in batch.rows)])
            if later:
                done.unchanged += _leave_out(batch, later)
            if batch.rows or batch.row_ids:
                yield batch

    def _written_since(self, row_ids: Sequence[str]) -> set[str]:
        found = self._read(list(dict.fromkeys(row_ids)))
        return {row.row_id for row in found if not self._heads or row.version > self._heads[row.partition]}

    def _read(self, row_ids: Sequence[str]) -> list[pb.Row]:
        """Those of the rows that are live."""
        options = self._options
        request = pb.GetRequest(store=options.store, key=options.key, row_ids=row_ids)
        try:
            return list(retried(lambda left_s: self._stub.Get(request, timeout=left_s), options.timeout_s).rows)
        except UnknownKeyError:
            return []
        except InvalidInputError:
            if len(row_ids) == 1:
                raise
        half = len(row_ids) // 2  # they were more than fits one answer
        return [*self._read(row_ids[:half]), *self._read(row_ids[half:])]


def _leave_out(batch: pb.WriteBatch, row_ids: set[str]) -> int:
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
