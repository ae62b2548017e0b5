"""Cuts the rows of a bulk write into batches that the config service takes: bounded by rows and by bytes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ringcast_wire import InvalidInputError, check_condition, check_row, check_row_id
from ringcast_wire.grpc import pb
from ringcast_wire.key_ring import ListKeys

from ringcast_client._common.records import OnInvalid, RejectedRow, RowWrite, row_message, sealed_row

_ON_INVALID = {
    OnInvalid.REJECT_BATCH: pb.ON_INVALID_REJECT_BATCH,
    OnInvalid.SKIP_ROW: pb.ON_INVALID_SKIP_ROW,
}


class InvalidRowError(InvalidInputError):
    """A row of a bulk write breaks a rule; ``index`` counts from 0 over the whole input."""

    def __init__(self, message: str, *, index: int, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.index = index


@dataclass(slots=True)
class Batch:
    """A batch that is ready to go: input rows ``first`` to ``first + rows - 1``, those in ``rejected`` left out.

    ``indexes`` says which input row each row of the message is; ``None`` when none was left out.
    """

    message: pb.WriteBatch
    first: int
    rows: int
    rejected: list[RejectedRow] = field(default_factory=list)
    indexes: list[int] | None = None

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to send: rows may all have been left out."""
        return bool(self.message.rows or self.message.row_ids)

    def index_of(self, position: int) -> int:
        """The input row that stands at ``position`` in the message."""
        return self.first + position if self.indexes is None else self.indexes[position]


class BatchBuilder:
    """Collects rows; a batch is full at ``max_rows``, and when the next row would take it past ``max_bytes``.

    ``keys`` seal the rows. A batch that has rows with conditions has an idempotency key without a job id too: where its
    answer is lost it is sent again, and must not fail on what it wrote itself.
    """

    def __init__(
        self,
        store: str,
        key: str,
        on_invalid: OnInvalid,
        *,
        max_rows: int,
        max_bytes: int,
        skip_unchanged: bool = False,
        job_id: str = "",
        reason: str = "",
        keys: ListKeys | None = None,
    ) -> None:
        self._keys = keys
        self._store = store
        self._key = key
        self._on_invalid = on_invalid
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._skip_unchanged = skip_unchanged
        self._job_id = job_id
        self._own_id = f"bulk-{secrets.token_hex(16)}"
        self._reason = reason
        self._first = 0
        self._sequence = 0
        self._start()

    def _start(self) -> None:
        self._rows: list[RowWrite] = []
        self._indexes: list[int] = []
        self._rejected: list[RejectedRow] = []
        self._bytes = 0
        self._count = 0

    def add(self, row: RowWrite) -> Batch | None:
        """Takes a row; returns a batch if one is full now.

        Raises:
            InvalidRowError: the row breaks a rule and ``on_invalid`` is ``REJECT_BATCH``.
        """
        try:
            row = sealed_row(row, self._keys)
            size = _size(row)
        except InvalidInputError as error:
            return self._reject(row, error)
        full = self.flush() if self._rows and self._bytes + size > self._max_bytes else None
        self._rows.append(row)
        self._indexes.append(self._first + self._count)
        self._bytes += size
        self._count += 1
        # Not both: a batch that was flushed just now leaves one row, and max_rows of 1 leaves none to flush.
        return self.flush() if len(self._rows) >= self._max_rows else full

    def flush(self) -> Batch | None:
        """The rows that are left, or ``None``."""
        if not self._count:
            return None
        has_conditions = any(row.if_absent or row.if_version is not None for row in self._rows)
        job_id = self._job_id or (self._own_id if has_conditions else "")
        message = pb.WriteBatch(
            store=self._store,
            key=self._key,
            sequence=self._sequence,
            on_invalid=_ON_INVALID[self._on_invalid],
            skip_unchanged=self._skip_unchanged,
            idempotency_key=f"{job_id}:{self._sequence}" if job_id else "",
            reason=self._reason,
        )
        if has_conditions or any(row.metadata or row.delete for row in self._rows):
            message.rows.extend(map(row_message, self._rows))
        else:  # column by column, at half the cost
            message.row_ids.extend([row.row_id for row in self._rows])
            message.values.extend([row.value for row in self._rows])
        indexes = self._indexes if self._rejected else None
        batch = Batch(message, self._first, self._count, self._rejected, indexes)
        self._first += self._count
        self._sequence += 1
        self._start()
        return batch

    def _reject(self, row: RowWrite, error: InvalidInputError) -> Batch | None:
        index = self._first + self._count
        if self._on_invalid is OnInvalid.REJECT_BATCH:
            raise InvalidRowError(str(error), index=index, field=error.field) from error
        self._rejected.append(RejectedRow(index, str(row.row_id)[:80], str(error)))
        self._count += 1
        return self.flush() if len(self._rejected) >= self._max_rows else None


def _size(row: RowWrite) -> int:
    if row.if_version is not None or row.if_absent:
        check_condition(row.if_version, row.if_absent, delete=row.delete)
    if row.delete:
        return len(check_row_id(row.row_id).encode())
    return check_row(row.row_id, row.value, row.metadata)


def build_batches(rows: Iterable[RowWrite], builder: BatchBuilder) -> Iterator[Batch]:
    """The batches of an iterable."""
    for row in rows:
        if (batch := builder.add(row)) is not None:
            yield batch
    if (batch := builder.flush()) is not None:
        yield batch
