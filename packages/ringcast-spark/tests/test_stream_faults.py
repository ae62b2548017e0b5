"""A stream through failures: of batches, of tasks, of the service, and of the query itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from ringcast_testkit import ConfigServiceProcess

Store = Any  # of conftest.py
Stream = Any

WAIT_S = 80.0


def test_a_batch_that_failed_comes_again_as_it_was(store: Store, stream: Stream) -> None:
    store.write_rows({f"row-{number}": "x" for number in range(20)})
    stream.catch_up()
    store.put("row-1", "first")
    store.delete("row-2")
    keep, seen = stream._keep, []

    def fail(frame: Any, _: int) -> None:
        seen.extend(frame.collect())
        raise RuntimeError("the sink broke")

    stream._keep = fail
    with pytest.raises(StreamingQueryException, match="the sink broke"):
        stream.catch_up()
    store.put("row-1", "second")  # what came after the failed batch is not in it
    store.put("row-3", "second")
    stream._keep = keep
    stream.catch_up()
    assert sorted(stream.batches[1]) == sorted(seen)
    assert {row.row_id: row.value for row in stream.batches[1]} == {"row-1": "first", "row-2": None}
    assert {row.row_id: row.value for row in stream.batches[2]} == {"row-1": "second", "row-3": "second"}


def test_a_task_that_is_killed_is_done_again(store: Store, stream: Stream, tmp_path: Path) -> None:
    rows = {f"row-{number}": "x" for number in range(200)}
    store.write_rows(rows)
    killed = str(tmp_path / "killed")
    read, keep = stream.frame, stream._keep

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            try:
                os.close(os.open(killed, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)

    stream.frame = lambda **options: read(**options).mapInArrow(die_once, read(**options).schema)
    stream._keep = keep
    found = stream.catch_up(tasks="4")
    assert Path(killed).exists()
    assert {row.row_id: row.value for row in found} == rows
    assert len(found) == len(rows)


def test_the_service_is_killed_half_way_and_comes_back(
    own_store: Store, stream: Stream, own_service: ConfigServiceProcess
) -> None:
    stream.store = own_store
    own_store.write_rows({f"row-{number}": "x" for number in range(100)})
    keep, killed = stream._keep, threading.Event()

    def kill_service(frame: Any, number: int) -> None:
        if number == 1:
            own_service.kill()  # before the rows of this batch are read
            killed.set()
        keep(frame, number)

    stream._keep = kill_service
    query = stream.start(available_now=True, maxRowsPerTrigger="40")
    try:
        assert killed.wait(WAIT_S)
        own_service.start()
        query.awaitTermination()
    finally:
        query.stop()
    found = [row for rows in stream.batches.values() for row in rows]
    assert sorted(row.row_id for row in found) == sorted(f"row-{number}" for number in range(100))
    assert [len(stream.batches[number]) for number in range(3)] == [40, 40, 20]


def test_the_service_is_killed_while_a_batch_is_written(
    own_store: Store, own_service: ConfigServiceProcess, tmp_path: Path
) -> None:
    rows = {f"row-{number}": "x" for number in range(40_000)}
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"row_id": list(rows), "value": list(rows.values())}), tmp_path / "in" / "0.parquet")
    source = own_store.spark.readStream.schema("row_id STRING, value STRING").parquet(str(tmp_path / "in"))
    writer = source.writeStream.format("ringcast").options(**own_store.options)
    own_store.put("row-0", "x")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    try:
        while (written := sum(own_store.heads())) == 1:
            assert query.isActive, query.exception()
        own_service.kill()
        assert written < len(rows)
        own_service.start()
        query.awaitTermination()
    finally:
        query.stop()
    assert own_store.rows() == rows
    assert sum(own_store.heads()) == len(rows)


def test_a_query_that_runs_and_is_stopped_any_time_misses_nothing(store: Store, stream: Stream) -> None:
    store.put("row-0", "0")
    enough, stopped, done = threading.Event(), threading.Event(), threading.Event()
    keep = stream._keep
    versions: dict[str, tuple[int, str]] = {}

    def keep_newest(frame: Any, number: int) -> None:
        keep(frame, number)
        for row in stream.batches[number]:
            assert row.version >= versions.get(row.row_id, (0, ""))[0]
            versions[row.row_id] = (row.version, row.value)
        enough.set()
        if "last" in versions:
            done.set()

    def write() -> None:
        for number in range(1, 300):
            store.put(f"row-{number % 7}", f"{number}")
        stopped.wait(WAIT_S)  # the second half comes to the second query
        for number in range(300, 600):
            store.put(f"row-{number % 7}", f"{number}")
        store.put("last", "x")

    stream._keep = keep_newest
    writer = threading.Thread(target=write)
    writer.start()
    query = stream.start()
    try:
        assert enough.wait(WAIT_S)
        query.stop()
        stopped.set()
        query = stream.start()
        assert done.wait(WAIT_S)
    finally:
        query.stop()
        writer.join()
    assert {row_id: value for row_id, (_, value) in versions.items()} == store.rows()
