"""Reading Parquet: what is taken, and one clear sentence for what is not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ringcast_cli._rows.formats import Layout
from ringcast_cli._rows.parquet import open_parquet
from ringcast_cli._rows.source import BadLineError, InputError, Source, open_source


def _file(tmp_path: Path, **columns: Any) -> Path:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=1000, compression="none", use_dictionary=False)
    return path


def _read(path: Path, layout: Layout | None = None) -> list[object]:
    with open_source(str(path)) as source, open_parquet(source, layout or Layout()) as parquet:
        return [
            str(item) if isinstance(item, BadLineError) else (item[0], item[1].row_id, item[1].value)
            for item in parquet.parsed()
        ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_text_column(tmp_path: Path, kind: pa.DataType) -> None:
    path = _file(tmp_path, id=pa.array(["a", "b"]).cast(kind), value=pa.array(["1", ""]).cast(kind))
    assert _read(path) == [(1, "a", "1"), (2, "b", "")]


def test_named_columns_fixed_value_and_metadata(tmp_path: Path) -> None:
    path = _file(tmp_path, domain=["a"], why=["spam"], other=[1])
    layout = Layout(id_column="domain", value="x", metadata_columns=("why",))
    with open_source(str(path)) as source, open_parquet(source, layout) as parquet:
        (item,) = parquet.parsed()
    assert not isinstance(item, BadLineError)
    assert (item[1].row_id, item[1].value, item[1].metadata) == ("a", "x", {"why": "spam"})


def test_a_null_is_a_bad_row(tmp_path: Path) -> None:
    path = _file(tmp_path, id=["a", None, "c"], value=["1", "2", None])
    assert _read(path) == [(1, "a", "1"), "row 2: id is null: it must be text", "row 3: value is null: it must be text"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": [1], "value": ["x"]}, "column 'id' has type int64, it must be text"),
        ({"id": ["a"], "value": [b"x"]}, "column 'value' has type binary, it must be text"),
        ({"domain": ["a"]}, "has no column 'row_id' or 'id', only 'domain'"),
        ({"id": ["a"]}, "has no column 'value'"),
    ],
)
def test_columns_that_are_not_text_or_not_there(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        _read(_file(tmp_path, **columns))
    assert said in str(caught.value)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.999])
def test_a_truncated_file_is_refused_before_any_row(tmp_path: Path, keep: float) -> None:
    path = _file(tmp_path, id=[str(number) for number in range(5000)], value=["x"] * 5000)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(InputError, match="is not a Parquet file, or is truncated"):
        _read(path)


def test_damage_in_the_middle_is_found_with_the_row_before_it(tmp_path: Path) -> None:
    path = _file(tmp_path, id=[f"row{number:06d}" for number in range(20_000)], value=["x"] * 20_000)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 30_000] = b"\xff" * 30_000
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"is damaged after row \d+: "):
        _read(path)


def test_from_a_pipe(tmp_path: Path) -> None:
    path = _file(tmp_path, id=["a"], value=["1"])
    with path.open("rb") as file, open_parquet(Source("standard input", file, None), Layout()) as parquet:
        assert parquet.rows == 1


def test_without_pyarrow_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path, id=["a"], value=["1"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        InputError, match=r"needs the package pyarrow; install it with: pip install 'ringcast-cli\[parq"
    ):
        _read(path)
