"""Tasks that die in the middle, and tasks that run more than once."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark_ringcast import prepare
from pyspark_ringcast._options import parse_options
from pyspark_ringcast._write import RingcastWriter

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


def killing(report: Path) -> Callable[[Batches], Batches]:
    """A step that lets rows through; the first attempt of the task loses its neighbours on the way."""

    def through(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        seen = killed = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if context.attemptNumber() == 0 and seen >= 500 and not killed:
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
def test_a_write_whose_worker_is_killed(store: Store, tmp_path: Path) -> None:
    """Rows that the first attempt wrote are left alone by the second: each row has one revision."""
    numbers = store.spark.range(len(ROWS), numPartitions=1)
    rows = numbers.selectExpr("concat('row-', id) AS row_id", "rpad(concat('value ', id), 5000, '.') AS value")
    store.write_rows({"old": "1"})
    store.save(rows.mapInArrow(killing(tmp_path), store.frame({}).schema), mode="overwrite")
    assert (tmp_path / "attempt-1").exists(), "the task was not tried again"
    assert store.rows() == ROWS
    assert sum(store.heads()) == 1 + len(ROWS) + 1, "a row was written twice"


def test_attempts_and_commits_that_are_repeated(store: Store) -> None:
    """What Spark may do to a writer: copies of it, the same task twice at once or late, commit again, abort at last."""
    store.write_rows({"old": "1"})
    frame = prepare(store.frame({"a": "1", "b": "2", "c": "3"}), store.partition_count)
    batch = pa.record_batch({"row_id": ["a", "b", "c"], "value": ["1", "2", "3"]})
    writer = RingcastWriter(parse_options(store.options), frame.select("row_id", "value").schema, overwrite=True)
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
