"""Rows by the ids of a DataFrame."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark_ringcast import lookup
from ringcast_wire import InvalidInputError

Store = Any  # of conftest.py


def test_many_ids_find_their_rows(spark: SparkSession, store: Store) -> None:
    """More than are asked for at once; some twice, some unknown, deleted, null, or of a form that no id has."""
    store.write_rows({f"r{number}": f"v{number}" for number in range(3_000)})
    store.put("r7", "seven", by="me")
    store.delete("r8")
    ids = spark.range(5_000).selectExpr("id", "concat('r', id) AS ROW_ID")
    strange = spark.createDataFrame(
        [(9_000, None), (9_001, ""), (9_002, "x" * 513), (9_003, "r7")], "id BIGINT, ROW_ID STRING"
    )
    found = lookup(ids.union(strange), **store.options)
    assert found.columns == ["id", "ROW_ID", "value", "version", "metadata"]
    rows = {row.id: row for row in found.collect()}
    assert len(rows) == 5_004
    assert {number: row.value for number, row in rows.items() if row.value is not None} == {
        **{number: f"v{number}" for number in range(3_000) if number not in (7, 8)},
        7: "seven",
        9_003: "seven",
    }
    assert (rows[7].metadata, rows[6].metadata, rows[8].version) == ({"by": "me"}, None, None)
    assert rows[9_000].version is rows[4_999].metadata is None
    inner = lookup(ids.union(strange), how="inner", **{**store.options, "columns": "partition", "tasks": "3"})
    assert (inner.columns, inner.count()) == (["id", "ROW_ID", "partition"], 3_000)


def test_it_is_one_snapshot(spark: SparkSession, store: Store) -> None:
    store.put("a", '{"n": 1}')
    ids = spark.createDataFrame([("a",), ("b",)], "name STRING")
    options = {**store.options, "idColumn": "name", "valueColumns": "n INT", "columns": "n"}
    found = lookup(ids, **options)
    store.put("a", '{"n": 2}')
    store.put("b", '{"n": 3}')
    assert sorted(found.collect(), key=lambda row: row.name) == [("a", 1), ("b", None)]
    again = lookup(ids, **options)
    assert sorted(again.collect(), key=lambda row: row.name) == [("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("schema", "options", "sentence"),
    [
        ("id STRING", {}, "column row_id is missing: it has the ids to look up"),
        ("row_id INT", {}, "column row_id is of type int: it must be string"),
        ("row_id STRING, Value INT", {}, "column 'value' exists already: rename it, or leave it out"),
        ("row_id STRING", {"since": '{"0": 1}'}, "option since goes with reads, not with a lookup"),
        ("row_id STRING", {"rowIds": "a"}, "option row_ids goes with reads"),
        ("row_id STRING", {"how": "outer"}, "how is 'outer': left or inner is allowed"),
    ],
)
def test_what_is_refused(
    spark: SparkSession, store: Store, schema: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        lookup(spark.createDataFrame([], schema), **{**store.options, **options})
    assert sentence in str(caught.value)
