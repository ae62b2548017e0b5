"""Reads Parquet, with pyarrow (an extra: ``pip install 'ringcast-cli[parquet]'``)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

from ringcast_client import RowWrite
from ringcast_wire import shown

from ringcast_cli._rows.formats import Layout, Parsed, column_positions
from ringcast_cli._rows.source import BadLineError, InputError, Source

_BATCH_ROWS: Final = 4096


class ParquetInput:
    """An open Parquet file; ``rows`` is how many there are, ``read_rows`` how many were read."""

    def __init__(self, name: str, file: Any, layout: Layout) -> None:
        self._name = name
        self._file = file
        self._layout = layout
        self.rows: int = file.metadata.num_rows
        self.read_rows = 0
        columns = list(file.schema_arrow.names)
        id_at, value_at, metadata_at = column_positions(name, columns, layout)
        self._id = columns[id_at]
        self._value = columns[value_at] if value_at is not None else None
        self._metadata = tuple(metadata_at)
        self._columns = list(dict.fromkeys([self._id, *([self._value] if self._value else []), *self._metadata]))
        for column in self._columns:
            _check_type(name, column, file.schema_arrow.field(column).type)

    def parsed(self) -> Iterator[Parsed]:
        """The rows, numbered from 1.

        Raises:
            InputError: the file is damaged somewhere after its beginning.
        """
        import pyarrow as pa

        batches = self._file.iter_batches(batch_size=_BATCH_ROWS, columns=self._columns)
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                columns = {name: batch.column(name).to_pylist() for name in self._columns}
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise InputError(
                    f"file {self._name} is damaged after row {self.read_rows}: {_first_line(error)}", field="file"
                ) from None
            yield from self._rows(columns, batch.num_rows)

    def _rows(self, columns: dict[str, list[str | None]], count: int) -> Iterator[Parsed]:
        for at in range(count):
            self.read_rows += 1
            cells = {name: column[at] for name, column in columns.items()}
            if missing := [name for name in (self._id, self._value) if name and cells[name] is None]:
                yield BadLineError(self.read_rows, f"{missing[0]} is null: it must be text", unit="row")
                continue
            value = cells[self._value] if self._value else self._layout.value
            metadata = {name: text for name in self._metadata if (text := cells[name]) is not None}
            yield self.read_rows, RowWrite(cells[self._id] or "", value or "", metadata)


@contextmanager
def open_parquet(source: Source, layout: Layout) -> Iterator[ParquetInput]:
    """Opens a Parquet file. Standard input is copied to a temporary file first: the format begins at its end.

    Raises:
        InputError: pyarrow is not installed, the file is not Parquet or is truncated, or a column is not there or is
            not text.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            "reading Parquet needs the package pyarrow; install it with: pip install 'ringcast-cli[parquet]'",
            field="format",
        ) from None
    with _seekable(source) as file:
        try:
            parquet = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"file {source.name} is not a Parquet file, or is truncated: {_first_line(error)}", field="file"
            ) from None
        with parquet:
            yield ParquetInput(source.name, parquet, layout)


@contextmanager
def _seekable(source: Source) -> Iterator[BinaryIO]:
    if source.size is not None:
        yield source.file
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(source.file, copy)
        copy.seek(0)
        yield copy


def _check_type(name: str, column: str, kind: Any) -> None:
    import pyarrow.types as types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)):
        raise InputError(
            f"file {name}: column {shown(column)} has type {kind}, it must be text (string)", field="column"
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
