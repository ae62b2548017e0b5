"""Changes as a stream: what comes, from where on, in batches of what size, and from a checkpoint again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from ringcast_core import row_partition

Store = Any  # of conftest.py
Stream = Any


def values(rows: Iterable[Any]) -> dict[str, str | None]:
    """Row id to value, null where it was deleted."""
    return {row.row_id: row.value for row in rows}


def test_every_version_where_that_is_wanted(store: Store, stream: Stream) -> None:
    # The first query of a session takes longest by far: this test has no other.
    for number in range(5):
        store.put("row", f"{number}")
    store.delete("row")
    rows = stream.catch_up(changes="every")
    assert [(row.version, row.value, row.deleted) for row in rows] == [
        *((number + 1, f"{number}", False) for number in range(5)),
        (6, None, True),
    ]


def test_first_the_list_then_its_changes(store: Store, stream: Stream) -> None:
    rows = {f"row-{number}": f"value {number}" for number in range(100)}
    store.write_rows(rows)
    first = stream.catch_up()
    assert values(first) == rows
    assert len(first) == 100
    assert all(row.partition == row_partition(row.row_id, store.partition_count) for row in first)

    store.put("row-1", "on its way")
    store.put("row-1", "changed", owner="ops")
    store.put("new", "added")
    store.delete("row-2")
    second = stream.catch_up()
    changed = {row.row_id: row for row in second}
    assert {row_id: (row.value, row.deleted) for row_id, row in changed.items()} == {
        "row-1": ("changed", False),
        "new": ("added", False),
        "row-2": (None, True),
    }
    assert len(second) == 3
    assert changed["row-1"].metadata == {"owner": "ops"}
    assert changed["new"].metadata is None
    assert stream.catch_up() == []


def test_where_a_stream_begins(store: Store, stream: Stream, tmp_path: Path) -> None:
    store.put("old", "1")
    store.put("old", "2")
    place = row_partition("old", store.partition_count)
    given = type(stream)(store, tmp_path / "given")
    assert [row.version for row in given.catch_up(startingOffsets=json.dumps({place: 1}))] == [2]

    assert stream.catch_up(startingOffsets="latest") == []
    store.put("new", "1")
    assert values(stream.catch_up(startingOffsets="latest")) == {"new": "1"}

    only = type(stream)(store, tmp_path / "only")
    assert values(only.catch_up(partitions=str(place))) == {
        row_id: value for row_id, value in store.rows().items() if row_partition(row_id, 16) == place
    }


def test_no_batch_is_larger_than_asked_for_and_available_now_ends(store: Store, stream: Stream) -> None:
    rows = {f"row-{number}": "x" for number in range(100)}
    store.write_rows(rows)
    keep = stream._keep

    def keep_and_write(frame: Any, number: int) -> None:
        keep(frame, number)
        store.put(f"written-during-{number}", "x")

    stream._keep = keep_and_write
    assert values(stream.catch_up(maxRowsPerTrigger="40")) == rows
    assert [len(stream.batches[number]) for number in range(3)] == [40, 40, 20]
    stream._keep = keep
    assert set(values(stream.catch_up(maxRowsPerTrigger="40"))) == {f"written-during-{number}" for number in range(3)}


def test_a_store_is_mirrored(store: Store, stream: Stream, tmp_path: Path) -> None:
    store.write_rows({f"row-{number}": "x" for number in range(50)})

    def mirror() -> None:
        writer = stream.frame(maxRowsPerTrigger="30").writeStream.format("ringcast")
        writer = writer.options(**{**store.options, "key": "copy"}).option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    mirror()
    store.put("row-1", "y", owner="ops")
    store.delete("row-2")
    mirror()
    rows = store.rows()
    store.key = "copy"
    assert store.rows() == rows
    assert store.metadata("row-1") == {"owner": "ops"}
    assert "row-2" not in rows
    assert len(rows) == 49


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": "nowhere"}, "there is no store 'nowhere'"),
        ({"key": "never-written"}, "has no config key 'never-written'"),
        ({"servers": "nats://127.0.0.1:1", "timeout_s": "0.3", "user": "u", "password": "s3cret"}, "can't be reached"),
    ],
)
def test_a_wrong_option_is_an_error_at_load(
    store: Store, stream: Stream, options: dict[str, str], message: str
) -> None:
    store.put("row", "x")
    with pytest.raises(AnalysisException, match=message) as caught:
        stream.frame(**options)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rowIds": "a,b"}, "option row_ids goes with batch reads, not with a stream"),
        ({"service": "127.0.0.1:1", "timeout_s": "0.3", "user": "u", "password": "s3cret"}, "did not answer"),
    ],
)
def test_other_wrong_options_are_an_error_at_start(
    store: Store, stream: Stream, options: dict[str, str], message: str
) -> None:
    store.put("row", "x")
    with pytest.raises(StreamingQueryException, match=message) as caught:
        stream.catch_up(**options)
    assert "s3cret" not in str(caught.value)


def test_a_checkpoint_of_another_list_is_refused(store: Store, stream: Stream) -> None:
    store.put("row", "x")
    stream.catch_up()
    store.key = "other"
    store.put("row", "x")
    with pytest.raises(StreamingQueryException, match=f"belongs to a stream of '{store.name}/list'"):
        stream.catch_up()


def test_a_schema_of_ones_own_is_refused(store: Store, stream: Stream) -> None:
    store.put("row", "x")
    frame = store.spark.readStream.format("ringcast").options(**store.options).schema("row_id STRING").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(stream.checkpoint))
    query = writer.start()
    with pytest.raises(StreamingQueryException, match="the schema of a ringcast read is fixed"):
        query.awaitTermination()
