"""CSV files as a DataFrame of texts, read by the rules of ``ringcast import``: a task a file, in Python.

Spark's own reader wants a backslash before a quote in a quoted field, cuts a value at a line break, and takes the
header of one file for that of all, so that columns in another order are swapped. Each changes values without a word.
"""

# Not called _csv: spark-submit has this directory on the path, and Python's csv would import it in place of its own.

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType
from ringcast_wire import InvalidInputError, shown, shown_path
from ringcast_wire.csv_reader import MAX_LINE_BYTES, CsvError, CsvRecord, read_header, read_records, width_problem

from pyspark_ringcast.pipeline._csv_options import CsvOptions, parse_csv_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_ringcast.pipeline._spec import Source

CORRUPT: Final = "_corrupt_record"
"""The column that says what is wrong with a record; null where nothing is."""
_BATCH_ROWS: Final = 2_000
_BATCH_CHARS: Final = 4 * 1024 * 1024
_MAX_TASKS: Final = 1_000
_LOCAL: Final = "file:"
_ABOUT_A_FILE: Final = ("path", "modificationTime", "length", "content")


def read_csv(spark: SparkSession, source: Source) -> DataFrame:
    """All columns as texts, and ``_corrupt_record``; only the header of the first file is read now.

    Raises:
        InvalidInputError: there is no file, no header, or it can't be read. A file that can't be read right ends the
            query that reads it, with the file, the line and the reason.
    """
    options = parse_csv_options(source.options)
    listing = spark.read.format("binaryFile").options(**options.listing).load(source.paths)
    of_directories = [name for name in listing.columns if name not in _ABOUT_A_FILE]
    chosen = listing.select("path", *(sql.col(f"`{name}`").cast("string") for name in of_directories))
    files = sorted(tuple(row) for row in chosen.collect())
    columns = _columns(spark, files, options)
    for name in columns:
        if name in of_directories or name == CORRUPT:
            raise InvalidInputError(f"column {shown(name)} of the input has a name that is taken", field=name)
    names = (*columns, *of_directories, CORRUPT)
    task = _ReadFiles(names, len(columns), options, {path: tuple(values) for path, *values in files})
    schema = StructType([StructField(name, StringType()) for name in names])
    if _are_local(files):
        tasks = min(len(files), _MAX_TASKS)
        return spark.range(0, len(files), 1, tasks).mapInArrow(task.read_local, schema)
    # What only Spark can log in to is read by Spark, whole: its limit for a file is 2 GiB.
    return listing.select("path", "content").mapInArrow(task.read_content, schema)


def _are_local(files: Iterable[Sequence[str]]) -> bool:
    return all(path.startswith(_LOCAL) for path, *_ in files)


def _columns(spark: SparkSession, files: Sequence[Sequence[str]], options: CsvOptions) -> list[str]:
    """The columns of the first file that is not empty."""
    for path, *_ in files:
        if path.startswith(_LOCAL):
            with _opened(path) as file:
                columns = _first_columns(path, file, options)
        else:
            content = spark.read.format("binaryFile").load(path).select("path", "content")
            names = content.mapInArrow(_ReadHeader(options), "name STRING").collect()
            columns = [row.name for row in names]
        if columns:
            return columns
    raise InvalidInputError("the input is empty: it has no header", field="source.paths")


@dataclass(frozen=True, slots=True)
class _ReadHeader:
    """The columns of a file that Spark has read."""

    options: CsvOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path, file in _contents(batches):
            yield pa.record_batch({"name": pa.array(_first_columns(path, file, self.options), pa.string())})


def _first_columns(path: str, file: IO[bytes], options: CsvOptions) -> list[str]:
    with _named_errors(path, options):
        for record in read_records(_lines(file, options), options.rules):
            names = read_header(record) if options.header else [""] * len(record.cells)
            return [name or f"_c{number}" for number, name in enumerate(names)]
    return []


@dataclass(frozen=True, slots=True)
class _ReadFiles:
    """Travels to the tasks. ``names``: of the result, ``width`` of them columns of the files.

    ``files``: for each path what its directories say (``cc=DE/``).
    """

    names: tuple[str, ...]
    width: int
    options: CsvOptions
    files: dict[str, tuple[str | None, ...]]

    def read_local(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Files of this machine by their number."""
        paths = list(self.files)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with _opened(paths[number]) as file:
                    yield from self._read(paths[number], file)

    def read_content(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Files that Spark has read."""
        for path, file in _contents(batches):
            yield from self._read(path, file)

    def _read(self, path: str, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        with _named_errors(path, self.options):
            records = read_records(_lines(file, self.options), self.options.rules)
            order = self._order(records) if self.options.header else range(self.width)
            chunk: list[CsvRecord] = []
            chars = 0
            for record in records:
                chunk.append(record)
                chars += sum(map(len, record.cells))
                if len(chunk) >= _BATCH_ROWS or chars >= _BATCH_CHARS:
                    yield self._batch(path, chunk, order)
                    chunk, chars = [], 0
            yield self._batch(path, chunk, order)

    def _order(self, records: Iterator[CsvRecord]) -> Sequence[int]:
        """Where a file has each column."""
        header = next(records, None)
        if header is None:
            return range(self.width)
        names = [name or f"_c{number}" for number, name in enumerate(read_header(header))]
        columns = self.names[: self.width]
        if sorted(names) != sorted(columns):
            raise CsvError(
                header.line,
                f"has the columns {shown(', '.join(names), 200)}; the first file of the input has "
                f"{shown(', '.join(columns), 200)}: all need the same, in any order",
            )
        return [names.index(name) for name in columns]

    def _batch(self, path: str, records: Sequence[CsvRecord], order: Sequence[int]) -> pa.RecordBatch:
        width, null = self.width, self.options.null_value
        problems = [record.problem or width_problem(record.cells, width) for record in records]
        rows = [
            record.cells if problem is None else _readable(record.cells, width)
            for record, problem in zip(records, problems, strict=True)
        ]
        columns = [[None if row[at] == null else row[at] for row in rows] for at in order]
        columns += [[value] * len(rows) for value in self.files[path]]
        columns.append(
            [
                None if problem is None else f"line {record.line} {problem}; file {_plain(path)}"
                for record, problem in zip(records, problems, strict=True)
            ]
        )
        return pa.record_batch([pa.array(column, pa.string()) for column in columns], list(self.names))


def _readable(cells: Sequence[str], width: int) -> list[str]:
    """As much of a record with a problem as can be read: it is only reported, under the id that it seems to have."""
    readable = [cell.encode(errors="replace").decode() for cell in cells[:width]]
    return readable + [""] * (width - len(readable))


@contextmanager
def _named_errors(path: str, options: CsvOptions) -> Iterator[None]:
    """Makes the errors of reading name the file."""
    try:
        yield
    except CsvError as error:
        raise InvalidInputError(f"file {shown_path(_plain(path))}, {error}", field="source.paths") from None
    except UnicodeError as error:
        reason = f"is not {options.rules.encoding}: {error}"
        raise InvalidInputError(f"file {shown_path(_plain(path))} {reason}", field="source.paths") from None
    except (OSError, EOFError, pa.ArrowException) as error:
        reason = f"can't be read: {getattr(error, 'strerror', None) or error}"
        raise InvalidInputError(f"file {shown_path(_plain(path))} {reason}", field="source.paths") from None


def _plain(path: str) -> str:
    """The path as a person writes it: Spark says ``file:/tmp/x``."""
    return "/" + path.removeprefix(_LOCAL).lstrip("/") if path.startswith(_LOCAL) else path


def _opened(path: str) -> Any:
    try:
        return pa.input_stream(_plain(path), compression="detect")
    except OSError as error:
        reason = f"can't be opened: {error.strerror or error}"
        raise InvalidInputError(f"file {shown_path(_plain(path))} {reason}", field="source.paths") from None


def _contents(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Any]]:
    for batch in batches:
        for path, content in zip(batch.column(0), batch.column(1), strict=True):
            name: str = path.as_py()
            packed = next((kind for ending, kind in _PACKED.items() if name.endswith(ending)), None)
            yield name, pa.input_stream(content.as_buffer(), compression=packed)


_PACKED: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


def _lines(file: IO[bytes], options: CsvOptions) -> Iterator[str]:
    """Lines with their ends as they are.

    Raises:
        CsvError: one is too long.
    """
    text = io.TextIOWrapper(file, encoding=options.encoding, errors="surrogateescape", newline="")
    read: Callable[[int], str] = text.readline
    number = 0
    while line := read(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise CsvError(number, f"is too long: at most {MAX_LINE_BYTES} characters are allowed")
        yield line
