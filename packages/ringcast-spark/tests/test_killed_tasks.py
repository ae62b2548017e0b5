"""Tasks that die in the middle, and tasks that run more than once."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark_ringcast import Counts, prepare, write
from pyspark_ringcast._batch.repeated import RowsBefore
from pyspark_ringcast._batch.write import RingcastWriter, Written
from pyspark_ringcast._client.sink_notes import LEDGER_KEY
from pyspark_ringcast._common.options import parse_options
from ringcast_testkit import PATIENCE_S
from ringcast_wire.grpc import ConfigServiceStub, pb

Store = Any  # of conftest.py

# More than what waits in sockets between Spark's processes, so that a step is in the middle when its neighbour is.
ROWS = {f"row-{number}": f"value {number}".ljust(5_000, ".") for number in range(5_000)}

Batches = Iterator[pa.RecordBatch]


def kill_other_python_workers() -> int:
    """SIGKILL to what reads or writes for this task: Spark has a process of its own for each Python step of it.

    Each is the child of a daemon, and the daemons are children of the JVM.
    """
    me = psutil.Process()
    jvm = me.parents()[1]
    assert jvm.name() == "java"
    others = [worker for daemon in jvm.children() for worker in daemon.children() if worker.pid != me.pid]
    for worker in others:
        os.kill(worker.pid, signal.SIGKILL)
    return len(others)


def killing(report: Path, at: int = 500, before: Callable[[], None] = lambda: None) -> Callable[[Batches], Batches]:
    """A step that lets rows through; the first attempt loses its neighbours on the way, after ``before``."""

    def through(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        seen = killed = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if context.attemptNumber() == 0 and seen >= at and not killed:
                before()
                killed = kill_other_python_workers()
                assert killed
        (report / f"attempt-{context.attemptNumber()}").touch()

    return through


@pytest.mark.usefixtures("small_batches")
def test_a_read_whose_worker_is_killed(store: Store, tmp_path: Path) -> None:
    """The second attempt reads what the first one read: each row comes once."""
    store.write_rows(ROWS)
    frame = store.load(tasks="1")
    seen = frame.mapInArrow(killing(tmp_path), frame.schema).select("row_id", "value").toArrow()
    assert (tmp_path / "attempt-1").exists(), "the task was not tried again"
    assert seen.num_rows == len(ROWS)
    assert dict(zip(*(column.to_pylist() for column in seen.columns), strict=True)) == ROWS


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("returned", [False, True], ids=["save", "write"])
def test_a_write_whose_worker_is_killed(store: Store, tmp_path: Path, *, returned: bool) -> None:
    """Rows that the first attempt wrote are left alone by the second: each row has one revision."""
    numbers = store.spark.range(len(ROWS), numPartitions=1)
    rows = numbers.selectExpr("concat('row-', id) AS row_id", "rpad(concat('value ', id), 5000, '.') AS value")
    store.write_rows({"old": "1"})
    frame = rows.mapInArrow(killing(tmp_path, len(ROWS) // 2), store.frame({}).schema)
    counts = str(tmp_path / "counts")
    options = {"maxDeleteShare": "1", "countsPath": counts}
    if returned:
        assert write(frame, mode="overwrite", **store.options, **options) == Counts(len(ROWS), 1, 0)
    else:
        store.save(frame, "overwrite", **options)
    assert (tmp_path / "attempt-1").exists(), "the task was not tried again"
    assert store.rows() == ROWS
    assert sum(store.heads()) == 1 + len(ROWS) + 1, "a row was written twice"
    assert counted(store, counts) == (len(ROWS), 1, 0), "what the first attempt wrote is not counted once"


def test_a_batch_of_a_stream_whose_worker_is_killed(store: Store, tmp_path: Path) -> None:
    """The second attempt writes the rest: each row once a batch, counted once, though the batch before wrote it too."""
    rows = [f"row-{number}" for number in range(40_000)]
    for number in range(2):
        table = pa.table({"row_id": rows, "value": [f"{number}"] * len(rows)})
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
        source = store.spark.readStream.schema("row_id STRING, value STRING").parquet(str(tmp_path / "in"))
        writer = source.writeStream.format("ringcast").options(**store.options)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        try:
            while number and not len(rows) < sum(store.heads()) < 2 * len(rows):
                assert query.isActive, f"the task was done before it was killed: {query.exception()}"
            killed = kill_python_workers() if number else 1
            query.awaitTermination()
        finally:
            query.stop()
        assert killed
    assert store.rows() == dict.fromkeys(rows, "1")
    assert sum(store.heads()) == 2 * len(rows), "a row was written twice"
    (note,) = store.load(key=LEDGER_KEY, rowIds=f"{store.key}/{query.id}").collect()
    counts = {"written": len(rows), "deleted": 0, "unchanged": 0, "rejected": 0}
    assert (json.loads(note.value)["batch"], json.loads(note.value)["last"]) == (1, counts)


def kill_python_workers() -> int:
    """SIGKILL to every Python worker of this process's Spark; how many those were."""
    (jvm,) = [child for child in psutil.Process().children() if child.name() == "java"]
    workers = [worker for daemon in jvm.children() for worker in daemon.children()]
    for worker in workers:
        worker.kill()
    return len(workers)


@pytest.mark.usefixtures("small_batches")
def test_what_somebody_else_writes_between_two_attempts_stays(store: Store, tmp_path: Path) -> None:
    """The first attempt has written a row: the second leaves it alone, whatever became of it meanwhile."""
    names = {"address": store.address, "store": store.name, "key": store.key}
    store.write_rows({"row-0": "old"})
    numbers = store.spark.range(len(ROWS), numPartitions=1)
    rows = numbers.selectExpr("concat('row-', id) AS row_id", "rpad(concat('value ', id), 5000, '.') AS value")
    step = killing(tmp_path, len(ROWS) // 2, lambda: change_once_written(**names))
    counts = str(tmp_path / "counts")
    store.save(rows.mapInArrow(step, rows.schema), countsPath=counts)
    assert (tmp_path / "attempt-1").exists(), "the task was not tried again"
    assert store.rows() == {**ROWS, "row-0": "somebody else's"}
    assert sum(store.heads()) == 1 + len(ROWS) + 1, "a row was written twice"
    assert counted(store, counts) == (len(ROWS) - 1, 0, 1)


def counted(store: Store, path: str) -> tuple[int, int, int]:
    """What the only report of a directory says."""
    (report,) = store.spark.read.parquet(path).collect()
    return report.written, report.deleted, report.unchanged


def change_once_written(address: str, store: str, key: str) -> None:
    """In a task: waits until it has written its first row, and then writes another value to it."""
    deadline = time.monotonic() + PATIENCE_S
    with grpc.insecure_channel(address) as channel:
        stub = ConfigServiceStub(channel)
        get = pb.GetRequest(store=store, key=key, row_ids=["row-0"])
        while [row.value for row in stub.Get(get).rows] == ["old"]:
            assert time.monotonic() < deadline, "the first attempt writes nothing"
            time.sleep(0.02)
        stub.Put(pb.PutRequest(store=store, key=key, row_id="row-0", value="somebody else's"))


@pytest.mark.usefixtures("small_batches")
def test_a_read_modify_write_whose_workers_are_killed(store: Store, tmp_path: Path) -> None:
    """The second attempt reads what the first one read, though that has changed some of it: each row changes once."""
    store.write_rows(ROWS)
    before = store.heads()
    step = killing(tmp_path, len(ROWS) // 2, partial(wait_until_written, store.address, store.name, store.key, before))
    read = store.load(tasks="1").select("row_id", "value")
    store.save(read.mapInArrow(step, read.schema).selectExpr("row_id", "concat(value, '!') AS value"))
    assert (tmp_path / "attempt-1").exists(), "the task was not tried again"
    assert store.rows() == {row_id: f"{value}!" for row_id, value in ROWS.items()}
    assert sum(store.heads()) - sum(before) == len(ROWS), "a row was written twice"


def wait_until_written(address: str, store: str, key: str, before: list[int]) -> None:
    """In a task: until some of its rows are written."""
    deadline = time.monotonic() + PATIENCE_S
    with grpc.insecure_channel(address) as channel:
        stub = ConfigServiceStub(channel)
        while list(stub.Heads(pb.HeadsRequest(store=store, key=key)).heads) == before:
            assert time.monotonic() < deadline, "the first attempt writes nothing"
            time.sleep(0.02)


def test_attempts_and_commits_that_are_repeated(store: Store) -> None:
    """What Spark may do to a writer: copies of it, the same task twice at once or late, commit again, abort at last."""
    store.write_rows({"old": "1"})
    frame = prepare(store.frame({"a": "1", "b": "2", "c": "3"}), store.partition_count)
    batch = pa.record_batch({"row_id": ["a", "b", "c"], "value": ["1", "2", "3"]})
    writer = RingcastWriter(
        parse_options({**store.options, "max_delete_share": "1"}),
        frame.select("row_id", "value").schema,
        overwrite=True,
    )
    copy: RingcastWriter = pickle.loads(pickle.dumps(writer))
    first, second = copy.write(iter([batch])), copy.write(iter([batch]))
    assert (first.written, second.written, second.unchanged) == (3, 0, 3)
    messages = pickle.loads(pickle.dumps([first]))
    writer.commit(messages)
    assert store.rows() == {"a": "1", "b": "2", "c": "3"}
    heads = store.heads()
    writer.commit(messages)
    copy.write(iter([batch]))
    writer.abort([None, *messages])
    assert store.heads() == heads
    assert store.rows() == {"a": "1", "b": "2", "c": "3"}


def test_a_further_attempt_writes_rows_as_old_as_the_job(store: Store) -> None:
    """Whatever the batch does with them; also where what is there is more than one answer can hold."""
    large = {f"large-{number}": "x" * 1_000_000 for number in range(20)}
    store.write_rows({"old": "1", **large}, at_once=2)
    heads = store.heads()
    store.write_rows({"changed": "2", "large-7": "2"})
    rows = [pb.RowWrite(row_id="old", delete=True), pb.RowWrite(row_id="changed", delete=True)]
    plain = {"old": "3", "changed": "3", "not there": "3", **dict.fromkeys(large, "3")}
    batches = [
        pb.WriteBatch(rows=rows),
        pb.WriteBatch(row_ids=plain, values=plain.values()),
        pb.WriteBatch(row_ids=["changed"], values=["3"]),
    ]
    done = Written()
    first, second = RowsBefore(parse_options(store.options), heads).only(iter(batches), done)
    assert list(first.rows) == rows[:1]
    assert set(second.row_ids) == set(plain) - {"changed", "large-7"}
    assert list(second.values) == ["3"] * len(second.row_ids)
    assert (done.written, done.unchanged) == (0, 4)
    done = Written()
    as_found = pb.WriteBatch(rows=[pb.RowWrite(row_id=row_id, value="2") for row_id in ("changed", "large-7", "old")])
    as_found.rows[1].metadata["by"] = "somebody"
    (third,) = RowsBefore(parse_options(store.options), heads).only(iter([as_found]), done)
    assert [row.row_id for row in third.rows] == ["old"]
    assert (done.written, done.unchanged) == (1, 1), "an attempt before has written the first one, and not the second"
    nothing = parse_options({**store.options, "key": "never-written"})
    assert [len(batch.rows) for batch in RowsBefore(nothing, []).only(iter([pb.WriteBatch(rows=rows)]), done)] == [2]
