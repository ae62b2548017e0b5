"""Columns of a DataFrame's own: ids of another name, values and metadata that are made of columns."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark_ringcast import Counts, lookup, prepare, register, write
from pyspark_ringcast._common.batches import Rejected
from pyspark_ringcast._common.mapping import WriteColumns
from pyspark_ringcast._common.options import parse_options
from ringcast_wire import InvalidInputError

Store = Any  # of conftest.py

TYPES = (
    "flag BOOLEAN, small TINYINT, big BIGINT, exact DECIMAL(38, 10), rough DOUBLE, day DATE, at TIMESTAMP, "
    "clock TIMESTAMP_NTZ, raw BINARY, tags ARRAY<STRING>, `odd, name` STRUCT<x: INT, y: ARRAY<DATE>>, "
    "counts MAP<STRING, BIGINT>, text STRING"
)
FULL = Row(
    flag=True,
    small=-128,
    big=2**63 - 1,
    exact=Decimal("1234567890123456789012345678.0123456789"),
    rough=0.1,
    day=date(2026, 1, 31),
    at=datetime.fromisoformat("2026-01-31T12:00:00.123456"),
    clock=datetime.fromisoformat("2026-01-31T12:00:00.000001"),
    raw=b"\x00\xff",
    tags=["a", None, "ü"],
    odd=Row(x=None, y=[date(1970, 1, 1)]),
    counts={"one": 1},
    text='"\n\u2028',
)
EMPTY = Row(*[None] * len(FULL))


def mapped(store: Store, **more: str) -> dict[str, str]:
    return {"idColumn": "Network", "valueColumns": TYPES, "metadataColumns": "by,`why so`", **more}


def test_what_is_written_is_read(spark: SparkSession, store: Store) -> None:
    """Every type that JSON can hold, to the last digit; the columns come in any case and order."""
    schema = f"`why so` STRING, network STRING, {TYPES}, BY STRING"
    rows = [("test", "full", *FULL, None), (None, "empty", *EMPTY, "desk")]
    store.save(spark.createDataFrame(rows, schema), **mapped(store))
    assert store.rows()["empty"] == "{}"
    assert store.rows()["full"].startswith(
        '{"flag":true,"small":-128,"big":9223372036854775807,"exact":12345678901234567'
    )
    assert (store.metadata("full"), store.metadata("empty")) == ({"why so": "test"}, {"by": "desk"})
    read = store.load(**mapped(store))
    values = spark.createDataFrame([], TYPES).columns
    assert read.columns == ["Network", *values, "version", "partition", "deleted", "by", "why so"]
    found = {row.Network: row for row in read.collect()}
    assert found["full"][1:14] == tuple(FULL)
    assert found["empty"][1:14] == tuple(EMPTY)
    assert (found["full"].by, found["full"]["why so"], found["empty"].by) == (None, "test", "desk")
    before = store.heads()
    store.save(read, mode="overwrite", **mapped(store))
    assert store.heads() == before, "what was read is written, and nothing changes"


def test_only_the_columns_that_are_wanted(store: Store) -> None:
    store.put("a", '{"n": 1}', by="me")
    store.put("b", "no JSON")
    read = store.load(valueColumns="n INT", metadataColumns="by", columns="BY, row_id")
    assert (read.columns, {row.row_id: row.by for row in read.collect()}) == (["by", "row_id"], {"a": "me", "b": None})


def test_malformed_values(store: Store) -> None:
    """Of another form, of another type, out of range: an error that names the row, or nulls."""
    wrong = {"text": "no JSON", "list": "[1]", "type": '{"n": "1"}', "range": '{"n": 2147483648}', "null": "null"}
    store.write_rows({**wrong, "right": ' {"n": 7, "more": 1}'})
    with pytest.raises(PySparkException, match=r"the value of row '\w+' of .*/list does not fit option value_columns"):
        store.load(valueColumns="n INT").collect()
    found = {row.row_id: row.n for row in store.load(valueColumns="n INT", malformedValues="null").collect()}
    assert found == {**dict.fromkeys(wrong), "right": 7}
    store.delete("right")
    (gone,) = store.load(valueColumns="n INT", rowIds="right", includeDeleted="true").collect()
    assert (gone.deleted, gone.n) == (True, None)


def test_streams_have_them_too(spark: SparkSession, store: Store, stream: Any) -> None:
    """The change feed as well; and a sink, whose rows are told apart by the id."""
    store.put("a", '{"n": 1}')
    (row,) = stream.catch_up(valueColumns="n INT", readChangeFeed="true", columns="change_type,n")
    assert tuple(row) == ("insert", 1)
    other = {"key": "copy", "idColumn": "id", "valueColumns": "m"}
    frame = spark.readStream.format("ringcast").options(**store.options, valueColumns="n INT").load()
    query = (
        frame.selectExpr("row_id AS id", "n + 1 AS m")
        .writeStream.format("ringcast")
        .options(**{**store.options, **other}, checkpointLocation=str(stream.checkpoint) + "-copy")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (copied,) = store.load(key="copy").collect()
    assert (copied.row_id, copied.value) == ("a", '{"m":2}')


def test_what_json_has_no_form_for_is_rejected() -> None:
    columns = WriteColumns(
        parse_options({"store": "s", "key": "k", "valueColumns": "n,t", "metadataColumns": "by"}, {})
    )
    broken = pa.array([b"ok", b"ok", b"\xff", b"ok"]).view(pa.string())
    frame = pa.record_batch(
        {
            "row_id": ["a", "b", "c", "d"],
            "n": pa.array([[1.5], [float("nan")], [2.0], None], pa.list_(pa.float64())),
            "t": broken,
            "by": pa.array([b"x", b"x", b"x", b"\xff"]).view(pa.string()),
        }
    )
    rejected: list[Rejected] = []
    found = columns.rows(frame, rejected)
    assert found.to_pylist() == [{"row_id": "a", "value": '{"n":[1.5],"t":"ok"}', "metadata": [("by", "x")]}]
    assert rejected == [
        Rejected("b", "OTHER", "value", "column 'n' is no finite number: JSON has no form for it"),
        Rejected("c", "NOT_UNICODE", "value", "a column of the value is not UTF-8"),
        Rejected("d", "NOT_UNICODE", "metadata", "column 'by' is not UTF-8"),
    ]


@pytest.mark.parametrize(
    ("schema", "options", "sentence"),
    [
        ("row_id STRING, value STRING", {"idColumn": "id"}, "column id is missing"),
        ("row_id STRING, value STRING", {"valueColumns": "n"}, "column n is missing"),
        (
            "row_id STRING, n INT, value STRING",
            {"valueColumns": "n"},
            "column 'value' is unknown: a write takes row_id",
        ),
        (
            "row_id STRING, value STRING, by INT",
            {"metadataColumns": "by"},
            "by is of type int: it must be string",
        ),
        (
            "row_id STRING, n INTERVAL DAY",
            {"valueColumns": "n"},
            "'n' is of type interval day, which a JSON value",
        ),
        ("row_id STRING, n MAP<INT, INT>", {"valueColumns": "n"}, "which a JSON value can't hold"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    spark: SparkSession, store: Store, schema: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        store.save(spark.createDataFrame([], schema), **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"valueColumns": "n"}, "option value_columns has 'n' without a type"),
        ({"valueColumns": "n INT NOT NULL"}, "option value_columns has 'n' NOT NULL"),
        ({"valueColumns": "n INTERVAL DAY"}, "which a JSON value can't hold"),
    ],
)
def test_reads_that_can_t_be(store: Store, options: dict[str, str], sentence: str) -> None:
    store.put("a", "{}")
    with pytest.raises(PySparkException, match=sentence):
        store.load(**options).collect()


def test_ids_of_another_name_are_prepared(spark: SparkSession, store: Store) -> None:
    frame = spark.createDataFrame([("a", "1", 1), ("a", "2", 2), ("b", "3", 1)], "id STRING, value STRING, at INT")
    store.save(prepare(frame, store.partition_count, newest_by="at", id_column="ID"), idColumn="id")
    assert store.rows() == {"a": "2", "b": "3"}


def test_defaults_of_the_session(spark: SparkSession, store: Store) -> None:
    """They count once they are registered, and what is given wins over them."""
    own = spark.newSession()
    for name, text in store.options.items():
        own.conf.set(f"spark.ringcast.{name}", text)
    register(own)
    own.createDataFrame([("a", "1")], "row_id STRING, value STRING").write.format("ringcast").mode("append").save()
    assert own.read.format("ringcast").load().count() == 1
    assert own.read.format("ringcast").load(f"{store.name}/list").count() == 1
    with pytest.raises(PySparkException, match="other"):
        own.read.format("ringcast").load(f"{store.name}/other").count()
    ids = own.createDataFrame([("a",)], "row_id STRING")
    assert [row.value for row in lookup(ids).collect()] == ["1"]
    assert write(own.createDataFrame([("a", "2")], "row_id STRING, value STRING")) == Counts(written=1)
    assert write(ids, operation="delete") == Counts(deleted=1)
    own.conf.set("spark.ringcast.tabel", "x")
    with pytest.raises(InvalidInputError, match=r"spark\.ringcast\.tabel in the configuration: option 'tabel'"):
        register(own)
