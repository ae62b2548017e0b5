"""The change feed: what each change was, with the row before it, and when."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark_ringcast import register
from pyspark_ringcast._common.columns import FEED_SCHEMA
from pyspark_ringcast._common.offsets import ChangesLostError, Range
from pyspark_ringcast._common.options import parse_options
from pyspark_ringcast._stream.feed import feed_batch
from ringcast_wire import InvalidInputError
from ringcast_wire.grpc import pb

Store = Any  # of conftest.py
Stream = Any
FEED = {"readChangeFeed": "true"}


def told(rows: list[Row], row_id: str) -> list[tuple[str, str | None, bool]]:
    """The changes of a row, in their order: in a batch, rows of a partition come in the order of their versions."""
    return [(row.change_type, row.value, row.deleted) for row in rows if row.row_id == row_id]


def written_at(store: Store) -> dict[tuple[str, int], datetime]:
    """By row id and version, as the service has it."""
    pages = store.stub.History(pb.HistoryRequest(store=store.name, key=store.key))
    found = [one for page in pages for one in page.revisions]
    return {(one.row.row_id, one.row.version): datetime.fromtimestamp(one.written_at_ms / 1_000, UTC) for one in found}


def utc(row: Row) -> datetime:
    """What Spark has made a time of this machine's zone."""
    found: datetime = row.written_at
    return found.astimezone(UTC)


def put_later(store: Store, row_id: str, than: datetime) -> datetime:
    """Writes a row until the service has written it later than that; when it did."""
    while True:
        version = store.put(row_id, "1")
        found = written_at(store)[row_id, version]
        if found > than:
            return found


def test_each_change_comes_with_the_row_before_it(store: Store, stream: Stream) -> None:
    store.put("a", "1", by="desk")
    store.put("a", "")
    store.put("b", "1", by="desk")
    store.delete("b")
    store.put("b", "2")
    first = stream.catch_up(**FEED)
    assert first[0].__fields__ == FEED_SCHEMA.names
    a = [("insert", "1", False), ("update_preimage", "1", False), ("update_postimage", "", False)]
    assert told(first, "a") == a
    b = [("insert", "1", False), ("delete", "1", True), ("insert", "2", False)]
    assert told(first, "b") == b
    desk = {(row.row_id, row.change_type) for row in first if row.metadata == {"by": "desk"}}
    assert desk == {("a", "insert"), ("a", "update_preimage"), ("b", "insert"), ("b", "delete")}
    store.put("a", "3")
    store.delete("a")
    second = stream.catch_up(**FEED)
    assert told(second, "a") == [
        ("update_preimage", "", False),
        ("update_postimage", "3", False),
        ("delete", "3", True),
    ]
    stamps = written_at(store)
    rows = [*first, *second]
    assert [utc(row) for row in rows] == [stamps[row.row_id, row.version] for row in rows]
    assert {(row.row_id, row.version) for row in rows} == set(stamps)


def test_each_change_has_its_author_and_reason(store: Store, stream: Stream) -> None:
    store.frame({"a": "1"}).write.format("ringcast").options(**store.options, reason="by a job").mode("append").save()
    store.put("a", "2")
    store.stub.Delete(pb.DeleteRequest(store=store.name, key=store.key, row_id="a", reason="no more"))
    rows = stream.catch_up(**FEED)
    assert [(row.change_type, row.author, row.reason) for row in rows] == [
        ("insert", "host:127.0.0.1", "by a job"),
        ("update_preimage", "host:127.0.0.1", None),
        ("update_postimage", "host:127.0.0.1", None),
        ("delete", "host:127.0.0.1", "no more"),
    ]
    unknown = feed_batch(
        parse_options({"store": "s", "key": "k", **FEED}),
        Range(3, 8, 9, loading=True, head=9),
        [pb.Revision(row=pb.Row(row_id="a", value="2", version=9, partition=3), written_at_ms=1)],
    )
    assert unknown.column("author").to_pylist() == [None], "written before authors were kept"


def test_a_watermark_on_the_time_of_a_change_closes_windows(store: Store, stream: Stream) -> None:
    last = put_later(store, "a", datetime.fromtimestamp(0, UTC))
    tenths: set[int] = set()
    while len(tenths) < 5:  # however long a write takes
        last = put_later(store, "b", last)
        tenths.add(int(last.timestamp() * 10))
    stamps = sorted(written_at(store).values())
    closed: list[Row] = []

    def keep(frame: DataFrame, _: int) -> None:
        closed.extend(frame.collect())

    windows = stream.frame(**FEED).filter("change_type <> 'update_preimage'").withWatermark("written_at", "0 seconds")
    counts = windows.groupBy(sql.window("written_at", "100 milliseconds")).count()
    writer = counts.writeStream.foreachBatch(keep).option("checkpointLocation", str(stream.checkpoint))
    query = writer.outputMode("append").trigger(availableNow=True).start()
    query.awaitTermination()
    assert closed
    assert sum(row["count"] for row in closed) == sum(
        stamp < max(row.window.end.astimezone(UTC) for row in closed) for stamp in stamps
    )
    assert all(row.window.end.astimezone(UTC) <= stamps[-1] for row in closed), "a window was closed too early"
    assert len(closed) >= 4


@pytest.mark.parametrize("more", [FEED, {}], ids=["feed", "latest"])
def test_a_stream_begins_with_the_changes_of_a_time(store: Store, stream: Stream, more: dict[str, str]) -> None:
    store.write_rows({f"row-{number}": "1" for number in range(200)})
    last = put_later(store, "before", max(written_at(store).values()))
    begin = put_later(store, "row-1", last)
    store.put("row-2", "2")
    store.delete("row-3")
    rows = stream.catch_up(startingTimestamp=begin.isoformat(), **more)
    wanted = {(row_id, version) for (row_id, version), stamp in written_at(store).items() if stamp >= begin}
    assert {(row.row_id, row.version) for row in rows} == wanted
    assert {row_id for row_id, _ in wanted} == {"row-1", "row-2", "row-3"}


def test_what_was_replaced_and_is_gone() -> None:
    options = {"store": "s", "key": "k", **FEED}
    row = pb.Row(row_id="a", value="2", version=9, partition=3)
    lost = pb.Revision(row=row, written_at_ms=1, prev=4)
    wanted = Range(3, 8, 9, loading=False, head=9)
    with pytest.raises(ChangesLostError, match="what revision 9 of partition 3 of s/k replaced is gone"):
        feed_batch(parse_options(options), wanted, [lost])
    skipping = parse_options({**options, "failOnDataLoss": "false"})
    assert feed_batch(skipping, wanted, [lost]).column("change_type").to_pylist() == ["update_postimage"]
    gone = pb.Revision(row=pb.Row(row_id="a", version=9, partition=3, deleted=True), written_at_ms=1, prev=4)
    (found,) = feed_batch(skipping, wanted, [gone]).to_pylist()
    assert (found["change_type"], found["value"], found["deleted"]) == ("delete", None, True)
    loading = wanted._replace(after=0, loading=True)
    assert feed_batch(parse_options(options), loading, [lost]).column("change_type").to_pylist() == ["insert"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"failOnDataLoss": "true", "onGap": "skip"},
            "option fail_on_data_loss is true, which contradicts on_gap, 'skip'",
        ),
        ({"failOnDataLoss": "no"}, "option fail_on_data_loss is 'no': true or false is allowed"),
        (
            {"changes": "latest", **FEED},
            r"changes is 'latest': a change feed [(]read_change_feed[)] gives every change",
        ),
        ({"startingTimestamp": "2026-01-01", "startingOffsets": "latest"}, "and starting_offsets too: one of them is"),
        ({"startingTimestamp": "yesterday"}, "option starting_timestamp is 'yesterday': a date or time such as"),
        ({"startingTimestamp": "2999-01-01"}, "which is still to come"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        parse_options({"store": "s", "key": "k", **options})


def test_words_for_the_same() -> None:
    options = {"store": "s", "key": "k"}
    assert parse_options({**options, "failOnDataLoss": "FALSE"}) == parse_options({**options, "onGap": "skip"})
    assert parse_options({**options, "failOnDataLoss": "true", "onGap": "fail"}) == parse_options(options)
    stamps = ("2026-01-02", "2026-01-02T00:00:00Z", "2026-01-02 01:00:00+01:00")
    assert {parse_options({**options, "startingTimestamp": text}).starting_timestamp for text in stamps} == {
        1_767_312_000_000
    }


@pytest.mark.parametrize(
    "option",
    [
        "changes=every",
        "startingOffsets=latest",
        "startingTimestamp=2026-01-01",
        "readChangeFeed=true",
        "maxRowsPerTrigger=10",
        "onGap=skip",
        "fail_on_data_loss=false",
    ],
)
def test_options_of_streams_are_none_of_a_batch_read(store: Store, option: str) -> None:
    """A read that left them out without a word would give other rows than were asked for."""
    store.put("a", "1")
    name, _, text = option.partition("=")
    with pytest.raises(PySparkException, match=r"option [a-z_]+ goes with streams, not with a batch read"):
        store.load(**{name: text}).collect()


def test_defaults_for_streams_do_not_refuse_batch_reads(spark: SparkSession, store: Store) -> None:
    own = spark.newSession()
    own.conf.set("spark.ringcast.maxRowsPerTrigger", "10")
    register(own)
    store.put("a", "1")
    assert own.read.format("ringcast").options(**store.options).load().count() == 1
    own.conf.set("spark.ringcast.readChangeFeed", "true")
    register(own)
    with pytest.raises(PySparkException, match="option read_change_feed goes with streams, not with a batch read"):
        own.read.format("ringcast").options(**store.options).load().count()
