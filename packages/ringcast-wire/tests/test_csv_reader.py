"""The rules by which CSV is read, held against Python's own reader over a corpus of wild files."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator

import pytest
from ringcast_testkit.wild_csv import OTHERS, READABLE, REFUSED, WildCsv
from ringcast_wire.csv_reader import CsvError, CsvRecord, CsvRules, read_header, read_records, width_problem


def lines_of(data: bytes) -> Iterator[str]:
    """Cut at line feeds alone, as a file in binary is."""
    for line in io.BytesIO(data):
        yield line.decode(errors="surrogateescape")


def records_of(text: str, rules: CsvRules) -> list[CsvRecord]:
    return list(read_records(lines_of(text.encode()), rules))


@pytest.mark.parametrize("file", [*READABLE, *OTHERS], ids=lambda file: file.name)
def test_what_is_read_is_what_the_referee_reads(file: WildCsv) -> None:
    records = read_records(lines_of(file.data), CsvRules(delimiter=file.delimiter))
    header = read_header(next(records))
    found, bad = [], []
    for record in records:
        if record.problem or width_problem(record.cells, len(header)):
            bad.append(record.line)
        else:
            found.append(dict(zip(header, record.cells, strict=True)))
    assert found == file.referee_rows()
    assert tuple(bad) == file.bad


def test_the_corpus_has_what_breaks_readers() -> None:
    values = "".join(row["owner"] for file in READABLE for row in file.referee_rows())
    assert all(mark in values for mark in ('"', "\n", "\r\n", "\r", ",", "\\", "\U0001f600"))
    ids = [row["network"] for file in (*READABLE, *OTHERS) for row in file.referee_rows()]
    assert len(ids) == len(set(ids)) > 600


@pytest.mark.parametrize(
    "file", [file for file in REFUSED if "too long" not in file.refused], ids=lambda file: file.name
)
def test_what_can_t_be_read_right_is_refused(file: WildCsv) -> None:
    """Nothing of the line that is named, and nothing behind it, comes before the error."""
    seen: list[int] = []

    def read() -> None:
        for record in read_records(lines_of(file.data)):
            seen.append(record.line)
            if record.line == 1:
                read_header(record)

    with pytest.raises(CsvError) as caught:
        read()
    assert str(caught.value).startswith(file.refused)
    assert all(line < caught.value.line for line in seen[1:])


def test_other_rules() -> None:
    rules = CsvRules(delimiter=";", quote="'", escape="\\", comment="#")
    found = records_of("# no\na;b\n'it\\'s;\n# inside';x\n#no\ny\\;;z\n", rules)
    assert [(record.line, record.cells) for record in found] == [
        (2, ["a", "b"]),
        (3, ["it's;\n# inside", "x"]),
        (6, ["y;", "z"]),
    ]


def test_random_bytes_are_read_as_the_referee_does_or_refused() -> None:
    """Never other values. A lone carriage return, of which the referee makes nothing in a line, ends one."""
    dice = random.Random(11)
    pieces = [b'"', b",", b"\n", b"\r", b"\r\n", b"a", b"\xc3\xa9", b" ", b"\xff"]
    read = 0
    for _ in range(5_000):
        data = b"".join(dice.choices(pieces, k=dice.randrange(1, 25)))
        text = io.TextIOWrapper(io.BytesIO(data), errors="surrogateescape", encoding="utf-8", newline="")
        wanted: list[list[str]] | None
        try:
            wanted = [cells for cells in csv.reader(text, strict=True) if cells]
        except csv.Error:
            wanted = None
        try:
            found = list(read_records(lines_of(data)))
        except CsvError:
            assert wanted is None, data
            continue
        assert [record.cells for record in found] == wanted, data
        assert all(
            (record.problem is not None) == any("\udcff" in cell for cell in record.cells) for record in found
        ), data
        read += 1
    assert read > 1_000
