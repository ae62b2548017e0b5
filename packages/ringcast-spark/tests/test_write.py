"""Batch writes to a real service: append, overwrite, delete, rejected rows, bad input."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ringcast_core
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark_ringcast import partition_count, prepare, with_reasons
from pyspark_ringcast.pipeline._session import clear_error
from ringcast_wire import InvalidInputError, LimitExceededError, UnknownStoreError, limits

Store = Any  # of conftest.py

ROWS = {f"row-{number} é\U0001f600": f"value {number}" for number in range(3_000)}


def test_what_is_written_is_read(store: Store) -> None:
    store.save(store.frame(ROWS))
    assert store.rows() == ROWS
    assert {row.row_id: row.value for row in store.load().collect()} == ROWS


def test_metadata_and_deletions_in_one_write(store: Store) -> None:
    store.write_rows({"gone": "1", "stays": "1"})
    columns = "row_id STRING, value STRING, deleted BOOLEAN, metadata MAP<STRING, STRING>"
    rows = [
        ("new", "2", False, {"by": "me"}),
        ("gone", None, True, None),
        ("none", None, True, None),
        ("plain", "3", None, None),
    ]
    store.save(store.frame(rows, columns))
    assert store.rows() == {"stays": "1", "new": "2", "plain": "3"}
    assert store.metadata("new") == {"by": "me"}


def test_writing_again_changes_nothing(store: Store) -> None:
    frame = prepare(store.frame(ROWS), store.partition_count)
    store.save(frame)
    heads = store.heads()
    assert sum(heads) == len(ROWS)
    store.save(frame)
    store.save(store.frame(ROWS), mode="overwrite")
    assert store.heads() == heads
    store.save(store.frame({**ROWS, "one more": "1"}))
    assert sum(store.heads()) == len(ROWS) + 1


def test_overwrite_makes_the_key_what_the_data_frame_is(store: Store) -> None:
    store.save(store.frame(ROWS))
    kept = dict(list(ROWS.items())[:1_000])
    wanted = {**kept, **{f"new-{number}": "new" for number in range(500)}, next(iter(kept)): "changed"}
    before = sum(store.heads())
    store.save(
        store.frame(wanted).repartition(3), mode="overwrite", maxDeleteShare="0.7"
    )  # rows of one partition in several tasks
    assert store.rows() == wanted
    assert sum(store.heads()) == before + 500 + 1 + 2_000, "a row was written that was right already"
    history = store.history()[before:]
    first_delete = next(index for index, row in enumerate(history) if row.deleted)
    assert all(row.deleted for row in history[first_delete:]), "a row was deleted before all others were there"
    store.save(store.frame({}), mode="overwrite", allowEmpty="true", maxDeleteShare="1")
    assert store.rows() == {}


def test_an_overwrite_that_would_delete_too_much_deletes_nothing(store: Store) -> None:
    """By default more than half; and not all, whatever the share is."""
    old = {f"old-{number}": "1" for number in range(100)}
    store.write_rows(old)
    heads = store.heads()
    name = f"{store.name}/{store.key}"
    with pytest.raises(PySparkException) as caught:
        store.save(store.frame({}), mode="overwrite", maxDeleteShare="1")
    refused = clear_error(caught.value)
    assert isinstance(refused, LimitExceededError)
    assert str(refused) == (
        f"the overwrite of {name} is refused, and nothing is deleted: it would leave {name} without a row: "
        "allow_empty permits that"
    )
    with pytest.raises(PySparkException, match=r"it deletes 100 of 100 rows, 100.0%: max_delete_share is 50.0%"):
        store.save(store.frame({}), mode="overwrite", allowEmpty="true")
    assert store.heads() == heads
    kept = dict(list(old.items())[:49])
    with pytest.raises(PySparkException, match=r"it deletes 51 of 100 rows, 51.0%: max_delete_share is 50.0%"):
        store.save(store.frame({**kept, "new": "1"}), mode="overwrite")
    assert store.rows() == {**old, "new": "1"}
    store.save(store.frame(dict(list(old.items())[:60])), mode="overwrite")
    assert len(store.rows()) == 60


def test_overwrite_of_a_key_that_was_never_written(store: Store) -> None:
    store.save(store.frame({}), mode="overwrite")
    store.save(store.frame({"a": "1"}), mode="overwrite")
    assert store.rows() == {"a": "1"}


def test_delete(store: Store) -> None:
    store.write_rows({"a": "1", "b": "1", "c": "1"})
    gone = store.frame([("a",), ("c",), ("never there",)], "row_id STRING")
    store.save(gone, operation="delete")
    assert store.rows() == {"b": "1"}
    heads = store.heads()
    store.save(gone, operation="delete")
    assert store.heads() == heads
    with pytest.raises(Exception, match="goes with mode append, not with overwrite"):
        store.save(gone, mode="overwrite", operation="delete")
    assert store.rows() == {"b": "1"}


def test_what_was_read_can_be_written_elsewhere(store: Store) -> None:
    store.write_rows({"a": "1", "b": "2"})
    store.save(store.load(), key="copy")
    assert store.load(key="copy").drop("version").orderBy("row_id").collect() == (
        store.load().drop("version").orderBy("row_id").collect()
    )


# --- Prepared DataFrames ----------------------------------------------------------------------------------------------


def test_prepare_keeps_one_row_an_id_and_a_partition_in_one_task(store: Store) -> None:
    rows = [(f"r{number % 700}", f"v{number}", number) for number in range(2_000)]
    random.Random(5).shuffle(rows)
    frame = store.frame(rows, "row_id STRING, value STRING, at INT")
    prepared = prepare(frame, store.partition_count, newest_by="at", tasks=3)
    tasks = prepared.rdd.glom().collect()
    assert len(tasks) == 3
    homes = [{row.partition for row in task} for task in tasks]
    assert sum(map(len, homes)) == len(set().union(*homes)), "a partition is in two tasks"
    for task in tasks:
        placed = [(row.partition, row.row_id) for row in task]
        assert placed == sorted(placed)
        assert [home for home, _ in placed] == list(
            ringcast_core.row_partitions([row_id for _, row_id in placed], store.partition_count)
        )
    newest = {row_id: value for row_id, value, _ in sorted(rows, key=lambda row: row[2])}
    assert {row.row_id: row.value for task in tasks for row in task} == newest
    store.save(prepared, mode="overwrite")
    assert store.rows() == newest
    assert prepare(frame.drop("at"), store.partition_count).count() == 700


def test_prepare_refuses_what_it_can_t_use(store: Store) -> None:
    frame = store.frame({"a": "1"})
    with pytest.raises(InvalidInputError, match="partition_count 0 is out of range"):
        prepare(frame, 0)
    with pytest.raises(InvalidInputError, match="column at is missing: the DataFrame has row_id, value"):
        prepare(frame, 4, newest_by="at")
    assert partition_count(store.name, service=store.address) == store.partition_count
    with pytest.raises(UnknownStoreError, match="nowhere"):
        partition_count("nowhere", service=store.address)


# --- Rejected rows ----------------------------------------------------------------------------------------------------

BAD = [
    ("", "v"),
    (None, "v"),
    ("x" * 513, "v"),
    ("nul\0", "v"),
    ("no value", None),
    ("big", "x" * limits.MAX_ROW_BYTES),
]
REASONS = {
    "": "row_id '' has 0 bytes",
    None: "row_id is null",
    "x" * 513: "has 513 bytes",
    "nul\0": "has a NUL character",
    "no value": "value is null",
    "big": "value of row 'big' is too large: the row has 1048579 bytes, the limit is 1048576",
}


def test_rejected_rows_are_reported(store: Store, tmp_path: Path) -> None:
    good = {f"good-{number}": "v" for number in range(100)}
    frame = store.frame([*good.items(), *BAD])
    path = str(tmp_path / "rejects")
    store.save(frame, max_rejected="6", rejects_path=path)
    assert store.rows() == good
    report = {row.row_id: row.reason for row in store.spark.read.parquet(path).collect()}
    assert len(report) == len(BAD)
    for row_id, reason in REASONS.items():
        assert reason in report[row_id if row_id is None else row_id[:512]]
    reasons = with_reasons(frame).filter("reason IS NOT NULL").select("row_id", "reason").collect()
    assert {row.row_id for row in reasons} == {row_id for row_id, _ in BAD}
    assert all(REASONS[row.row_id] in row.reason for row in reasons)
    of_each_kind = {
        ("EMPTY", "row_id"): 1,
        ("NULL", "row_id"): 1,
        ("TOO_LARGE", "row_id"): 1,
        ("NUL_CHARACTER", "row_id"): 1,
        ("NULL", "value"): 1,
        ("TOO_LARGE", "value"): 1,
    }
    for rejects in (store.spark.read.parquet(path), with_reasons(frame).filter("reason IS NOT NULL")):
        groups = rejects.groupBy("code", "field").count().collect()
        assert {(row.code, row.field): row["count"] for row in groups} == of_each_kind
    assert with_reasons(frame).filter("reason IS NULL").drop("code", "field", "reason").count() == len(good)


@pytest.mark.parametrize("row", [BAD[1], BAD[-1]], ids=["null row id", "oversized value"])
def test_one_bad_row_fails_a_write_that_allows_none(store: Store, row: tuple[str | None, str]) -> None:
    store.write_rows({"a": "1"})
    with pytest.raises(PySparkException) as caught:
        store.save(store.frame([row], "row_id STRING, value STRING"), mode="overwrite", user="u", password="hunter2")
    said = str(clear_error(caught.value))
    assert said.startswith(f"1 rows were rejected, and option max_rejected allows 0; one is {row[0]!r}: ")
    assert REASONS[row[0]] in said
    assert len(said.splitlines()) == 1
    assert "hunter2" not in str(caught.value)
    assert store.rows() == {"a": "1"}


def test_what_another_try_can_not_cure_is_tried_once(store: Store, tmp_path: Path) -> None:
    """Spark tries a task that raises four times; the error comes at the commit, long before the task has read all."""
    numbers = store.spark.range(20_000, numPartitions=1)
    rows = numbers.selectExpr("nullif(concat('row-', id), 'row-3') AS row_id", "'v' AS value")

    def noting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (tmp_path / f"attempt-{context.attemptNumber()}").touch()
        yield from batches

    with pytest.raises(PySparkException) as caught:
        store.save(rows.mapInArrow(noting, rows.schema))
    assert str(clear_error(caught.value)).startswith(
        "1 rows were rejected, and option max_rejected allows 0; one is No"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-0"]


def test_too_many_rejected_rows_fail_the_write(store: Store, tmp_path: Path) -> None:
    store.write_rows({"old": "1"})
    frame = store.frame([("new", "v"), *BAD]).coalesce(1)
    with pytest.raises(Exception, match="rows were rejected, and option max_rejected allows 5"):
        store.save(frame, mode="overwrite", max_rejected="5", rejects_path=str(tmp_path / "one"))
    assert store.spark.read.parquet(str(tmp_path / "one")).count() == 6
    assert store.rows().items() >= {"old": "1"}.items(), "an overwrite that failed has deleted a row"
    in_two_tasks = store.frame([("new", "v"), *BAD]).repartition(2)
    with pytest.raises(Exception, match="6 rows were rejected, and option max_rejected allows 5"):
        store.save(in_two_tasks, mode="overwrite", max_rejected="5", rejects_path=str(tmp_path / "two"))
    assert store.spark.read.parquet(str(tmp_path / "two")).count() == 6
    assert store.rows() == {"old": "1", "new": "v"}


# --- Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (
            "row_id STRING",
            {},
            "column value is missing: a write takes row_id [(]string[)], value [(]string[)], deleted",
        ),
        ("id STRING, value STRING", {}, "column row_id is missing"),
        ("row_id STRING, value INT", {}, "column value is of type int: it must be string"),
        ("row_id BIGINT, value STRING", {}, "column row_id is of type bigint: it must be string"),
        ("row_id STRING, value STRING, colour STRING", {}, "column 'colour' is unknown"),
        ("row_id STRING, value STRING", {"store": "nowhere"}, "there is no store 'nowhere'"),
        ("row_id STRING, value STRING", {"key": ""}, "option key is missing: say which config key of the store"),
        ("row_id STRING, value STRING", {"key": "a b"}, "key 'a b' is not a valid name"),
        (
            "row_id STRING, value STRING",
            {"service": "127.0.0.1:1", "timeout_s": "0.5"},
            "the config service did not ans",
        ),
        (
            "row_id STRING, value STRING",
            {"rejects_path": "/proc/none"},
            "option rejects_path can't be written to by the",
        ),
    ],
)
def test_what_is_refused_before_anything_is_written(
    store: Store, columns: str, options: dict[str, str], sentence: str
) -> None:
    store.write_rows({"a": "1"})
    words = {**store.options, "user": "u", "password": "hunter2", **options}
    frame = store.spark.createDataFrame([], columns)
    with pytest.raises(Exception, match=sentence) as caught:
        frame.write.format("ringcast").mode("overwrite").options(**words).save()
    assert "hunter2" not in str(caught.value)
    assert store.rows() == {"a": "1"}
