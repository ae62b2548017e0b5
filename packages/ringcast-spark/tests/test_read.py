"""Batch reads of a real store: rows, options, filters, and what keeps a read to its snapshot."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark_ringcast import pipeline, revisions_of
from pyspark_ringcast._batch.read import ReadTask, RingcastReader, Snapshot, _TaskRead, take_snapshot
from pyspark_ringcast._common.options import parse_options
from ringcast_core import row_partition
from ringcast_wire import FetchReply, PartitionRows, ProtocolError, encode

Store = Any  # of conftest.py
Stream = Any

ROWS = {f"row-{number} é\U0001f600": f"value {number}" for number in range(500)}


@pytest.fixture
def filled(store: Store) -> Store:
    store.write_rows(ROWS)
    return store


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """A session that lets filters through to data sources."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def ids(frame: DataFrame) -> set[str]:
    return {row.row_id for row in frame.select("row_id").collect()}


def partition_of(store: Store, row_id: str) -> int:
    return row_partition(row_id, store.partition_count)


def test_rows_and_columns(filled: Store) -> None:
    filled.put("with metadata", "v", by="me", why="é")
    found = {row.row_id: row for row in filled.load().collect()}
    assert {row_id: row.value for row_id, row in found.items()} == {**ROWS, "with metadata": "v"}
    assert all(row.partition == partition_of(filled, row_id) for row_id, row in found.items())
    assert len({(row.partition, row.version) for row in found.values()}) == len(found)
    assert max(row.version for row in found.values()) <= max(filled.heads())
    assert found["with metadata"].metadata == {"by": "me", "why": "é"}
    assert sum(row.metadata is not None for row in found.values()) == 1


def test_tombstones_come_when_asked_for(filled: Store) -> None:
    gone = next(iter(ROWS))
    filled.delete(gone)
    assert gone not in ids(filled.load())
    assert filled.load().count() == len(ROWS) - 1
    everything = {row.row_id: row for row in filled.load(include_deleted="true").collect()}
    assert len(everything) == len(ROWS)
    assert (everything[gone].deleted, everything[gone].value) == (True, None)
    assert sum(row.deleted for row in everything.values()) == 1


def test_options_make_a_read_smaller(filled: Store) -> None:
    chosen = {row_id for row_id in ROWS if partition_of(filled, row_id) in (0, 1, 2, 9)}
    frame = filled.load(partitions="0-2,9")
    assert ids(frame) == chosen
    wanted = sorted(ROWS)[:3]
    by_id = filled.load(rowIds=f'["{wanted[0]}", "{wanted[1]}", "{wanted[2]}", "not there"]')
    assert ids(by_id) == set(wanted)
    both = filled.load(row_ids=f'["{wanted[0]}"]', partitions=str(partition_of(filled, wanted[0])))
    assert ids(both) == {wanted[0]}
    newest = {row.row_id for row in filled.load().collect() if row.version > 20}
    assert newest
    assert ids(filled.load(since=json.dumps(dict.fromkeys(map(str, range(filled.partition_count)), 20)))) == newest


def test_tasks_share_the_partitions(filled: Store) -> None:
    frame = filled.load(tasks="3")
    assert frame.rdd.getNumPartitions() == 3
    assert frame.count() == len(ROWS)
    homes = frame.select("partition", sql.spark_partition_id().alias("task")).distinct().collect()
    assert len(homes) == len({row.partition for row in homes}), "a partition was read by two tasks"


def test_filters_without_pushdown_are_spark_s_own(filled: Store) -> None:
    row_id = next(iter(ROWS))
    assert ids(filled.load().filter(sql.col("row_id") == row_id)) == {row_id}
    assert filled.load().filter("version > 20 AND partition < 3").count() > 0


@pytest.mark.usefixtures("pushdown")
def test_filters_of_one_query_are_not_those_of_another(filled: Store) -> None:
    """Where Spark hands filters to data sources, it keeps one reader for all queries of a DataFrame."""
    first, second = sorted(ROWS)[:2]
    frame = filled.load()
    assert ids(frame.filter(sql.col("row_id") == first)) == {first}
    assert frame.count() == len(ROWS)
    assert ids(frame.filter(sql.col("row_id") == first).unionAll(frame.filter(sql.col("row_id") == second))) == {
        first,
        second,
    }
    assert frame.filter("version > 20").count() == sum(row.version > 20 for row in frame.collect())


FILTERS = ("version > 1", "version > 5 AND NOT deleted", "deleted", "row_id = 'row-1'", "partition < 3", "true")


def test_filters_change_no_read_of_tombstones_that_were_compacted(compacted_store: Store) -> None:
    """What the service has forgotten is missing with push-down and without it, and nothing else is."""
    compacted, half = compacted_store, compacted_store.partition_count // 2
    lower = next(n for n in range(100) if partition_of(compacted, f"row-{n}") < half)
    upper = next(n for n in range(100) if partition_of(compacted, f"row-{n}") >= half)
    for number in (lower, upper):
        compacted.delete(f"row-{number}")
    found = {}
    for pushed in ("false", "true"):
        compacted.spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        try:
            frame = compacted.load(includeDeleted="true")
            found[pushed] = [
                sorted((row.row_id, row.version, row.deleted, row.partition) for row in frame.filter(text).collect())
                for text in FILTERS
            ]
        finally:
            compacted.spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found["true"] == found["false"]
    later, live, deleted, _, _, every = found["true"]
    assert {row_id for row_id, *_ in every} == {f"row-{number}" for number in range(100)} - {f"row-{lower}"}
    assert later == [row for row in every if row[1] > 1]
    assert live == [row for row in every if row[1] > 5 and not row[2]]
    # Where the service has forgotten one tombstone of a partition, it sends none of that partition.
    assert [row_id for row_id, *_ in deleted] == [f"row-{upper}"]


def test_since_is_what_a_read_a_stream_or_an_export_gives(filled: Store, stream: Stream, tmp_path: Path) -> None:
    """Each of them finds every row that was changed later, though the partitions are at different revisions."""
    for number in range(30):
        filled.put("hot", str(number))
    target = pipeline.Target(store=filled.name, key=filled.key, servers=filled.nats_url, service=filled.address)
    export = pipeline.export_snapshot(filled.spark, target, str(tmp_path / "snapshot"))
    query = stream.start(available_now=True)
    query.awaitTermination()
    offset = query.lastProgress["sources"][0]["endOffset"]
    texts = {
        "read": revisions_of(filled.load()),
        "stream": offset if isinstance(offset, str) else json.dumps(offset),
        "export": export.since,
        "export.json": (tmp_path / "snapshot" / "export.json").read_text(),
    }
    changed = sorted(ROWS)[:40]
    gone = sorted(ROWS)[40]
    assert len({partition_of(filled, row_id) for row_id in changed}) > 10
    filled.write_rows(dict.fromkeys(changed, "changed"))
    filled.delete(gone)
    for name, text in texts.items():
        assert ids(filled.load(since=text)) == set(changed), name
        assert ids(filled.load(since=text, include_deleted="true")) == {*changed, gone}, name
        assert ids(filled.load(since=text, row_ids=f'["{changed[0]}", "{sorted(ROWS)[60]}"]')) == {changed[0]}, name
    later = revisions_of(filled.load(since=texts["read"], include_deleted="true"), since=texts["read"])
    assert filled.load(since=later).count() == 0
    filled.put("one more", "1")
    assert ids(filled.load(since=later)) == {"one more"}


@pytest.mark.parametrize("on_change", ["snapshot", "latest"])
def test_deletes_since_whose_tombstones_were_compacted_come_from_the_history(
    compacted_store: Store, on_change: str
) -> None:
    """Of all partitions, and of rows by their ids; what was written after the snapshot is not among them."""
    compacted, half = compacted_store, compacted_store.partition_count // 2
    one = {str(partition): 1 for partition in range(compacted.partition_count)}
    before = {row.row.row_id: row.row.version for row in compacted.revisions() if not row.row.deleted}
    gone = {row.row.row_id: row.row.version for row in compacted.revisions() if row.row.deleted}
    assert gone, "nothing was compacted"
    assert {partition_of(compacted, row_id) for row_id in gone} == set(range(half))
    live = {row_id for row_id, version in before.items() if version > 1} - gone.keys()
    options = {"since": json.dumps(one), "includeDeleted": "true", "onChange": on_change}
    frame, some = compacted.load(**options), compacted.load(**options, rowIds="gone-none,row-1," + ",".join(gone))
    if on_change == "snapshot":
        compacted.put("row-2", "later")
        compacted.put(next(iter(gone)), "back")
    found = {row.row_id: row for row in frame.collect()}
    assert {row_id: row.version for row_id, row in found.items() if row.deleted} == gone
    assert all(found[row_id].value is None for row_id in gone)
    assert {row_id for row_id, row in found.items() if not row.deleted} == live
    assert {row.value for row in found.values()} == {None, "1"}
    assert ids(some) == {*gone, *({"row-1"} & live)}
    without = compacted.load(since=json.dumps(one), onChange=on_change).filter("value = '1'")
    assert ids(without) <= live, "and without includeDeleted the rows that are there"


@pytest.mark.parametrize("more", [{}, {"rowIds": "a"}, {"onChange": "latest"}], ids=str)
def test_deletes_since_that_are_forgotten_are_an_error(forgetful_store: Store, more: dict[str, str]) -> None:
    """Neither tombstones nor revisions are left: no read says what was deleted, and none leaves it out silently."""
    store = forgetful_store
    store.write_rows({"a": "1", "b": "1"})
    seen = revisions_of(store.load())
    store.put("a", "2")
    store.delete("a")
    store.wait_for_compaction()
    store.wait_for_history()
    with pytest.raises(
        Exception, match=r"which rows of partition .* were deleted since revision .* is not known any more"
    ):
        store.load(since=seen, includeDeleted="true", **more).collect()
    assert store.load(since=seen).count() == 0
    assert ids(store.load()) == {"b"}


@pytest.mark.parametrize(
    ("since", "sentence"),
    [
        ("17", "option since is '17': one number can't say what is new, for each partition counts by itself"),
        ('{"0": 999}', "option since has revision 999 for partition 0 of .*, which is at revision"),
        ('{"99": 1}', "option since has partition 99: .* has partitions 0 to 15"),
        (
            '{"list": "other/list", "partitions": 16, "revisions": {}}',
            "option since is of 'other/list', and .* is read",
        ),
    ],
)
def test_since_of_something_else(filled: Store, since: str, sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        filled.load(since=since)


def test_latest_takes_what_is_there(store: Store) -> None:
    store.write_rows({"a": "1"})
    frame = store.load(on_change="latest")
    store.write_rows({f"new-{number}": "2" for number in range(100)})
    store.put("a", "3")
    found = {row.row_id: row.value for row in frame.collect()}
    assert found == {"a": "3", **{f"new-{number}": "2" for number in range(100)}}


def reader_of(store: Store, **options: str) -> RingcastReader:
    """What Spark would send to tasks; it runs here, without Spark's retries."""
    snapshot = take_snapshot(parse_options({**store.options, **options}))
    return RingcastReader(snapshot, store.load().schema)


def test_a_task_that_runs_again_reads_the_same(filled: Store) -> None:
    """What Spark does on a retry: the pickled reader, the same task, another process or the same."""
    reader = pickle.loads(pickle.dumps(reader_of(filled)))
    task = reader.partitions()[0]
    first = [batch.to_pylist() for batch in reader.read(task)]
    assert first
    assert [batch.to_pylist() for batch in reader.read(pickle.loads(pickle.dumps(task)))] == first


def test_a_partition_that_the_store_does_not_have_is_refused() -> None:
    """No service of ours answers so; a task must not end with an error of Python's about an index."""

    class Wrong:
        def fetch_bodies(self, *_: object) -> Iterator[bytes]:
            yield encode(FetchReply(1, [PartitionRows(7, 1, True, [])]))

    task = _TaskRead(
        Snapshot(parse_options({"store": "s", "key": "k"}, {}), (1, 1), "h"), ReadTask((0,)), cast(Any, Wrong())
    )
    with pytest.raises(ProtocolError, match="fetch reply of s/k names partition 7 of 2"):
        list(task.batches())


def test_a_large_partition_comes_in_chunks(store: Store) -> None:
    """A reply over the payload limit of the NATS server."""
    store.write_rows({f"r{number}": f"{number} " + "x" * 40_000 for number in range(600)}, at_once=50)
    found = store.load().selectExpr("count(*)", "sum(length(value))").first()
    assert found[0] == 600
    assert found[1] == sum(len(f"{number} ") + 40_000 for number in range(600))


def test_an_empty_key_that_was_written_once(store: Store) -> None:
    store.put("a", "1")
    store.delete("a")
    frame = store.load()
    assert frame.count() == 0
    assert frame.columns == ["row_id", "value", "version", "partition", "deleted", "metadata"]
    assert RingcastReader(take_snapshot(parse_options(store.options)), frame.schema).partitions() == [
        ReadTask((partition_of(store, "a"),))
    ]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"store": "nowhere"}, "nowhere"),
        ({"key": "nothing"}, "nothing"),
        ({"partitions": "16"}, "partition 16 is out of range: the store has partitions 0 to 15"),
        ({"color": "red"}, "option 'color' is unknown"),
        ({"servers": "nats://127.0.0.1:1", "timeout_s": "0.5"}, "NATS at nats://127.0.0.1:1 can't be reached"),
    ],
)
def test_bad_input(filled: Store, options: dict[str, str], sentence: str) -> None:
    words = {**filled.options, "user": "u", "password": "hunter2", **options}
    with pytest.raises(Exception, match=sentence) as caught:
        filled.spark.read.format("ringcast").options(**words).load()
    assert "hunter2" not in str(caught.value)


def test_a_missing_option(filled: Store) -> None:
    words = {name: text for name, text in filled.options.items() if name != "key"}
    with pytest.raises(Exception, match="option key is missing: say which config key of the store"):
        filled.spark.read.format("ringcast").options(**words).load()


def test_another_schema_is_refused(filled: Store) -> None:
    reading = filled.spark.read.format("ringcast").options(**filled.options).schema("row_id STRING, value INT")
    with pytest.raises(Exception, match="the schema of a ringcast read is fixed: row_id, value, version"):
        reading.load().count()
