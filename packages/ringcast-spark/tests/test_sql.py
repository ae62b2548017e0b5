"""What can be said in SQL, and names in any case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark_ringcast import prepare, with_reasons
from pyspark_ringcast.pipeline._session import clear_error

Store = Any  # of conftest.py


def options_of(store: Store, **more: str) -> str:
    given = {**store.options, **more}
    return ", ".join(f"`{name}` '{text}'" for name, text in given.items())


@pytest.fixture
def names(spark: SparkSession, store_name: str) -> Iterator[tuple[str, str]]:
    """Of a view and a table that are gone afterwards."""
    plain = "".join(letter for letter in store_name if letter.isalnum())
    yield f"v{plain}", f"t{plain}"
    spark.sql(f"DROP VIEW IF EXISTS v{plain}")
    spark.sql(f"DROP TABLE IF EXISTS t{plain}")


def test_a_temporary_view(spark: SparkSession, store: Store, names: tuple[str, str]) -> None:
    """Read, joined, filtered, inserted into; it follows the list."""
    view, _ = names
    store.write_rows({f"r{number}": f"v{number % 3}" for number in range(30)})
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING ringcast OPTIONS ({options_of(store, onChange='latest')})")
    joined = spark.sql(f"SELECT a.ROW_ID FROM {view} a JOIN {view} b ON a.row_id = b.Row_Id WHERE a.VALUE = 'v1'")
    assert joined.count() == 10
    store.put("r1", "changed")
    spark.sql(f"INSERT INTO {view} VALUES ('new', '1', 0, 0, false, map('by', 'me')), ('r2', null, 0, 0, true, null)")
    assert store.metadata("new") == {"by": "me"}
    spark.sql(f"INSERT INTO {view} SELECT upper(row_id), value, version, partition, deleted, metadata FROM {view}")
    rows = {row.row_id: row.value for row in spark.sql(f"SELECT * FROM {view}").collect()}
    assert rows == store.rows()
    assert (rows["r1"], rows["R1"], rows["NEW"], len(rows)) == ("changed", "changed", "1", 60)
    with pytest.raises(PySparkException, match="Cannot find data for the output column `version`"):
        spark.sql(f"INSERT INTO {view} (row_id, value) VALUES ('x', 'y')")


def test_a_temporary_view_is_one_snapshot(spark: SparkSession, store: Store, names: tuple[str, str]) -> None:
    """Of the moment when it was made, also after writes through itself, until it is made again."""
    view, _ = names
    rows = {f"r{number}": "old" for number in range(30)}
    store.write_rows(rows)
    make = f"CREATE OR REPLACE TEMPORARY VIEW {view} USING ringcast OPTIONS"
    spark.sql(f"{make} ({options_of(store)})")
    store.put("r1", "changed")
    store.delete("r2")
    spark.sql(f"INSERT INTO {view} VALUES ('new', '1', 0, 0, false, null)")
    select = f"SELECT a.row_id, b.value FROM {view} a JOIN {view} b ON a.row_id = b.row_id AND a.version = b.version"
    assert dict(spark.sql(select).collect()) == rows
    spark.sql(f"{make} ({options_of(store)})")
    assert dict(spark.sql(f"SELECT row_id, value FROM {view}").collect()) == store.rows()


def test_an_overwrite_by_sql_has_the_guards_of_an_overwrite(
    spark: SparkSession, store: Store, names: tuple[str, str]
) -> None:
    view, _ = names
    store.write_rows({f"r{number}": "old" for number in range(4)})
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING ringcast OPTIONS ({options_of(store)})")
    overwrite = f"INSERT OVERWRITE TABLE {view} SELECT concat('r', id), 'new', 0, 0, false, null FROM"
    spark.sql(f"{overwrite} range(1, 4)")
    rows = {"r1": "new", "r2": "new", "r3": "new"}
    assert store.rows() == rows
    for range_, sentence in (
        ("3, 4", "it deletes 2 of 3 rows, 66.7%"),
        ("0", "without a row: allow_empty permits that"),
    ):
        with pytest.raises(PySparkException) as caught:
            spark.sql(f"{overwrite} range({range_})")
        assert sentence in str(clear_error(caught.value))
        assert store.rows() == rows
    spark.sql(
        f"INSERT INTO {view} BY NAME SELECT *, 0 AS partition FROM VALUES (false, 'x', 0L, 'r9') AS"
        " v(deleted, value, version, row_id) CROSS JOIN (SELECT map('by', 'me') AS metadata)"
    )
    assert store.rows() == {**rows, "r9": "x"}
    assert store.metadata("r9") == {"by": "me"}


def test_a_table_of_the_catalog(spark: SparkSession, store: Store, names: tuple[str, str]) -> None:
    """Spark 4.3 drops its options: that is said, and they may be given again."""
    _, table = names
    store.write_rows({"a": "1", "b": "2"})
    spark.sql(
        f"CREATE TABLE {table} USING ringcast OPTIONS ({options_of(store)}) COMMENT 'x' TBLPROPERTIES ('p' = 'q')"
    )
    assert [row.col_name for row in spark.sql(f"DESCRIBE {table}").collect()][:2] == ["row_id", "value"]
    with pytest.raises(PySparkException) as caught:
        spark.sql(f"SELECT * FROM {table}").collect()
    assert "Spark 4.3 drops those of a table" in str(clear_error(caught.value))
    given = ", ".join(f"`{name}` = '{text}'" for name, text in store.options.items())
    assert spark.sql(f"SELECT VALUE FROM {table} WITH ({given}) WHERE row_id = 'b'").collect() == [("2",)]


def test_save_as_table_writes_with_its_options_and_the_table_has_none(
    spark: SparkSession, store: Store, names: tuple[str, str]
) -> None:
    _, table = names
    writer = store.frame({"a": "1"}).write.format("ringcast").mode("append").options(**store.options)
    writer.saveAsTable(table)
    assert store.rows() == {"a": "1"}
    with pytest.raises(PySparkException) as caught:
        spark.table(table).collect()
    assert "Spark 4.3 drops those of a table" in str(clear_error(caught.value))


def test_store_and_key_as_a_path(spark: SparkSession, store: Store) -> None:
    options = {name: text for name, text in store.options.items() if name not in ("store", "key")}
    path = f"{store.name}/{store.key}"
    store.frame({"a": "1"}).write.format("ringcast").mode("append").options(**options).save(path)
    assert [row.value for row in spark.read.format("ringcast").options(**options).load(path).collect()] == ["1"]


def test_columns_in_any_case(store: Store) -> None:
    frame = store.frame(
        [("a", "1", None), ("b", None, True), ("", "3", None)], "ROW_ID STRING, Value STRING, DELETED BOOLEAN"
    )
    checked = with_reasons(frame)
    assert [row.ROW_ID for row in checked.filter("reason IS NOT NULL").collect()] == [""]
    good = checked.filter("reason IS NULL").drop("code", "field", "reason")
    store.write_rows({"b": "old"})
    store.save(prepare(good, store.partition_count))
    assert store.rows() == {"a": "1"}
    twice = store.frame([("a", "1")], "row_id STRING, value STRING").toDF("row_id", "ROW_ID")
    with pytest.raises(PySparkException):
        store.save(twice)
