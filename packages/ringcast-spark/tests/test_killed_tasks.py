"""Tasks that die in the middle, and tasks that run more than once."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
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


def python_workers(forks: psutil.Process) -> list[psutil.Process]:
    """Spark's processes for the Python steps of tasks, the oldest first: children of the daemons that are forked."""
    found: list[psutil.Process] = []
    for daemon in forks.children():
        with suppress(psutil.NoSuchProcess):
            found += daemon.children()
    return sorted(found, key=lambda worker: (worker.create_time(), worker.pid))


def kill(workers: list[psutil.Process]) -> int:
    """SIGKILL to each, one after another, each once the one before is gone; how many were there.

    Gone is one when its daemon has taken notice. Before that Spark takes an idle one for alive, and gives it to the
    next attempt, which fails by it.
    """
    killed = 0
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
            killed += 1
            worker.wait(PATIENCE_S)
    return killed


def kill_other_python_workers() -> int:
    """Kills what reads or writes for this task: Spark has a process of its own for each Python step of it.

    The step that writes is the youngest. What it has killed before may have ended its part and be idle.
    """
    me = psutil.Process()
    return kill([worker for worker in python_workers(me.parents()[1]) if worker.pid != me.pid])


def killing(report: Path, at: int = 500, before: Callable[[], None] = lambda: None) -> Callable[[Batches], Batches]:
    """A step that lets rows through; the first attempt loses its neighbours on the way, after ``before``."""

    def through(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        seen = 0
        for batch in batches:
            yield batch
            before_this, seen = seen, seen + batch.num_rows
            if context.attemptNumber() == 0 and before_this < at <= seen:
                before()
                (report / "killing").touch()
                assert kill_other_python_workers()
        (report / f"attempt-{context.attemptNumber()}").touch()

    return through


def was_tried_again(report: Path) -> bool:
    """Whether the first attempt came as far as to lose its neighbours, and a further one to the end.

    Which one does not matter: on a busy machine one may fail by itself.
    """
    attempts = {path.name for path in report.glob("attempt-*")}
    return (report / "killing").exists() and bool(attempts) and "attempt-0" not in attempts


@pytest.fixture(autouse=True)
def no_idle_workers(spark: SparkSession) -> None:
    """Ends the workers that earlier tests have left idle: only those of the test's own task are to be killed in it."""
    kill(python_workers(forks_of_this_process()))


def forks_of_this_process() -> psutil.Process:
    """What forks the daemons of the session that this process has started."""
    (forks,) = [child for child in psutil.Process().children() if "ringcast_testkit.forks" in str(child.cmdline())]
    return forks


@pytest.mark.usefixtures("small_batches")
def test_a_read_whose_worker_is_killed(store: Store, tmp_path: Path) -> None:
    """The second attempt reads what the first one read: each row comes once."""
    store.write_rows(ROWS)
    frame = store.load(tasks="1")
    seen = frame.mapInArrow(killing(tmp_path), frame.schema).select("row_id", "value").toArrow()
    assert was_tried_again(tmp_path), "the task was not tried again"
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
    assert was_tried_again(tmp_path), "the task was not tried again"
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
        kill(python_workers(forks_of_this_process()))  # idle ones
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        try:
            while number and not len(rows) < sum(store.heads()) < 2 * len(rows):
                assert query.isActive, f"the task was done before it was killed: {query.exception()}"
            killed = kill(python_workers(forks_of_this_process())) if number else 1
            query.awaitTermination()
        finally:
            query.stop()
        assert killed
    assert store.rows() == dict.fromkeys(rows, "1")
    assert sum(store.heads()) == 2 * len(rows), "a row was written twice"
    (note,) = store.load(key=LEDGER_KEY, rowIds=f"{store.key}/{query.id}").collect()
    counts = {"written": len(rows), "deleted": 0, "unchanged": 0, "rejected": 0}
    assert (json.loads(note.value)["batch"], json.loads(note.value)["last"]) == (1, counts)


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
    assert was_tried_again(tmp_path), "the task was not tried again"
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
    assert was_tried_again(tmp_path), "the task was not tried again"
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


def test_a_batch_of_the_attempt_before_that_is_written_late_counts_as_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service had it in hand when the attempt died, and wrote it after the next one had looked for its rows."""
    store.write_rows({"as it was": "1", "a": "1"})
    writer = RingcastWriter(parse_options(store.options), store.frame({}).schema, overwrite=False)
    store.write_rows({"a": "2", "b": "2"})
    heads = store.heads()
    monkeypatch.setattr("pyspark_ringcast._batch.write._was_tried_before", lambda: True)
    monkeypatch.setattr(RowsBefore, "only", lambda _self, batches, _done: batches)
    written = writer.write(iter([pa.record_batch({"row_id": ["as it was", "a", "b"], "value": ["1", "2", "2"]})]))
    assert (written.written, written.unchanged) == (2, 1)
    assert store.heads() == heads


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
