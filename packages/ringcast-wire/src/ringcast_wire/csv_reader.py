"""How a CSV file is read: RFC 4180, by one set of rules for the pipeline, ``ringcast import`` and ``ringcast sync``.

Python's ``csv`` cuts lines into fields. A record that is wrong by itself (another number of columns, bytes that are not
of the encoding) comes with its problem, and the next one is read. Where it can't be told where the next record begins
(a quote that is never closed, text behind a closing quote, a line without an end), the rest of the file is refused:
what looks like a row from there on may be the inside of a value.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ringcast_wire._common import limits
from ringcast_wire._common.errors import InvalidInputError, shown

MAX_LINE_BYTES: Final = 4 * limits.MAX_ROW_BYTES
"""A row of 1 MiB fits even when half of it is escaped. A field is no longer either."""
_BOM: Final = "\ufeff"
_LONE_RETURN: Final = re.compile(r"(?<=\r)(?!\n)(?=.)", re.DOTALL)


class CsvError(InvalidInputError):
    """A file can't be read from a line on."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}", field="line")
        self.line = line


@dataclass(frozen=True, slots=True)
class CsvRules:
    """Where fields end. ``escape`` other than ``quote``: what makes the character after it a part of the text.

    Lines that begin with ``comment``, unless it is empty, are left out, but not those inside a quoted field.
    ``encoding`` is only named in problems: lines come decoded.
    """

    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    comment: str = ""
    encoding: str = "UTF-8"


RFC_4180: Final = CsvRules()


class CsvRecord(NamedTuple):
    """One record. ``line`` is its first one, from 1; ``problem`` says why it can't be taken."""

    line: int
    cells: list[str]
    problem: str | None


def read_records(lines: Iterable[str], rules: CsvRules = RFC_4180) -> Iterator[CsvRecord]:
    """The records of a file but for blank lines, the header among them.

    Args:
        lines: With their ends as they are, decoded with ``surrogateescape``; a byte order mark is left out.
        rules: Where fields end.

    Raises:
        CsvError: what follows can't be read right.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # one number a process; nobody else here reads CSV
    source = _Lines(lines, rules)
    reader = csv.reader(
        source,
        delimiter=rules.delimiter,
        quotechar=rules.quote,
        escapechar=None if rules.escape == rules.quote else rules.escape,
        strict=True,
    )
    while True:
        source.begin_record()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise CsvError(source.first, f"is malformed: {error}") from None
        if cells:
            yield CsvRecord(source.first, cells, source.problem)


def read_header(record: CsvRecord) -> list[str]:
    """The names of the columns; those without a name have an empty one.

    Raises:
        CsvError: the record has a problem, or a name stands in it twice.
    """
    if record.problem is not None:
        raise CsvError(record.line, record.problem)
    seen: set[str] = set()
    for name in record.cells:
        if name and name in seen:
            raise CsvError(record.line, f"names the column {shown(name)} twice: it is unclear which one is meant")
        seen.add(name)
    return record.cells


def width_problem(cells: Sequence[str], width: int) -> str | None:
    """What is wrong with a record that should have ``width`` columns."""
    return None if len(cells) == width else f"has {len(cells)} columns, expected are {width}"


class _Lines:
    """The lines of a file for the csv module, which takes as many as a record has."""

    def __init__(self, lines: Iterable[str], rules: CsvRules) -> None:
        self._lines = _split_at_returns(lines)
        self._rules = rules
        self._number = 0
        self._between_records = True
        self.first = 1
        self.problem: str | None = None

    def begin_record(self) -> None:
        """The next line is the first one of a record."""
        self._between_records = True
        self.problem = None

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._next_line()
        comment = self._rules.comment
        while self._between_records and comment and line.startswith(comment):
            line = self._next_line()
        if self._between_records:
            self.first = self._number
            self._between_records = False
        if self.problem is None and not line.isascii():
            self.problem = _encoding_problem(line, self._rules.encoding)
        return line

    def _next_line(self) -> str:
        line = next(self._lines)
        self._number += 1
        return line.removeprefix(_BOM) if self._number == 1 else line


def _split_at_returns(lines: Iterable[str]) -> Iterator[str]:
    """Each line by itself where lines end with a carriage return alone, which the csv module does not take."""
    for line in lines:
        if "\r" in line and "\r" in line.removesuffix("\n").removesuffix("\r"):
            yield from _LONE_RETURN.split(line)
        else:
            yield line


def _encoding_problem(line: str, encoding: str) -> str | None:
    """What is wrong with a line that has bytes which are not of the encoding."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) - 0xDC00
        position = len(line[: error.start].encode(encoding, "replace")) + 1
        return f"is not {encoding}: byte 0x{byte:02x} at position {position}"
    return None
