"""Rows of record batches as bulk write batches, checked by the rules that the config service has too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from ringcast_wire import InvalidInputError, RowRule, check_row, check_row_id, limits, shown
from ringcast_wire.grpc import pb

from pyspark_ringcast._common.opening import keys_of
from pyspark_ringcast._common.options import Operation, Options


class Rejected(NamedTuple):
    """A row that was left out, and why: ``code`` (a rule) and ``field`` to group by, ``reason`` in words."""

    row_id: str | None
    code: str
    field: str | None
    reason: str


class Row(NamedTuple):
    """One row of a DataFrame, as it came: nothing is checked."""

    row_id: Any
    value: Any
    deleted: bool
    metadata: dict[str, str] | None


def in_lower_case(frame: pa.RecordBatch) -> pa.RecordBatch:
    """With the names of columns as a write knows them: to Spark's SQL case means nothing."""
    names = [name.lower() for name in frame.schema.names]
    return frame if names == frame.schema.names else frame.rename_columns(names)


def read_rows(frame: pa.RecordBatch, *, all_deleted: bool = False) -> Iterator[Row]:
    """The rows of a record batch that has ``row_id`` and may have the other columns of a write."""
    columns = [column_of(frame, name) for name in ("row_id", "value", "deleted", "metadata")]
    for row_id, value, deleted, metadata in zip(*columns, strict=True):
        yield Row(row_id, value, all_deleted or bool(deleted), dict(metadata) if metadata else None)


def checked_size(row: Row) -> int:
    """Bytes of a row.

    Raises:
        InvalidInputError: it breaks a rule.
    """
    if row.row_id is None:
        raise InvalidInputError("row_id is null", field="row_id", rule=RowRule.NULL)
    if row.deleted:
        return len(check_row_id(row.row_id).encode())
    if row.value is None:
        raise InvalidInputError(
            "value is null: a row that is to be deleted has deleted = true", field="value", rule=RowRule.NULL
        )
    return check_row(row.row_id, row.value, row.metadata)


def refused(row: Row, error: InvalidInputError) -> Rejected:
    """How a row is reported: by its id, of which no more is kept than a legal one may have."""
    row_id = row.row_id if row.row_id is None or isinstance(row.row_id, str) else shown(row.row_id)
    kept = None if row_id is None else row_id[: limits.MAX_ROW_ID_BYTES]
    return Rejected(kept, str(error.rule), error.field, str(error))


class BatchMaker:
    """Cuts rows into batches that the config service takes; what breaks a rule goes into ``rejected``."""

    def __init__(self, options: Options, *, keep_ids: bool = False, max_rows: int = limits.MAX_BATCH_ROWS) -> None:
        """``keep_ids``: remember what was to be written in ``kept``."""
        self._max_rows = min(max_rows, limits.MAX_BATCH_ROWS)
        self._options = options
        self._all_deleted = options.operation is Operation.DELETE
        self._keep_ids = keep_ids
        self._keys = keys_of(options)
        self._sequence = 0
        self._rows: list[pb.RowWrite] = []
        self._row_ids: list[str] = []
        self._values: list[str] = []
        self._bytes = 0
        self.rejected: list[Rejected] = []
        self.kept: list[str] = []

    def batches(self, frames: Iterable[pa.RecordBatch]) -> Iterator[pb.WriteBatch]:
        """Batches of at most ``max_rows`` rows (1,000) and 3 MiB."""
        for frame in frames:
            plain = None if self._all_deleted or self._keys is not None else _plain_rows(frame)
            if self._rows if plain is not None else self._row_ids:
                yield self._full()  # a batch has rows of one kind
            if plain is not None:
                yield from self._add_plain(plain)
            else:
                yield from self._add_checked(frame)
        if self._rows or self._row_ids:
            yield self._full()

    def _add_plain(self, plain: _Plain) -> Iterator[pb.WriteBatch]:
        """The fast path: whole slices of rows that are known to be right."""
        if self._keep_ids:
            self.kept += plain.row_ids
        start, count = 0, len(plain.row_ids)
        while start < count:
            end = min(count, start + self._max_rows - len(self._row_ids))
            size = sum(plain.sizes[start:end])
            if self._bytes + size > limits.MAX_BATCH_BYTES:
                if self._row_ids:
                    yield self._full()
                    continue
                end, size = _fitting(plain.sizes, start, end)
            self._row_ids += plain.row_ids[start:end]
            self._values += plain.values[start:end]
            self._bytes += size
            start = end
            if len(self._row_ids) >= self._max_rows:
                yield self._full()

    def _add_checked(self, frame: pa.RecordBatch) -> Iterator[pb.WriteBatch]:
        for row in read_rows(frame, all_deleted=self._all_deleted):
            try:
                size = checked_size(row)
                if self._keys is not None and not row.deleted:
                    value, metadata = self._keys.seal(row.row_id, row.value, row.metadata)
                    row = row._replace(value=value, metadata=dict(metadata or {}))
                    size = checked_size(row)
            except InvalidInputError as error:
                self.rejected.append(refused(row, error))
                continue
            if self._rows and (self._bytes + size > limits.MAX_BATCH_BYTES or len(self._rows) >= self._max_rows):
                yield self._full()
            self._bytes += size
            if row.deleted:
                self._rows.append(pb.RowWrite(row_id=row.row_id, delete=True))
            else:
                self._rows.append(pb.RowWrite(row_id=row.row_id, value=row.value, metadata=row.metadata))
                if self._keep_ids:
                    self.kept.append(row.row_id)

    def _full(self) -> pb.WriteBatch:
        batch = pb.WriteBatch(
            store=self._options.store,
            key=self._options.key,
            sequence=self._sequence,
            rows=self._rows,
            row_ids=self._row_ids,
            values=self._values,
            on_invalid=pb.ON_INVALID_SKIP_ROW,
            skip_unchanged=True,
            reason=self._options.reason,
        )
        self._sequence += 1
        self._rows, self._row_ids, self._values, self._bytes = [], [], [], 0
        return batch


@dataclass(frozen=True, slots=True)
class _Plain:
    """Rows without metadata that break no rule; ``sizes`` in bytes."""

    row_ids: list[str]
    values: list[str]
    sizes: list[int]


def _plain_rows(frame: pa.RecordBatch) -> _Plain | None:
    """The rows of a record batch if a look at whole columns shows that all are plain and right."""
    names = set(frame.schema.names)
    if "value" not in names or any(name in names and frame.column(name).null_count < len(frame) for name in _RARE):
        return None
    row_ids, values = frame.column("row_id"), frame.column("value")
    if row_ids.null_count or values.null_count or not len(frame):
        return None
    id_sizes = pc.binary_length(row_ids)
    sizes = pc.add(id_sizes, pc.binary_length(values))
    shortest, longest = pc.min_max(id_sizes).values()
    if (
        shortest.as_py() < 1
        or longest.as_py() > limits.MAX_ROW_ID_BYTES
        or pc.max(sizes).as_py() > limits.MAX_ROW_BYTES
    ):
        return None
    if any(pc.any(pc.match_substring(column, "\0")).as_py() for column in (row_ids, values)):
        return None
    try:
        return _Plain(row_ids.to_pylist(), values.to_pylist(), sizes.to_pylist())
    except UnicodeDecodeError:
        return None


_RARE: Final = ("deleted", "metadata")


def _fitting(sizes: list[int], start: int, end: int) -> tuple[int, int]:
    """How far rows from ``start`` fill one batch, and their bytes; at least one does."""
    size = sizes[start]
    for index in range(start + 1, end):
        if size + sizes[index] > limits.MAX_BATCH_BYTES:
            return index, size
        size += sizes[index]
    return end, size


def column_of(frame: pa.RecordBatch, name: str) -> list[Any]:
    """A column's values; nulls where there is none, bytes where a text is not UTF-8."""
    if name not in frame.schema.names:
        return [None] * len(frame)
    column = frame.column(name)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:  # the JVM lets any bytes pass as a string
        return [_text_or_bytes(value) for value in column.cast(pa.binary()).to_pylist()]


def _text_or_bytes(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
