"""A batch read is one snapshot: whatever is written after it was planned, its rows are those of its revisions."""

from __future__ import annotations

import datetime
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark_ringcast import pipeline, revisions_of, version_now
from pyspark_ringcast._batch.read import RingcastReader, take_snapshot
from pyspark_ringcast._common.options import parse_options
from pyspark_ringcast._common.since import since_text
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S
from ringcast_wire import RevisionGoneError

Store = Any  # of conftest.py

ROWS = {f"row-{number}": f"value {number}" for number in range(300)}


@pytest.fixture
def filled(store: Store) -> Store:
    store.write_rows(ROWS)
    return store


def values(frame: DataFrame) -> dict[str, str]:
    found = frame.select("row_id", "value").collect()
    assert len({row.row_id for row in found}) == len(found), "a row came twice"
    return {row.row_id: row.value for row in found}


def reader_of(store: Store, **options: str) -> RingcastReader:
    """What Spark would send to tasks; it runs here, without Spark's retries."""
    snapshot = take_snapshot(parse_options({**store.options, **options}))
    return RingcastReader(snapshot, store.load().schema)


def read_here(reader: RingcastReader) -> dict[str, str | None]:
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    return {row["row_id"]: row["value"] for row in rows}


def change_all(store: Store) -> None:
    """Every partition moves on: rows are changed, deleted, written anew and added, some of them several times."""
    changed, gone = sorted(ROWS)[:150], sorted(ROWS)[150:170]
    store.write_rows(dict.fromkeys(changed, "changed"))
    store.write_rows(dict.fromkeys(changed, "changed again"))
    for row_id in gone:
        store.delete(row_id)
    store.write_rows(dict.fromkeys(gone[:10], "back") | {f"new-{number}": "1" for number in range(50)})


def test_a_data_frame_stays_with_its_snapshot(filled: Store) -> None:
    """Also when it is run again, and read twice in one query."""
    frame = filled.load()
    change_all(filled)
    assert values(frame) == ROWS
    change_all(filled)
    assert values(frame) == ROWS
    twice = frame.unionAll(frame).groupBy("row_id", "version").count().filter("count = 2")
    assert twice.count() == len(ROWS), "two scans of one query read different rows"
    assert values(filled.load()) == filled.rows()


def test_a_key_that_is_written_all_the_time(filled: Store) -> None:
    """Each of several reads gives the rows of a moment: the writer counts, one row after the other."""
    stop = Event()
    places = [f"row-{number}" for number in range(40)]

    def write() -> int:
        count = 0
        while not stop.is_set():
            filled.put(places[count % len(places)], str(count))
            count += 1
        return count

    def wait_for(revisions: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while sum(filled.heads()) < revisions:
            assert time.monotonic() < deadline, "the writer writes nothing"

    before = sum(filled.heads())
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(3):
                wait_for(before + 1)  # a snapshot from before the first write shows nothing
                before = sum(filled.heads())
                frame = filled.load()
                wait_for(before + 2 * len(places))  # so that most partitions move on under the read
                found = values(frame)
                assert found.keys() == ROWS.keys()
                counts = sorted(int(value) for value in found.values() if not value.startswith("value"))
                assert counts == list(range(counts[0], counts[0] + len(counts))), "rows are of different moments"
        finally:
            stop.set()
        assert writing.result() > 0


def test_a_snapshot_of_tombstones(filled: Store) -> None:
    first = sorted(ROWS)[0]
    filled.delete(first)
    frame = filled.load(include_deleted="true")
    filled.put(first, "back")
    filled.delete(sorted(ROWS)[1])
    found = {row.row_id: row for row in frame.collect()}
    assert found.keys() == ROWS.keys()
    assert [row.row_id for row in found.values() if row.deleted] == [first]
    assert found[first].value is None


def test_rows_by_id_stay_with_the_snapshot(filled: Store) -> None:
    """Changed, deleted, written anew and not there; with a neighbour that is changed and one that is not."""
    changed, gone = sorted(ROWS)[:2]
    home = row_partition(changed, filled.partition_count)
    alike = (row_id for row_id in ROWS if row_partition(row_id, filled.partition_count) == home)
    beside = next(row_id for row_id in alike if row_id not in (changed, gone))
    not_there = next(f"none-{n}" for n in range(1_000) if row_partition(f"none-{n}", filled.partition_count) == home)
    wanted = {row_id: ROWS[row_id] for row_id in (changed, gone, beside)}
    reader = reader_of(filled, row_ids=",".join([*wanted, not_there]))
    only_beside = reader_of(filled, row_ids=beside)
    was_deleted = sorted(ROWS)[2]
    filled.delete(was_deleted)
    tombstone = reader_of(filled, row_ids=was_deleted, include_deleted="true")
    filled.put(was_deleted, "back")
    filled.put(changed, "changed")
    filled.delete(gone)
    filled.put(not_there, "now it is")
    assert read_here(reader) == wanted
    assert read_here(only_beside) == {beside: ROWS[beside]}
    assert read_here(tombstone) == {was_deleted: None}


def test_what_changed_since_stays_with_the_snapshot(filled: Store) -> None:
    seen = revisions_of(filled.load())
    gone, changed = sorted(ROWS)[:2]
    filled.delete(gone)
    filled.put(changed, "changed")
    newer = filled.load(since=seen, include_deleted="true")
    live = filled.load(since=seen)
    filled.put(gone, "back")
    filled.put(changed, "changed again")
    filled.put("another", "1")
    assert values(newer) == {gone: None, changed: "changed"}
    assert values(live) == {changed: "changed"}


def test_a_version_that_is_named(filled: Store) -> None:
    """By a read, an export, a vector of heads: what it was then; and as `since` it gives what changed after."""
    version = version_now(**filled.options)
    assert version == since_text(dict(enumerate(filled.heads())))
    of_rows = revisions_of(filled.load())
    change_all(filled)
    for text in (version, of_rows):
        assert values(filled.load(versionAsOf=text)) == ROWS
    assert values(filled.load(versionAsOf="{}")) == {}
    later = since_text(dict(enumerate(filled.heads())))
    then = filled.rows()
    filled.put("later", "1")
    assert values(filled.load(versionAsOf=later)) == then
    between = filled.load(versionAsOf=later, since=version)
    assert values(between) == {row_id: value for row_id, value in then.items() if ROWS.get(row_id) != value}
    assert filled.load(versionAsOf=version, since=version).count() == 0


def test_a_moment_that_is_named(filled: Store) -> None:
    """What was written at it is in, what was written a millisecond later is not."""
    at_ms = max(revision.written_at_ms for revision in filled.revisions())
    while time.time() * 1000 < at_ms + 1:
        time.sleep(0.001)
    filled.put("later", "1")
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=at_ms)
    offset = moment.astimezone(datetime.timezone(datetime.timedelta(hours=2)))
    for text in (moment.isoformat(), offset.isoformat()):
        assert values(filled.load(timestampAsOf=text)) == ROWS
    assert values(filled.load(timestampAsOf="1971-01-01")) == {}
    with pytest.raises(Exception, match="which is still to come"):
        filled.load(timestampAsOf="2999-01-01")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"versionAsOf": "{}", "timestampAsOf": "2026-01-01"}, "options version_as_of and timestamp_as_of are given"),
        ({"versionAsOf": "17"}, "option version_as_of is '17': one number can't say which version, for each partition"),
        ({"versionAsOf": '{"0": 999}'}, "option version_as_of has revision 999 for partition 0 of .*, which is at rev"),
        ({"versionAsOf": '{"99": 1}'}, "option version_as_of has partition 99: .* has partitions 0 to 15"),
        (
            {"versionAsOf": "{}", "onChange": "latest"},
            "option on_change is latest: that does not go with vers",
        ),
        ({"versionAsOf": "{}", "since": '{"0": 1}'}, "option since has revision 1 for partition 0 of .* at revision 0"),
    ],
)
def test_a_version_of_something_else(filled: Store, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        filled.load(**options)


def test_history_that_is_gone_is_one_clear_error(forgetful_store: Store) -> None:
    store = forgetful_store
    store.write_rows({"a": "1", "b": "1"})
    frame, reader = store.load(), reader_of(store)
    store.write_rows({"a": "2", "b": "2"})
    store.write_rows({"a": "3", "b": "3"})
    store.wait_for_history()
    sentence = "can't be read any more: .*; make the DataFrame or view again, or read with the option onChange=latest"
    with pytest.raises(RevisionGoneError, match=sentence):
        read_here(reader)
    with pytest.raises(Exception, match=sentence):
        frame.collect()
    assert values(store.load()) == {"a": "3", "b": "3"}


def test_an_export_of_a_key_that_is_written_to(filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are those of the revisions that it names."""
    target = pipeline.Target(store=filled.name, key=filled.key, servers=filled.nats_url, service=filled.address)
    kind = type(filled.load())
    write = kind.write

    def changed_before(frame: DataFrame) -> Any:
        change_all(filled)
        return write.fget(frame)

    heads = filled.heads()
    monkeypatch.setattr(kind, "write", property(changed_before))
    export = pipeline.export_snapshot(filled.spark, target, str(tmp_path / "export"))
    monkeypatch.undo()
    assert export.heads == heads
    assert export.rows == len(ROWS)
    assert values(filled.spark.read.parquet(str(tmp_path / "export" / "rows"))) == ROWS
    assert values(filled.load(versionAsOf=export.since)) == ROWS
