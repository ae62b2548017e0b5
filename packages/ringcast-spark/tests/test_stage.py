"""Rows that are staged as a release: by a write, and of several keys at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark_ringcast import Counts, Staged, stage_release, write
from pyspark_ringcast._common.guards import OverwriteRefusedError
from ringcast_testkit import PATIENCE_S
from ringcast_wire import InvalidInputError, LimitExceededError
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py

STAGED = pb.RELEASE_STATE_STAGED
SCHEMA = "row_id STRING, value STRING, deleted BOOLEAN"
BEFORE = {"same": "1", "changed": "1", "gone": "1", "other": "1"}
ROWS = [("same", "1", False), ("new", "1", False), ("changed", "2", False), ("gone", None, True), ("no", None, True)]


def releases(store: Store) -> list[pb.Release]:
    """The newest first."""
    return list(store.stub.ListReleases(pb.ListReleasesRequest(store=store.name)).releases)


def only_release(store: Store) -> pb.Release:
    (found,) = releases(store)
    whole: pb.Release = store.stub.GetRelease(pb.GetReleaseRequest(store=store.name, number=found.number))
    return whole


def staged_rows(store: Store, number: int) -> list[pb.ReleaseRow]:
    return list(store.stub.ListReleaseRows(pb.ListReleaseRowsRequest(store=store.name, number=number)).rows)


def publish(store: Store, number: int) -> None:
    store.stub.PublishRelease(pb.PublishReleaseRequest(store=store.name, number=number))
    deadline, wanted = time.monotonic() + PATIENCE_S, pb.GetReleaseRequest(store=store.name, number=number)
    while store.stub.GetRelease(wanted).state != pb.RELEASE_STATE_PUBLISHED:
        assert time.monotonic() < deadline, "the release is not published"
        time.sleep(0.05)


def test_a_write_that_stages(store: Store, tmp_path: Path) -> None:
    store.write_rows(BEFORE)
    heads, counts = store.heads(), str(tmp_path / "counts")
    frame = store.frame(ROWS, SCHEMA).repartition(2)
    store.save(frame, release="new", reason="spring", countsPath=counts)
    assert (store.heads(), store.rows()) == (heads, BEFORE), "nobody sees it yet"
    release = only_release(store)
    assert (release.state, release.rows, release.reason) == (STAGED, 3, "spring")
    assert [(key.key, key.added, key.changed, key.deleted) for key in release.keys] == [(store.key, 1, 1, 1)]
    partitions = [row.partition for row in staged_rows(store, release.number)]
    assert partitions == sorted(partitions), "the order in which they are published"
    (report,) = store.spark.read.parquet(counts).collect()
    assert (report.release, report.written, report.deleted, report.unchanged) == (release.number, 2, 1, 2)
    publish(store, release.number)
    assert store.rows() == {"same": "1", "changed": "2", "new": "1", "other": "1"}
    store.save(frame, release="new", countsPath=counts)
    assert len(releases(store)) == 1, "nothing differs, so there is nothing to publish"


def test_one_release_of_several_keys(store: Store) -> None:
    store.write_rows(BEFORE)
    options = {name: text for name, text in store.options.items() if name != "key"}
    frames = {
        store.key: store.frame({"same": "1", "changed": "2", "new": "1"}).repartition(2),
        "flags": store.frame({"checkout": "on"}),
    }
    found = stage_release(frames, mode="overwrite", maxDeleteShare=0.5, **options)
    number = only_release(store).number
    assert found == Staged(number, {store.key: Counts(2, 2, 1), "flags": Counts(1)})
    assert store.rows() == BEFORE
    publish(store, number)
    assert store.rows() == {"same": "1", "changed": "2", "new": "1"}
    again = stage_release(frames, mode="overwrite", **options)
    assert again == Staged(None, {store.key: Counts(unchanged=3), "flags": Counts(unchanged=1)})
    with pytest.raises(OverwriteRefusedError, match="is refused, and nothing is staged: it deletes 2 of 3 rows"):
        stage_release({store.key: store.frame({"same": "1"})}, mode="overwrite", **options)
    assert len(releases(store)) == 1


def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt of each task dies behind its rows, and had others than the next one has."""
    context = TaskContext.get()
    assert context is not None
    first = context.attemptNumber() == 0
    for batch in batches:
        if first:
            ids = pa.array([f"lost-{row_id}" for row_id in batch.column("row_id").to_pylist()])
            yield pa.record_batch({"row_id": ids, "value": batch.column("value")})
        yield batch
    if first:
        raise RuntimeError("the first attempt dies")


def test_tasks_that_are_tried_again_stage_each_row_once(store: Store) -> None:
    rows = {f"row-{number}": str(number) for number in range(300)}
    frame = store.frame(rows).repartition(2).mapInArrow(fails_once, "row_id STRING, value STRING")
    options = {name: text for name, text in store.options.items() if name != "key"}
    found = stage_release({store.key: frame}, **options)
    assert found.counts == {store.key: Counts(len(rows))}
    assert found.release is not None
    assert {row.row_id: row.value for row in staged_rows(store, found.release)} == rows
    store.save(frame, release="new")
    newest = releases(store)[0]
    assert newest.number > found.release
    assert {row.row_id: row.value for row in staged_rows(store, newest.number)} == rows


def test_a_row_that_comes_several_times_is_staged_once(store: Store) -> None:
    store.write_rows({"back": "1"})
    rows = [("back", "2"), ("twice", "1"), ("twice", "2"), ("back", "1")]
    options = {name: text for name, text in store.options.items() if name != "key"}
    found = stage_release({store.key: store.frame(rows).coalesce(1)}, **options)
    assert found.counts == {store.key: Counts(written=1, unchanged=3)}
    assert found.release is not None
    assert [(row.row_id, row.value) for row in staged_rows(store, found.release)] == [("twice", "2")]


def test_rejected_rows_are_counted_and_reported(store: Store, tmp_path: Path) -> None:
    definition = '{"type": "integer"}'
    kind, mode = pb.SCHEMA_KIND_JSON_SCHEMA, pb.SCHEMA_MODE_ENFORCE
    store.stub.RegisterSchema(
        pb.RegisterSchemaRequest(store=store.name, key=store.key, kind=kind, definition=definition, mode=mode)
    )
    frame = store.frame([("good", "1"), ("", "1"), ("bad", "x"), ("fine", "2")]).repartition(2)
    options = {name: text for name, text in store.options.items() if name != "key"}
    path = str(tmp_path / "rejects")
    found = stage_release({store.key: frame}, maxRejected=2, rejectsPath=path, **options)
    assert found.counts == {store.key: Counts(written=2, rejected=2)}
    assert found.release is not None
    assert {row.row_id for row in staged_rows(store, found.release)} == {"good", "fine"}
    reported = {(row.row_id, row.code, row.field) for row in store.spark.read.parquet(path).collect()}
    assert reported == {("", "EMPTY", "row_id"), ("bad", "SCHEMA", "value")}
    with pytest.raises(PySparkException, match=r"2 rows were rejected, and option max_rejected allows 1"):
        store.save(frame, release="new", maxRejected="1")
    assert releases(store)[0].state == pb.RELEASE_STATE_DROPPED, "what was staged by then"
    nothing = stage_release({store.key: store.frame([("bad", "x")])}, maxRejected=1, **options)
    assert nothing == Staged(None, {store.key: Counts(rejected=1)})
    assert releases(store)[0].state == pb.RELEASE_STATE_DROPPED


def test_a_policy_that_refuses_a_release(store: Store) -> None:
    store.write_rows(BEFORE)
    policy = pb.StorePolicy(max_release_change_percent=10, releases_only=True)
    store.stub.SetStorePolicy(pb.SetStorePolicyRequest(name=store.name, policy=policy))
    with pytest.raises(PySparkException, match="the policy max_release_change_percent of the store allows 10 %"):
        store.save(store.frame({"same": "2"}), release="new")
    assert releases(store)[0].state == pb.RELEASE_STATE_DROPPED
    store.save(store.frame({"new": "1"}), release="new")
    assert releases(store)[0].state == STAGED, "a store that takes releases only takes it"


def test_a_store_with_as_many_open_releases_as_it_may_have(store: Store) -> None:
    write_one = pb.KeyedWrite(key=store.key, row=pb.RowWrite(row_id="a", value="1", if_absent=True))
    for number in range(20):
        request = pb.StageReleaseRequest(store=store.name, stage_id=str(number), rows=[write_one], complete=True)
        store.stub.StageRelease(request)
    options = {name: text for name, text in store.options.items() if name != "key"}
    with pytest.raises(LimitExceededError, match="has 20 releases that are staged or under way, the limit is 20"):
        stage_release({store.key: store.frame({"a": "1"})}, **options)
    assert len(releases(store)) == 20


def test_what_does_not_go_with_a_release(store: Store, tmp_path: Path) -> None:
    frame = store.frame({"a": "1"})
    with pytest.raises(PySparkException, match=r"option release is '7': new is allowed\. What is staged can't be"):
        store.save(frame, release="7")
    with pytest.raises(PySparkException, match="max_rows_per_second goes with a direct write, not with a release"):
        store.save(frame, release="new", maxRowsPerSecond="10")
    with pytest.raises(InvalidInputError, match="option release goes with stage_release, which returns the number"):
        write(frame, **store.options, release="new")
    with pytest.raises(InvalidInputError, match="option key is given: stage_release makes a new release of the keys"):
        stage_release({store.key: frame}, **store.options)
    with pytest.raises(InvalidInputError, match="a release of no key can't be staged"):
        stage_release({})
    frame.write.parquet(str(tmp_path / "in"))
    source = store.spark.readStream.schema("row_id STRING, value STRING").parquet(str(tmp_path / "in"))
    writer = source.writeStream.format("ringcast").options(**store.options, release="new")
    with pytest.raises(PySparkException, match="not with a stream, each batch of which would be a release: call"):
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
    assert releases(store) == []


def test_the_number_is_in_the_log(store: Store, logged: Callable[[str], list[dict[str, str]]]) -> None:
    store.save(store.frame({"a": "1"}), release="new")
    (line,) = [line for line in logged("write.staged") if line["store"] == store.name]
    assert (line["release"], line["key"], line["written"]) == (str(only_release(store).number), store.key, "1")
    assert re.fullmatch("[0-9a-f]{32}", line["job"])
