"""How often a read that fails is tried: once where the driver can know, four times (by Spark) where only a task can."""

from __future__ import annotations

import os
import urllib.request
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark_ringcast._batch.read import RingcastReader, take_snapshot
from pyspark_ringcast._common import task_failures
from pyspark_ringcast._common.offsets import ChangesLostError
from pyspark_ringcast._common.options import parse_options
from pyspark_ringcast.pipeline._session import clear_error
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess
from ringcast_wire import (
    InternalError,
    InvalidInputError,
    LimitExceededError,
    ProtocolError,
    RevisionGoneError,
    UnavailableError,
    UnknownKeyError,
)
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py
Stream = Any


def failed_tasks(spark: SparkSession, group: str) -> int:
    """Of the jobs of a group: 0 where none was begun. An action may end before Spark has counted its last task."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(int(PATIENCE_S * 1000))
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return sum(stage.numFailedTasks for stage in stages if stage)


def failure(frame: DataFrame) -> tuple[str, int]:
    """The sentence, and how many tasks failed with it."""
    group = uuid.uuid4().hex
    frame.sparkSession.sparkContext.setJobGroup(group, "a read that fails")
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return str(clear_error(caught.value)), failed_tasks(frame.sparkSession, group)


@pytest.mark.parametrize("on_change", ["snapshot", "latest"])
def test_a_key_that_is_deleted_after_the_data_frame_was_made(store: Store, on_change: str) -> None:
    store.write_rows({"a": "1"})
    frame = store.load(onChange=on_change)
    store.stub.DeleteKey(pb.DeleteKeyRequest(store=store.name, key=store.key))
    sentence, tries = failure(frame)
    assert store.key in sentence
    assert tries == 0


def test_revisions_that_are_gone_since_the_data_frame_was_made(forgetful_store: Store) -> None:
    """Not all that was written since is kept: the driver sees it."""
    store = forgetful_store
    store.write_rows({"a": "1", "b": "1"})
    frame = store.load()
    store.write_rows({"a": "2", "b": "2"})
    store.write_rows({"a": "3", "b": "3"})
    store.wait_for_history()
    sentence, tries = failure(frame)
    assert "can't be read any more" in sentence
    assert sentence.endswith("make the DataFrame or view again, or read with the option onChange=latest")
    assert tries == 0


def test_a_row_whose_only_replacement_is_kept(forgetful_store: Store) -> None:
    """All that was written since is kept, and what it replaced is gone: that shows where the rows are read."""
    store = forgetful_store
    store.write_rows({"a": "1"})
    frame = store.load()
    store.write_rows({"a": "2"})
    store.wait_for_history()
    sentence, tries = failure(frame)
    assert "can't be read any more" in sentence
    assert tries == 4


def fetched(service: ConfigServiceProcess) -> int:
    """How many partitions the service was asked for."""
    with urllib.request.urlopen(service.metrics_url, timeout=PATIENCE_S) as response:
        lines = response.read().decode().splitlines()
    found = [line for line in lines if line.startswith("config_service_fetches_total{") and 'kind="partition"' in line]
    return sum(int(float(line.split()[-1])) for line in found)


def test_a_value_that_does_not_fit_its_columns(store: Store, service: ConfigServiceProcess) -> None:
    """One task reads, and the other tries say what it has found; a second action reads again."""
    store.write_rows({"a": "no JSON"})
    frame = store.load(valueColumns="owner STRING")
    for _ in range(2):
        before = fetched(service)
        sentence, tries = failure(frame)
        assert "does not fit option value_columns" in sentence
        assert (tries, fetched(service) - before) == (4, 1)


def test_which_errors_are_raised_again() -> None:
    final = [InvalidInputError("x"), UnknownKeyError("x"), RevisionGoneError("x"), ChangesLostError("x")]
    curable = [UnavailableError("x"), ProtocolError("x"), InternalError("x"), LimitExceededError("x", retry_after_s=1)]
    assert [task_failures._is_final(error) for error in final] == [True] * len(final)
    assert [task_failures._is_final(error) for error in curable] == [False] * len(curable)


def test_the_notes_of_errors_have_a_bound(tmp_path: Path) -> None:
    """They are as they were left; the oldest go, and one that can't be read is none."""
    for number in range(task_failures.MAX_NOTES + 5):
        task_failures._leave(tmp_path / f"{task_failures._PREFIX}{number}-0.json", UnknownKeyError(f"no key {number}"))
        os.utime(tmp_path / f"{task_failures._PREFIX}{number}-0.json", (number, number))
    assert len(list(tmp_path.iterdir())) == task_failures.MAX_NOTES
    assert task_failures._found(tmp_path / f"{task_failures._PREFIX}4-0.json") is None
    found = task_failures._found(tmp_path / f"{task_failures._PREFIX}5-0.json")
    assert (type(found), str(found)) == (UnknownKeyError, "no key 5")
    task_failures._leave(tmp_path / f"{task_failures._PREFIX}lost.json", ChangesLostError("gone"))
    assert isinstance(task_failures._found(tmp_path / f"{task_failures._PREFIX}lost.json"), ChangesLostError)
    (tmp_path / f"{task_failures._PREFIX}5-0.json").write_bytes(b"{")
    assert task_failures._found(tmp_path / f"{task_failures._PREFIX}5-0.json") is None
    task_failures._leave(tmp_path / "nowhere" / "note.json", UnknownKeyError("no key"))


def test_the_look_of_the_driver_refuses_no_read_that_works(forgetful_store: Store) -> None:
    """Revisions are gone that this read needs none of: of its ids nothing was written, and its partitions stayed."""
    store = forgetful_store
    store.write_rows({"a": "1", **{f"row-{number}": "1" for number in range(40)}})
    moved = {f"row-{number}": "2" for number in range(40)}
    options = parse_options({**store.options, "row_ids": "a"})
    reader = RingcastReader(take_snapshot(options), store.load().schema)
    store.write_rows(moved)
    store.write_rows(dict.fromkeys(moved, "3"))
    store.wait_for_history()
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert [(row["row_id"], row["value"]) for row in rows] == [("a", "1")]


@pytest.mark.parametrize(("changed", "tries"), [(["a", "a"], 0), (["b", "a", "a"], 4)])
def test_changes_that_are_gone_from_a_stream(
    forgetful_store: Store, stream: Stream, changed: list[str], tries: int
) -> None:
    """The first of a batch, which the driver sees, or one in the middle of it."""
    store, stream = forgetful_store, replace(stream, store=forgetful_store)
    b = next(f"b{n}" for n in range(1_000) if row_partition(f"b{n}", store.partition_count) == row_partition("a", 16))
    store.write_rows({"a": "1"})
    stream.catch_up(changes="every")
    for number, row_id in enumerate(changed):
        store.put(b if row_id == "b" else row_id, f"later {number}")
    store.wait_for_history()
    query = stream.start(available_now=True, changes="every")
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert "are gone: the service keeps them for a time only" in str(clear_error(caught.value))
    assert failed_tasks(store.spark, str(query.runId)) == tries
