"""The readers of an import: rows with their lines, and bad lines that don't end the reading."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ringcast_cli._rows.formats import Format, Layout, Parsed, format_of, read_csv, read_jsonl, read_text
from ringcast_cli._rows.source import BadLineError, InputError, Source, open_source
from ringcast_client import RowWrite
from ringcast_testkit.wild_csv import OTHERS, READABLE, REFUSED, WildCsv
from ringcast_wire.csv_reader import MAX_LINE_BYTES

Reader = Callable[[Source, Layout], Iterator[Parsed]]


def _read(reader: Reader, data: bytes | str, layout: Layout | None = None) -> list[object]:
    """(line, id, value) of each row, and the sentence of each bad line."""
    raw = data.encode() if isinstance(data, str) else data
    parsed = reader(Source("input", io.BytesIO(raw), len(raw)), layout or Layout())
    return [
        str(item) if isinstance(item, BadLineError) else (item[0], item[1].row_id, item[1].value) for item in parsed
    ]


def _rows(reader: Reader, data: str, layout: Layout | None = None) -> list[RowWrite]:
    source = Source("input", io.BytesIO(data.encode()), len(data))
    return [item[1] for item in reader(source, layout or Layout()) if not isinstance(item, BadLineError)]


def test_text_is_one_id_a_line() -> None:
    assert _read(read_text, "a\r\n\n# no\n  b  \nc") == [(1, "a", ""), (4, "b", ""), (5, "c", "")]
    assert _read(read_text, "// no\n#a\n", Layout(comment="//", value="x")) == [(2, "#a", "x")]
    assert _read(read_text, "#a\n", Layout(comment="")) == [(1, "#a", "")]


def test_a_byte_order_mark_is_not_a_part_of_the_first_line() -> None:
    assert _read(read_text, b"\xef\xbb\xbfa\n") == [(1, "a", "")]
    assert _read(read_csv, b"\xef\xbb\xbfid,value\n1,x\n") == [(2, "1", "x")]


def test_text_in_another_encoding_is_a_bad_line() -> None:
    assert _read(read_text, b"good\nsch\xf6n\ngood2\n") == [
        (1, "good", ""),
        "line 2: is not UTF-8: byte 0xf6 at position 4",
        (3, "good2", ""),
    ]
    assert _read(read_text, "a\n".encode("utf-16"))[0] == "line 1: is not UTF-8: byte 0xff at position 1"


@pytest.mark.parametrize("reader", [read_text, read_jsonl])
def test_an_endless_line_is_skipped_without_being_kept(reader: Reader) -> None:
    good = b'{"id": "a", "value": ""}\n' if reader is read_jsonl else b"a\n"
    parsed = _read(reader, b"x" * (3 * MAX_LINE_BYTES) + b"\n" + good)
    assert parsed == [f"line 1: is too long: at most {MAX_LINE_BYTES} bytes are allowed", (2, "a", "")]


def test_jsonl() -> None:
    data = '{"row_id": "a", "value": "1", "version": 4, "metadata": {"m": "n"}}\n\n{"id": "b", "deleted": true}\n'
    assert _rows(read_jsonl, data) == [RowWrite("a", "1", {"m": "n"}), RowWrite("b", delete=True)]


def test_jsonl_with_conditions() -> None:
    lines = ('"value": "1", "if_version": 4', '"value": "1", "if_absent": true', '"deleted": true, "if_version": 7')
    assert _rows(read_jsonl, "".join(f'{{"id": "a", {line}}}\n' for line in lines)) == [
        RowWrite("a", "1", {}, if_version=4),
        RowWrite("a", "1", {}, if_absent=True),
        RowWrite("a", delete=True, if_version=7),
    ]


def test_jsonl_with_named_columns() -> None:
    layout = Layout(id_column="domain", value_column="why", metadata_columns=("by",))
    assert _rows(read_jsonl, '{"domain": "x", "why": "spam", "by": "me", "id": 3}\n', layout) == [
        RowWrite("x", "spam", {"by": "me"})
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "is not a JSON object: Input data was truncated"),
        (b"[1]", "is not a JSON object: Expected `object`, got `array`"),
        (b'{"value": "x"}', "has no row_id or id"),
        (b'{"id": 5, "value": "x"}', "row_id 5 is of type int: it must be text"),
        (b'{"id": "a"}', "has no value"),
        (b'{"id": "a", "value": 5}', "value 5 is of type int: it must be text"),
        (b'{"id": "a", "value": {"x": 1}}', "value {'x': 1} is of type dict: it must be text"),
        (b'{"id": "a", "value": "", "metadata": {"m": 1}}', "metadata m 1 is of type int: it must be text"),
        (b'{"id": "a", "value": "", "metadata": "m"}', "metadata 'm' is not an object"),
        (b'{"id": "a", "deleted": "yes"}', "deleted 'yes' is neither true nor false"),
        (b'{"id": "a", "value": "", "if_absent": 1}', "if_absent 1 is neither true nor false"),
        (b'{"id": "a", "value": "", "if_version": "1"}', "if_version '1' is of type str, not a number"),
        (b'{"id": "a", "value": "", "if_version": true}', "if_version True is of type bool, not a number"),
        (b'{"id": "\xff", "value": ""}', "UTF-8"),
        (b'{"id": "a", "value": ' + b"[" * 5000 + b"}", "is not a JSON object"),
    ],
)
def test_a_bad_json_line_is_named_and_the_next_is_read(line: bytes, said: str) -> None:
    parsed = _read(read_jsonl, line + b'\n{"id": "b", "value": "c"}\n')
    assert isinstance(parsed[0], str)
    assert parsed[0].startswith("line 1: ")
    assert said in parsed[0]
    assert parsed[1:] == [(2, "b", "c")]


def test_csv_with_quotes_and_line_ends_inside() -> None:
    data = 'value,extra,row_id\r\n"a ""b"", c",x,1\r\n"two\r\nlines",y,2\r\n\r\nplain,z,3\r\n'
    assert _read(read_csv, data) == [(2, "1", 'a "b", c'), (3, "2", "two\r\nlines"), (6, "3", "plain")]


def test_csv_metadata_delimiter_and_no_header() -> None:
    layout = Layout(header=False, delimiter=";", id_column="2", value_column="1", metadata_columns=("3",))
    assert _rows(read_csv, "v;i;m\n", layout) == [RowWrite("i", "v", {"3": "m"})]
    assert _read(read_csv, "domain\nx.org\n", Layout(id_column="domain", value="bad")) == [(2, "x.org", "bad")]


def test_a_bad_csv_line_is_named_and_the_next_is_read() -> None:
    data = b"id,value\na,1,extra\nb\nd,\xff\ne,5\n"
    assert _read(read_csv, data) == [
        "line 2: has 3 columns, expected are 2",
        "line 3: has 1 columns, expected are 2",
        "line 4: is not UTF-8: byte 0xff at position 3",
        (5, "e", "5"),
    ]


@pytest.mark.parametrize("file", [*READABLE, *OTHERS], ids=lambda file: file.name)
def test_wild_csv_is_read_as_the_referee_reads_it(file: WildCsv) -> None:
    layout = Layout(id_column="network", value_column="owner", delimiter=file.delimiter)
    parsed = list(read_csv(Source("input", io.BytesIO(file.data), len(file.data)), layout))
    assert [item[1] for item in parsed if not isinstance(item, BadLineError)] == [
        RowWrite(row["network"], row["owner"]) for row in file.referee_rows()
    ]
    assert tuple(item.line for item in parsed if isinstance(item, BadLineError)) == file.bad


@pytest.mark.parametrize("file", REFUSED, ids=lambda file: file.name)
def test_csv_that_can_t_be_read_right_is_refused(file: WildCsv) -> None:
    """There is no going on, for what looks like a row from there on may be the inside of a value."""
    with pytest.raises(InputError) as caught:
        _read(read_csv, file.data, Layout(id_column="network", value_column="owner"))
    assert f"file input, {file.refused}" in str(caught.value)


@pytest.mark.parametrize(
    ("header", "layout", "said"),
    [
        ("domain,value", Layout(), "has no column 'row_id' or 'id', only 'domain, value': name it with --id-column"),
        ("id,reason", Layout(), "has no column 'value', only 'id, reason': name it with --value-column"),
        ("id,value", Layout(id_column="x"), "has no column 'x'"),
        ("id,value", Layout(metadata_columns=("m",)), "has no column 'm'"),
    ],
)
def test_a_missing_column_ends_the_reading(header: str, layout: Layout, said: str) -> None:
    with pytest.raises(InputError) as caught:
        _read(read_csv, f"{header}\na,b\n", layout)
    assert said in str(caught.value)


def test_a_header_in_another_encoding_ends_the_reading() -> None:
    with pytest.raises(InputError, match="line 1: is not UTF-8"):
        _read(read_csv, "id,value\na,b\n".encode("utf-16"))


def test_the_suffix_gives_the_format() -> None:
    assert format_of("a/b.CSV") is Format.CSV
    assert format_of("x.tsv") is Format.CSV
    assert format_of("x.ndjson") is Format.JSONL
    assert format_of("x.txt") is Format.TEXT
    assert format_of("x.pq") is Format.PARQUET
    assert format_of("x.dat") is None


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.csv", "does not exist"), (tmp_path, "is a directory")):
        with pytest.raises(InputError, match=said), open_source(str(path)):
            pass
