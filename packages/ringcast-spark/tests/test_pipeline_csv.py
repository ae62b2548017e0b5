"""CSV in the pipeline: what Python's own reader reads, whatever the files are like, or a sentence."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark_ringcast import pipeline
from pyspark_ringcast.pipeline import _csv_files
from pyspark_ringcast.pipeline._csv_options import parse_csv_options
from pyspark_ringcast.pipeline._input import read_raw
from pyspark_ringcast.pipeline._spec import Source
from ringcast_testkit.wild_csv import OTHERS, READABLE, REFUSED, WildCsv
from ringcast_wire import InvalidInputError

Store = Any  # of conftest.py


def write_files(directory: Path, *files: WildCsv) -> None:
    directory.mkdir()
    for file in files:
        (directory / f"{file.name}.csv").write_bytes(file.data)


def document_of(store: Store, path: Path, **source: Any) -> dict[str, Any]:
    return {
        "source": {"paths": [str(path)], "format": "csv", **source},
        "row": {"row_id": "network", "value": "owner"},
        "target": store.options | {"timeout_s": 30.0},
        "guards": {"max_rejected_share": 0.1},
    }


def test_a_directory_of_wild_files_goes_live_as_the_referee_reads_it(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", *READABLE)
    (tmp_path / "in" / "packed.csv.gz").write_bytes(gzip.compress(b'network,owner\npacked 1,"a\nb"\n'))
    # An empty field is null unless another text is: the list may then have empty values too.
    document = document_of(store, tmp_path / "in", options={"nullValue": "\\N"})
    planned = pipeline.make_plan(spark, pipeline.parse_spec(document))
    pipeline.apply_plan(spark, planned)
    wanted = {row["network"]: row["owner"] for file in READABLE for row in file.referee_rows()}
    assert store.rows() == wanted | {"packed 1": "a\nb"}
    assert planned.plan.input.rejected == sum(len(file.bad) for file in READABLE)
    assert planned.rejects is not None
    reported = {(row.row_id, row.field, row.reason): row.value for row in planned.rejects.collect()}
    where = f"file {tmp_path}/in/wrong widths.csv"
    assert reported["width 1", "", "can't be read as csv"] == f"line 2 has 3 columns, expected are 2; {where}"
    assert reported["width 2", "", "can't be read as csv"] == f"line 3 has 1 columns, expected are 2; {where}"
    assert reported["latin 1", "", "can't be read as csv"].startswith("line 2 is not UTF-8: byte 0xf6 at position 12;")
    planned.release()


def test_options_and_other_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Delimiters, a file without a header, directories that say something, another encoding, comments, nulls."""

    def read(path: Path, **options: str) -> list[dict[str, str | None]]:
        frame = read_raw(spark, Source(paths=[str(path)], format="csv", options=options))
        return [{name: text for name, text in row.asDict().items() if text is not None} for row in frame.collect()]

    semicolons, tabs, more = OTHERS
    write_files(tmp_path / "semi", semicolons)
    assert read(tmp_path / "semi", sep=";") == semicolons.referee_rows()
    write_files(tmp_path / "tab", tabs)
    assert read(tmp_path / "tab", delimiter="\\t") == tabs.referee_rows()
    write_files(tmp_path / "more", more)
    assert read(tmp_path / "more")[0] == {"asn": "1", "network": "more 1", "_c2": "?", "owner": "x, y"}

    (tmp_path / "parts" / "cc=DE").mkdir(parents=True)
    (tmp_path / "parts" / "cc=DE" / "x.csv").write_bytes("# no\r\n'a\\'ö', -\r\n".encode("latin-1"))
    options = {
        "header": "false",
        "encoding": "latin-1",
        "quote": "'",
        "escape": "\\",
        "comment": "#",
        "nullValue": " -",
    }
    assert read(tmp_path / "parts", pathGlobFilter="x.csv", **options) == [{"_c0": "a'ö", "cc": "DE"}]


def test_a_file_that_can_t_be_read_right_leaves_the_key_as_it_is(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    store.write_rows({"a": "old"})
    write_files(tmp_path / "in", WildCsv("1", b"network,owner\na,new\nb,2\n"), WildCsv("2", REFUSED[1].data))
    with pytest.raises(InvalidInputError) as caught:
        pipeline.make_plan(spark, pipeline.parse_spec(document_of(store, tmp_path / "in")))
    assert str(caught.value) == f"file '{tmp_path}/in/2.csv', {REFUSED[1].refused}"
    assert store.rows() == {"a": "old"}


def task_of(path: Path) -> _csv_files._ReadFiles:
    return _csv_files._ReadFiles(
        ("network", "owner", _csv_files.CORRUPT), 2, parse_csv_options({}), {f"file:{path}": ()}
    )


def read_here(task: _csv_files._ReadFiles) -> list[Any]:
    """What Spark does, without its processes and its retries."""
    return [row for batch in task.read_local(iter([pa.record_batch({"id": [0]})])) for row in batch.to_pylist()]


@pytest.mark.parametrize("file", REFUSED, ids=lambda file: file.name)
def test_what_can_t_be_read_right_is_refused(tmp_path: Path, file: WildCsv) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(file.data)
    with pytest.raises(InvalidInputError) as caught:
        read_here(task_of(path))
    assert str(caught.value).startswith(f"file '{path}', {file.refused}")


def test_every_file_must_have_the_same_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"network,owned\na,1\n")
    with pytest.raises(InvalidInputError) as caught:
        read_here(task_of(path))
    assert str(caught.value) == (
        f"file '{path}', line 1: has the columns 'network, owned'; the first file of the input has 'network, owner': "
        "all need the same, in any order"
    )


def test_a_file_that_spark_has_read_is_read_alike(tmp_path: Path) -> None:
    """As one in object storage is: its content comes as a column."""
    file = READABLE[1]
    task = task_of(tmp_path)
    content = pa.record_batch({"path": [f"file:{tmp_path}"], "content": [file.data]})
    rows = [row for batch in task.read_content(iter([content])) for row in batch.to_pylist()]
    assert [{name: row[name] for name in ("network", "owner")} for row in rows] == file.referee_rows()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"inferSchema": "true"}, "source.options.inferschema is not one of a CSV file: there are sep, header"),
        ({"sep": "||"}, "source.options.sep is '||': one character is allowed"),
        ({"header": "yes"}, "source.options.header is 'yes': true or false is allowed"),
        ({"multiLine": "false"}, "source.options.multiLine is false: a quoted field may hold line breaks"),
        ({"encoding": "klingon"}, "source.options.encoding is 'klingon': Python knows no such encoding"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, str], sentence: str) -> None:
    document = {
        "source": {"paths": ["a.csv"], "format": "csv", "options": options},
        "row": {"row_id": "network", "value": "owner"},
        "target": {"store": "s", "key": "k"},
    }
    with pytest.raises(InvalidInputError, match=sentence.replace("|", r"\|")):
        pipeline.parse_spec(document)
