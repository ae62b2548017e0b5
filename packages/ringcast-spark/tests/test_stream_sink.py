"""Micro-batches written to a store, each of them once."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark_ringcast._client.sink_notes import KEPT_S, LEDGER_KEY
from pyspark_ringcast._stream.sink import RingcastStreamWriter, _last_of_each
from ringcast_testkit import PATIENCE_S
from ringcast_wire import limits
from ringcast_wire.grpc import pb

SCHEMA = "row_id STRING, value STRING, deleted BOOLEAN"
_FIRST_FILE_S = 1_700_000_000
Rows = list[tuple[str | None, str | None, bool]]


@pytest.fixture
def feed(tmp_path: Path) -> Callable[[Rows], None]:
    """Adds a file to the directory that the streams of this test read, a batch each."""
    directory = tmp_path / "in"
    directory.mkdir()

    def add(rows: Rows) -> None:
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        table = pa.table({"row_id": columns[0], "value": columns[1], "deleted": columns[2]})
        number = len(list(directory.iterdir()))
        pq.write_table(table, tmp_path / "new.parquet")
        # Spark takes files by their time, and two that are written at once may have the same.
        os.utime(tmp_path / "new.parquet", (_FIRST_FILE_S + number,) * 2)
        (tmp_path / "new.parquet").rename(directory / f"{number:03}.parquet")

    return add


def write(store: Any, tmp_path: Path, **options: str) -> None:
    """Writes what the directory has since the checkpoint, a file a batch."""
    source = store.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(tmp_path / "in"))
    writer = source.writeStream.format("ringcast").options(**{**store.options, **options})
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def forget_last_commit(tmp_path: Path) -> None:
    """What a crash between the sink's commit and Spark's note of it leaves."""
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def versions(store: Any) -> dict[str, int]:
    pages = store.stub.List(pb.ListRequest(store=store.name, key=store.key, include_deleted=True))
    return {row.row_id: row.version for page in pages for row in page.rows}


def test_notes_of_queries_that_have_ended_are_removed(store: Any, tmp_path: Path, feed: Callable[[Rows], None]) -> None:
    """After 30 days, when another query begins; not those of which it can't be told."""
    old = time.time() - KEPT_S - 60
    notes = {
        "list/ended": {"batch": 7, "until_s": old},
        "list/lately": {"batch": 7, "until_s": time.time()},
        "list/undated": {"batch": 7},
        "throttle/list": {"rows": 9.0, "began_s": old - 5, "until_s": old},
    }
    for row_id, note in notes.items():
        request = pb.PutRequest(store=store.name, key=LEDGER_KEY, row_id=row_id, value=json.dumps(note))
        store.stub.Put(request)
    feed([("a", "1", False)])
    write(store, tmp_path)
    pages = store.stub.List(pb.ListRequest(store=store.name, key=LEDGER_KEY))
    left = {row.row_id: json.loads(row.value) for page in pages for row in page.rows}
    assert {"list/lately", "list/undated"} < left.keys()
    assert not {"list/ended", "throttle/list"} & left.keys()
    (own,) = left.keys() - notes.keys()
    assert left[own]["batch"] == 0
    assert abs(left[own]["until_s"] - time.time()) < PATIENCE_S


def test_batches_are_written_and_not_again(store: Any, tmp_path: Path, feed: Callable[[Rows], None]) -> None:
    feed([(f"row-{number}", "one", False) for number in range(50)])
    feed([("row-1", "two", False), ("row-2", None, True)])
    write(store, tmp_path)
    rows = store.rows()
    assert len(rows) == 49
    assert (rows["row-0"], rows["row-1"]) == ("one", "two")

    before = versions(store)
    store.put("row-1", "of somebody else")  # after the batch was committed
    store.put("row-2", "back again")
    forget_last_commit(tmp_path)
    write(store, tmp_path)
    assert store.rows() == rows | {"row-1": "of somebody else", "row-2": "back again"}
    same = {row_id for row_id, version in versions(store).items() if before[row_id] == version}
    assert set(before) - same == {"row-1", "row-2"}


def test_a_batch_that_was_cut_off_changes_only_the_rest(
    store: Any, tmp_path: Path, feed: Callable[[Rows], None]
) -> None:
    feed([("good", "one", False), (None, "no id", False)])
    with pytest.raises(StreamingQueryException, match="row_id is null"):
        write(store, tmp_path)
    assert store.rows() == {"good": "one"}
    before = versions(store)
    write(store, tmp_path, maxRejected="1", rejectsPath=str(tmp_path / "rejects"))
    assert versions(store) == before
    (report,) = (tmp_path / "rejects").glob("*.parquet")
    assert report.name.endswith("-0.parquet")
    assert pq.read_table(report).to_pylist() == [
        {"row_id": None, "code": "NULL", "field": "row_id", "reason": "row_id is null"}
    ]


def test_a_slow_task_of_a_batch_that_its_copy_has_finished_writes_nothing(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speculation: when the slow one has its rows, the batch is committed, and a row of it was changed again."""
    monkeypatch.setattr("pyspark_ringcast._stream.sink._running", lambda: ("a query", 7))
    schema = store.frame({"a": "1"}).schema
    slow, copy = (RingcastStreamWriter(store.options, schema, overwrite=False) for _ in range(2))
    batch = pa.record_batch({"row_id": ["a", "b"], "value": ["1", "1"]})

    def meanwhile() -> Iterator[pa.RecordBatch]:
        yield batch
        copy.commit([copy.write(iter([batch]))], 7)
        store.put("a", "2")

    late = slow.write(meanwhile())
    assert store.rows() == {"a": "2", "b": "1"}
    slow.commit([late], 7)
    (note,) = store.load(key=LEDGER_KEY, rowIds=f"{store.key}/a query").collect()
    assert json.loads(note.value)["total"] == {"written": 2, "deleted": 0, "unchanged": 0, "rejected": 0}


def test_of_rows_with_one_id_the_last_is_written_once(store: Any, tmp_path: Path, feed: Callable[[Rows], None]) -> None:
    feed([(f"row-{number % 3}", f"value {number}", False) for number in range(3_000)])
    write(store, tmp_path)
    assert store.rows() == {f"row-{number % 3}": f"value {number}" for number in range(2_997, 3_000)}
    assert sum(store.heads()) == 3


def count_values(store: Any, tmp_path: Path) -> None:
    """Writes how often each value was there, all of it each time."""
    source = store.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(tmp_path / "in"))
    counts = source.groupBy(source.value.alias("row_id")).count().selectExpr("row_id", "CAST(count AS STRING) value")
    writer = counts.writeStream.format("ringcast").options(**store.options, maxDeleteShare="1").outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_complete_mode_makes_the_key_what_the_result_is(
    store: Any, tmp_path: Path, feed: Callable[[Rows], None]
) -> None:
    store.put("leftover", "x")
    feed([("a", "x", False), ("b", "x", False), ("c", "y", False)])
    count_values(store, tmp_path)
    assert store.rows() == {"x": "2", "y": "1"}
    store.put("of-somebody-else", "kept until the next batch")
    forget_last_commit(tmp_path)
    count_values(store, tmp_path)
    assert store.rows() == {"x": "2", "y": "1", "of-somebody-else": "kept until the next batch"}


def test_the_store_says_which_batch_was_the_last(store: Any, tmp_path: Path, feed: Callable[[Rows], None]) -> None:
    with pytest.raises(grpc.RpcError):
        list(store.stub.List(pb.ListRequest(store=store.name, key=LEDGER_KEY)))
    feed([("a", "1", False)])
    feed([("b", "2", False)])
    write(store, tmp_path)
    (page,) = store.stub.List(pb.ListRequest(store=store.name, key=LEDGER_KEY))
    (row,) = page.rows
    assert row.row_id.startswith(f"{store.key}/")
    assert json.loads(row.value)["batch"] == 1


def test_a_store_without_room_for_the_sinks_key(store: Any, tmp_path: Path, feed: Callable[[Rows], None]) -> None:
    """Nothing is written that could not be noted; with a key less there is room, and then a full store is no matter."""
    for number in range(limits.MAX_KEYS_PER_STORE - 1):
        store.stub.Put(pb.PutRequest(store=store.name, key=f"key-{number}", row_id="a", value="1"))
    feed([("a", "2", False)])
    sentence = f"has 99 config keys, the limit is 100: there is no room for '{LEDGER_KEY}', where a stream notes which"
    with pytest.raises(StreamingQueryException, match=sentence):
        write(store, tmp_path)  # its own key would be the 100th
    with pytest.raises(grpc.RpcError, match="no config key 'list'"):
        store.rows()
    write(store, tmp_path, key="key-0")
    feed([("a", "3", False)])
    write(store, tmp_path, key="key-0")
    (page,) = store.stub.List(pb.ListRequest(store=store.name, key="key-0"))
    assert [row.value for row in page.rows] == ["3"]


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("row_id STRING", {}, "column value is missing"),
        ("row_id STRING, value STRING, deleted STRING", {}, "column deleted is of type string: it must be boolean"),
        (SCHEMA, {"store": "nowhere"}, "there is no store 'nowhere'"),
        (SCHEMA, {"colour": "red"}, "option 'colour' is unknown"),
        (SCHEMA, {"key": LEDGER_KEY}, "option key is spark-sinks: that key is reserved for the records of sinks"),
        (SCHEMA, {"service": "127.0.0.1:1", "timeout_s": "0.3", "password": "s3cret", "user": "u"}, "did not answer"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    store: Any, tmp_path: Path, feed: Callable[[Rows], None], schema: str, options: dict[str, str], message: str
) -> None:
    feed([("a", "1", False)])
    source = store.spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    source = source.selectExpr(*(f"CAST({field.split()[0]} AS {field.split()[1]})" for field in schema.split(", ")))
    writer = source.writeStream.format("ringcast").options(**{**store.options, **options})
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=message) as caught:
        query.awaitTermination()
    assert "s3cret" not in str(caught.value)
    with pytest.raises(grpc.RpcError):
        store.rows()
    shutil.rmtree(tmp_path / "c")


def frame(*rows: tuple[str | None, str, int]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_pydict({"row_id": columns[0], "value": columns[1], "version": columns[2]})


def test_the_greatest_version_wins_where_there_is_one() -> None:
    frames = [frame(("a", "new", 9), (None, "x", 1), ("b", "only", 1)), frame(("a", "old", 2), (None, "y", 2))]
    (left,) = pa.Table.from_batches(_last_of_each(frames)).combine_chunks().to_batches()
    assert sorted(zip(left["value"].to_pylist(), left["row_id"].to_pylist(), strict=True)) == [
        ("new", "a"),
        ("only", "b"),
        ("x", None),
        ("y", None),
    ]
    assert _last_of_each([]) == []
    assert _last_of_each(frames[:1]) == frames[:1]
