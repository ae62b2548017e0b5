"""The formats that an import reads: CSV, JSON lines, plain text; Parquet is in a module of its own.

Each reader yields, in the order of the input, a row with the number of its line, or what is wrong with a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Final

import msgspec
from ringcast_client import RowWrite
from ringcast_wire import shown
from ringcast_wire.csv_reader import CsvError, CsvRecord, CsvRules, read_header, read_records, width_problem

from ringcast_cli._rows.source import BadLineError, InputError, Source, decode

Parsed = tuple[int, RowWrite] | BadLineError
ID_COLUMNS: Final = ("row_id", "id")
VALUE_COLUMN: Final = "value"


class Format(StrEnum):
    """What an import can read."""

    CSV = "csv"
    JSONL = "jsonl"
    TEXT = "text"
    PARQUET = "parquet"


SUFFIXES: Final = {
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".txt": Format.TEXT,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Which part of a line is what. ``value`` fixed stands for every row instead of a column."""

    id_column: str | None = None
    value_column: str | None = None
    metadata_columns: tuple[str, ...] = field(default=())
    value: str | None = None
    header: bool = True
    delimiter: str = ","
    comment: str = "#"


def format_of(path: str) -> Format | None:
    """The format that the suffix of a file name stands for."""
    return SUFFIXES.get(PurePath(path).suffix.lower())


def read_text(source: Source, layout: Layout) -> Iterator[Parsed]:
    """One row id a line, white space around it stripped; empty lines and comments are left out."""
    value = layout.value or ""
    for number, data in source.lines():
        try:
            text = _text(number, data).strip()
        except BadLineError as error:
            yield error
            continue
        if text and not (layout.comment and text.startswith(layout.comment)):
            yield number, RowWrite(text, value)


def read_jsonl(source: Source, layout: Layout) -> Iterator[Parsed]:
    """One object a line: ``row_id`` (or ``id``), ``value``, and optionally ``metadata``, ``deleted``, and a condition:
    ``if_version`` or ``if_absent``."""
    decoder = msgspec.json.Decoder(dict[str, object])
    for number, data in source.lines():
        try:
            line = _bytes(data)
            if line.strip():
                yield number, _json_row(number, _decode_json(decoder, number, line), layout)
        except BadLineError as error:
            yield error


def _decode_json(decoder: msgspec.json.Decoder[dict[str, object]], number: int, line: bytes) -> dict[str, object]:
    try:
        return decoder.decode(line)
    except UnicodeDecodeError:
        raise BadLineError(number, "is not UTF-8") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadLineError(number, f"is not a JSON object: {error}") from None


def _json_row(number: int, entry: dict[str, object], layout: Layout) -> RowWrite:
    names = (layout.id_column,) if layout.id_column else ID_COLUMNS
    row_id = next((entry[name] for name in names if name in entry), None)
    if not isinstance(row_id, str):
        raise BadLineError(number, _not_text(names, row_id))
    deleted, if_absent = _json_flag(number, entry, "deleted"), _json_flag(number, entry, "if_absent")
    if_version = entry.get("if_version")
    if if_version is not None and (not isinstance(if_version, int) or isinstance(if_version, bool)):
        raise BadLineError(
            number, f"if_version {shown(if_version)} is of type {type(if_version).__name__}, not a number"
        )
    if deleted:
        return RowWrite(row_id, delete=True, if_version=if_version, if_absent=if_absent)
    name = layout.value_column or VALUE_COLUMN
    value = entry.get(name) if layout.value is None else layout.value
    if not isinstance(value, str):
        raise BadLineError(number, _not_text((name,), value))
    metadata = _json_metadata(number, entry, layout)
    return RowWrite(row_id, value, metadata, if_version=if_version, if_absent=if_absent)


def _json_flag(number: int, entry: dict[str, object], name: str) -> bool:
    found = entry.get(name, False)
    if not isinstance(found, bool):
        raise BadLineError(number, f"{name} {shown(found)} is neither true nor false")
    return found


def _json_metadata(number: int, entry: dict[str, object], layout: Layout) -> dict[str, str]:
    found = entry.get("metadata") or {}
    if not isinstance(found, dict):
        raise BadLineError(number, f"metadata {shown(found)} is not an object")
    metadata = {**found, **{name: entry[name] for name in layout.metadata_columns if name in entry}}
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise BadLineError(number, _not_text((f"metadata {name}",), value))
    return metadata


def _not_text(names: Sequence[str], value: object) -> str:
    if value is None:
        return f"has no {' or '.join(names)}"
    return f"{names[0]} {shown(value)} is of type {type(value).__name__}: it must be text"


def read_csv(source: Source, layout: Layout) -> Iterator[Parsed]:
    """Comma separated values (RFC 4180); the first line names the columns unless ``layout.header`` is false.

    Raises:
        InputError: a column that is needed is not there, or the rest of the file can't be read right.
    """
    pick: Callable[[int, list[str]], RowWrite] | None = None
    try:
        for record in read_records(_text_lines(source), CsvRules(delimiter=layout.delimiter)):
            if pick is None:
                pick = _csv_picker(source.name, read_header(record) if layout.header else record.cells, layout)
                if layout.header:
                    continue
            yield _csv_row(record, pick)
    except CsvError as error:
        raise InputError(f"file {source.name}, {error}", field="file") from None


def _csv_row(record: CsvRecord, pick: Callable[[int, list[str]], RowWrite]) -> Parsed:
    if record.problem is not None:
        return BadLineError(record.line, record.problem)
    try:
        return record.line, pick(record.line, record.cells)
    except BadLineError as error:
        return error


def _text_lines(source: Source) -> Iterator[str]:
    """The lines of a source as text; bytes that are not UTF-8 are found when the records are read.

    Raises:
        InputError: a line is too long. There may be a quote in what was not read.
    """
    for _, data in source.lines():
        if isinstance(data, BadLineError):
            raise InputError(f"file {source.name}, {data}", field="file")
        yield data.decode(errors="surrogateescape")


def _csv_picker(name: str, cells: list[str], layout: Layout) -> Callable[[int, list[str]], RowWrite]:
    """What takes the row out of the cells of a line; ``cells`` is the first line."""
    columns = cells if layout.header else [str(number) for number in range(1, len(cells) + 1)]
    width = len(columns)
    id_at, value_at, metadata_at = column_positions(name, columns, layout)

    def pick(number: int, cells: list[str]) -> RowWrite:
        if (problem := width_problem(cells, width)) is not None:
            raise BadLineError(number, problem)
        value = cells[value_at] if value_at is not None else layout.value or ""
        metadata = {column: cells[at] for column, at in metadata_at.items()}
        return RowWrite(cells[id_at], value, metadata)

    return pick


def column_positions(name: str, columns: Sequence[str], layout: Layout) -> tuple[int, int | None, dict[str, int]]:
    """Where the id, the value (``None``: it is fixed) and the metadata columns are.

    Raises:
        InputError: one of them is not there.
    """
    by_number = not layout.header
    id_names = (layout.id_column,) if layout.id_column else (("1",) if by_number else ID_COLUMNS)
    id_at = _position(name, columns, id_names, "--id-column")
    value_at = None
    if layout.value is None:
        value_name = layout.value_column or ("2" if by_number else VALUE_COLUMN)
        value_at = _position(name, columns, (value_name,), "--value-column, or give the --value of every row")
    metadata_at = {
        column: _position(name, columns, (column,), "--metadata-column") for column in layout.metadata_columns
    }
    return id_at, value_at, metadata_at


def _position(name: str, columns: Sequence[str], wanted: Sequence[str], option: str) -> int:
    for column in wanted:
        if column in columns:
            return list(columns).index(column)
    raise InputError(
        f"file {name} has no column {' or '.join(map(repr, wanted))}, only {shown(', '.join(columns))}: "
        f"name it with {option}",
        field="column",
    )


def _bytes(data: bytes | BadLineError) -> bytes:
    if isinstance(data, BadLineError):
        raise data
    return data


def _text(number: int, data: bytes | BadLineError) -> str:
    return decode(number, _bytes(data))
