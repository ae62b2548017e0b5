"""Reads of a key as it was when a release was published."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark_ringcast import stage_release
from ringcast_testkit import PATIENCE_S
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py


def stage(store: Store, rows: dict[str, str], mode: str = "append") -> int:
    options = {name: text for name, text in store.options.items() if name != "key"}
    number = stage_release({store.key: store.frame(rows)}, mode=mode, maxDeleteShare=1, **options).release
    assert number is not None
    return number


def wait_for(store: Store, number: int, state: pb.ReleaseState) -> None:
    deadline, wanted = time.monotonic() + PATIENCE_S, pb.GetReleaseRequest(store=store.name, number=number)
    while store.stub.GetRelease(wanted).state != state:
        assert time.monotonic() < deadline, "the release has another state"
        time.sleep(0.05)


def publish(store: Store, number: int) -> None:
    store.stub.PublishRelease(pb.PublishReleaseRequest(store=store.name, number=number))
    wait_for(store, number, pb.RELEASE_STATE_PUBLISHED)


def rows_as_of(store: Store, number: int, **options: str) -> dict[str, str]:
    frame = store.load(releaseAsOf=str(number), **options)
    return {row.row_id: row.value for row in frame.collect()}


def test_a_key_as_it_was_when_a_release_was_published(store: Store) -> None:
    store.write_rows({"a": "1", "b": "1"})
    publish(store, first := stage(store, {"a": "2", "new": "1"}))
    store.write_rows({"b": "between"})
    publish(store, second := stage(store, {"a": "3", "c": "1"}, mode="overwrite"))
    store.write_rows({"a": "later"})
    assert rows_as_of(store, first) == {"a": "2", "b": "1", "new": "1"}
    assert rows_as_of(store, first, rowIds="a,c") == {"a": "2"}
    assert rows_as_of(store, second) == {"a": "3", "c": "1"}
    store.stub.UndoRelease(pb.ChangeReleaseRequest(store=store.name, number=second))
    wait_for(store, second, pb.RELEASE_STATE_UNDONE)
    assert rows_as_of(store, second) == {"a": "3", "c": "1"}
    assert store.rows() == {"a": "later", "b": "between", "new": "1"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"releaseAsOf": "9"}, "has no release 9"),
        ({"releaseAsOf": "1"}, r"when release 1 was published can't be read: the release is staged"),
        ({"releaseAsOf": "last"}, "option release_as_of is 'last': a whole number from 1 to"),
        ({"releaseAsOf": "0"}, "option release_as_of is '0': a whole number from 1 to"),
        (
            {"releaseAsOf": "1", "timestampAsOf": "2026-01-01"},
            "options timestamp_as_of and release_as_of are given",
        ),
        ({"releaseAsOf": "1", "onChange": "latest"}, "on_change is latest: that does not go with release_as_of"),
    ],
)
def test_what_can_not_be_read(store: Store, options: dict[str, str], expected: str) -> None:
    store.write_rows({"a": "1"})
    assert stage(store, {"a": "2"}) == 1
    with pytest.raises(PySparkException, match=expected):
        store.load(**options)


def test_what_the_history_does_not_have_any_more(forgetful_store: Store) -> None:
    store = forgetful_store
    store.write_rows({"a": "1"})
    publish(store, number := stage(store, {"a": "2"}))
    store.write_rows({"a": "3"})
    store.wait_for_history()
    with pytest.raises(PySparkException, match="can't be read any more: its history goes back to"):
        store.load(releaseAsOf=str(number))


def test_a_stream_has_no_version_to_read(store: Store) -> None:
    publish(store, number := stage(store, {"a": "1"}))
    frame = store.spark.readStream.format("ringcast").options(**store.options, releaseAsOf=str(number)).load()
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="option release_as_of goes with batch reads, not with a stream"):
        query.awaitTermination()
