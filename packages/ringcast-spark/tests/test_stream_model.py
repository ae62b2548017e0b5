"""The reader of a stream against a model, driven as Spark drives it, with writes between any two of its steps.

What comes must be each row as of the end of its batch, or (``every``) each revision, whatever is written meanwhile; the
same batch read again is the same; and a list kept by what came is the list.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark_ringcast._common.columns import SCHEMA
from pyspark_ringcast._common.offsets import ChangesLostError
from pyspark_ringcast._stream.source import RingcastStreamReader, StreamTask
from ringcast_core import row_partition
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import RingcastError, UnavailableError
from ringcast_wire.grpc import ConfigServiceStub, pb

PARTITIONS = 4
Record = dict[str, Any]


@dataclass
class Model:
    """A list beside the service, with everything that was ever written to it."""

    stub: ConfigServiceStub
    options: dict[str, str]
    revisions: list[Record] = field(default_factory=list)
    heads: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    def write(self, row_id: str, value: str | None) -> None:
        """A value, or a delete."""
        place: dict[str, Any] = {"store": self.options["store"], "key": self.options["key"], "row_id": row_id}
        if value is None:
            answer = self.stub.Delete(pb.DeleteRequest(**place))
            if not answer.existed:
                return
        else:
            answer = self.stub.Put(pb.PutRequest(**place, value=value))
        partition = row_partition(row_id, PARTITIONS)
        self.heads[partition] += 1
        assert (answer.partition, answer.version) == (partition, self.heads[partition])
        self.revisions.append(
            {
                "row_id": row_id,
                "value": value,
                "version": answer.version,
                "partition": partition,
                "deleted": value is None,
                "metadata": None,
            }
        )

    def between(self, partition: int, after: int, upto: int) -> list[Record]:
        """The revisions of a partition, in order."""
        return [one for one in self.revisions if one["partition"] == partition and after < one["version"] <= upto]

    def live(self) -> dict[str, str]:
        """The list as it is."""
        newest = {one["row_id"]: one["value"] for one in self.revisions}
        return {row_id: value for row_id, value in newest.items() if value is not None}

    def reader(self, **options: str) -> RingcastStreamReader:
        return RingcastStreamReader({**self.options, **options}, from_arrow_schema(SCHEMA))


@pytest.fixture(scope="module")
def short_memory(service_nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigServiceProcess]:
    """A config service that forgets deletes and revisions after a second; it listens to a NATS of its own."""
    directory = tmp_path_factory.mktemp("short")
    forgets = ("--tombstone-retention", "1s", "--history-retention", "1s", "--compaction-interval", "50ms")
    with NatsServer(directory / "nats") as nats:
        database = f"sqlite:{directory / 'ringcast.db'}"
        with ConfigServiceProcess(directory, nats_url=nats.url, database=database, options=forgets) as process:
            process.nats_url = nats.url  # type: ignore[attr-defined]
            yield process


def _model(address: str, nats_url: str, store_name: str) -> Iterator[Model]:
    with grpc.insecure_channel(address) as channel:
        stub = ConfigServiceStub(channel)
        stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=PARTITIONS))
        options = {"servers": nats_url, "service": address, "store": store_name, "key": "list", "timeout_s": "10"}
        yield Model(stub, options)


@pytest.fixture
def model(service: ConfigServiceProcess, service_nats: NatsServer, store_name: str) -> Iterator[Model]:
    yield from _model(service.address, service_nats.url, store_name)


@pytest.fixture
def forgetful(short_memory: Any, store_name: str) -> Iterator[Model]:
    yield from _model(short_memory.address, short_memory.nats_url, store_name)


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    """An offset as it comes back from the checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def read(reader: RingcastStreamReader, tasks: Sequence[Any]) -> list[Record]:
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def by_place(rows: Sequence[Record]) -> list[Record]:
    return sorted(rows, key=lambda row: (row["partition"], row["version"]))


def in_order(rows: Sequence[Record]) -> bool:
    places = [(row["partition"], row["version"]) for row in rows]
    return places == sorted(set(places))


def expected(model: Model, task: StreamTask, changes: str) -> list[Record]:
    """What a batch must give of ranges that follow the changes."""
    found = []
    for one in task.ranges:
        written = model.between(one.partition, one.after, one.upto)
        found += written if changes == "every" else list({row["row_id"]: row for row in written}.values())
    return by_place(found)


@pytest.mark.parametrize("changes", ["latest", "every"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_written_meanwhile(model: Model, changes: str, seed: int) -> None:
    chance = random.Random(seed)  # the seed is in the name of the test
    options = {"changes": changes} | ({"maxRowsPerTrigger": str(chance.randint(2, 30))} if seed % 2 else {})
    limit = int(options.get("maxRowsPerTrigger", 0)) or None
    kept: dict[str, tuple[int, str | None]] = {}

    def write_some() -> None:
        for _ in range(chance.randint(0, 12)):
            row_id = f"row-{chance.randint(0, 1) if chance.random() < 0.5 else chance.randint(0, 30)}"
            model.write(row_id, None if chance.random() < 0.3 else f"{chance.random()}")

    model.write("row-0", "first")
    write_some()
    reader = model.reader(**options)
    offset = stored(reader.initialOffset())
    batches = 0
    for step in range(400):
        if step < 25:
            write_some()
        if chance.random() < 0.2:
            reader = model.reader(**options)  # a restart
        end = stored(reader.latestOffset(offset, reader.getDefaultReadLimit()))
        if end == offset:
            if step >= 25:
                break
            continue
        for _ in range(chance.choice((1, 1, 2))):
            if step < 25:
                write_some()
            tasks = reader.partitions(offset, end)
            rows = read(reader, tasks)
            assert limit is None or len(rows) <= limit
            spans = {one.partition: one for task in tasks for one in task.ranges}
            assert all(spans[row["partition"]].after < row["version"] <= spans[row["partition"]].upto for row in rows)
            for task in tasks:
                follows = StreamTask(tuple(one for one in task.ranges if not one.loading))
                there = {one.partition for one in follows.ranges}
                came = [row for row in rows if row["partition"] in there]
                wanted = expected(model, follows, changes)
                assert by_place(came) == wanted
                assert changes == "latest" or in_order(by_place(came))
        batches += 1
        for row in rows:
            assert row["version"] >= kept.get(row["row_id"], (0, None))[0]
            kept[row["row_id"]] = (row["version"], row["value"])
        offset = end
    assert batches > 5
    assert reader.reportLatestOffset() == offset
    assert {row_id: value for row_id, (_, value) in kept.items() if value is not None} == model.live()


def test_a_database_that_was_restored(store_name: str, tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as nats:
        path = tmp_path / "ringcast.db"
        with ConfigServiceProcess(tmp_path, nats_url=nats.url, database=f"sqlite:{path}") as service:
            for model in _model(service.address, nats.url, store_name):
                model.write("kept", "1")
                with sqlite3.connect(path) as live, sqlite3.connect(tmp_path / "backup.db") as backup:
                    live.backup(backup)
                lost = [f"lost-{number}" for number in range(20)]
                for row_id in lost:
                    model.write(row_id, "1")
                reader = model.reader()
                offset = stored(reader.latestOffset(stored(reader.initialOffset()), ReadAllAvailable()))
                service.kill()
                for name in tmp_path.glob("ringcast.db*"):
                    name.unlink()
                (tmp_path / "backup.db").rename(path)
                service.start()
                with pytest.raises(ChangesLostError, match="its database was restored from a backup"):
                    reader.latestOffset(offset, ReadAllAvailable())
                skipping = model.reader(onGap="skip")
                end = stored(skipping.latestOffset(offset, ReadAllAvailable()))
                assert [row["row_id"] for row in read(skipping, skipping.partitions(offset, end))] == ["kept"]
                assert stored(skipping.latestOffset(end, ReadAllAvailable())) == end


def test_a_row_that_never_rests_comes_in_every_batch(model: Model) -> None:
    reader = model.reader()
    model.write("hot", "0")
    model.write("cold", "0")
    offset = stored(reader.initialOffset())
    came = []
    for number in range(1, 20):
        end = stored(reader.latestOffset(offset, ReadAllAvailable()))
        model.write("hot", f"{number}")  # between plan and read, each time
        came += [row["value"] for row in read(reader, reader.partitions(offset, end)) if row["row_id"] == "hot"]
        offset = end
    # Loading a partition gives its rows as they are: the first value had gone by then, and came with the next batch.
    assert came == [f"{number}" for number in range(1, 19)]


def wait_forgotten(model: Model) -> None:
    """Returns once the service has no revision left of what was written but the last of each live row."""
    store, key = model.options["store"], model.options["key"]
    listed = model.stub.List(pb.ListRequest(store=store, key=key))
    live = {(row.row_id, row.version) for page in listed for row in page.rows}
    left = None
    while left is None or not left <= live:
        pages = model.stub.History(pb.HistoryRequest(store=store, key=key))
        left = {(one.row.row_id, one.row.version) for page in pages for one in page.revisions}


def behind(model: Model, **options: str) -> tuple[RingcastStreamReader, dict[str, Any]]:
    """A stream that has read ten rows, and then missed a change, a delete and their being forgotten."""
    for number in range(10):
        model.write(f"row-{number}", "old")
    reader = model.reader(**options)
    start = stored(reader.initialOffset())
    offset = stored(reader.latestOffset(start, ReadAllAvailable()))
    assert len(read(reader, reader.partitions(start, offset))) == 10
    model.write("row-1", None)
    model.write("row-2", "new")
    wait_forgotten(model)
    return reader, offset


@pytest.mark.parametrize("changes", ["latest", "every"])
def test_changes_that_are_gone_are_an_error(forgetful: Model, changes: str) -> None:
    reader, offset = behind(forgetful, changes=changes)
    tasks = reader.partitions(offset, reader.latestOffset(offset, ReadAllAvailable()))
    with pytest.raises(ChangesLostError, match=r"partition \d of .*/list .*onGap=skip"):
        read(reader, tasks)


def test_with_skip_what_is_there_goes_on(forgetful: Model, caplog: pytest.LogCaptureFixture) -> None:
    reader, offset = behind(forgetful, onGap="skip")
    end = stored(reader.latestOffset(offset, ReadAllAvailable()))
    rows = {row["row_id"]: row["value"] for row in read(reader, reader.partitions(offset, end))}
    assert rows["row-2"] == "new"
    assert "row-1" not in rows
    assert "deletes in partition" in caplog.text


def test_with_skip_the_revisions_that_are_there_come(forgetful: Model) -> None:
    """The last one of each live row is."""
    reader, offset = behind(forgetful, onGap="skip", changes="every")
    end = stored(reader.latestOffset(offset, ReadAllAvailable()))
    assert [(row["row_id"], row["value"]) for row in read(reader, reader.partitions(offset, end))] == [("row-2", "new")]


def test_a_list_whose_past_is_forgotten_is_loaded_in_pieces(forgetful: Model) -> None:
    for number in range(60):
        forgetful.write(f"row-{number}", "x")
    for number in range(0, 60, 2):
        forgetful.write(f"row-{number}", None)
    wait_forgotten(forgetful)
    reader = forgetful.reader(maxRowsPerTrigger="7")
    offset, came = stored(reader.initialOffset()), []
    while (end := stored(reader.latestOffset(offset, ReadMaxRows(7)))) != offset:
        rows = read(reader, reader.partitions(offset, end))
        assert len(rows) <= 7
        came += rows
        offset = end
    assert sorted(row["row_id"] for row in came) == sorted(f"row-{number}" for number in range(1, 60, 2))


def test_a_delete_whose_tombstone_is_gone_comes_from_the_revisions(model: Model, tmp_path: Path) -> None:
    forgets = ("--tombstone-retention", "1s", "--compaction-interval", "50ms")
    with NatsServer(tmp_path / "nats") as nats:
        database = f"sqlite:{tmp_path / 'ringcast.db'}"
        with (
            ConfigServiceProcess(tmp_path, nats_url=nats.url, database=database, options=forgets) as service,
            grpc.insecure_channel(service.address) as channel,
        ):
            stub = ConfigServiceStub(channel)
            stub.CreateStore(pb.CreateStoreRequest(name="s", partition_count=PARTITIONS))
            mine = Model(stub, model.options | {"servers": nats.url, "service": service.address, "store": "s"})
            mine.write("a", "1")
            reader = mine.reader()
            start = stored(reader.initialOffset())
            offset = stored(reader.latestOffset(start, ReadAllAvailable()))
            mine.write("a", None)
            listing = pb.ListRequest(store="s", key="list", include_deleted=True)
            while any(page.rows for page in stub.List(listing)):
                pass
            tasks = reader.partitions(offset, reader.latestOffset(offset, ReadAllAvailable()))
            (row,) = read(reader, tasks)
            assert (row["row_id"], row["deleted"], row["version"]) == ("a", True, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "yesterday"}, "option starting_offsets is 'yesterday': earliest, latest or JSON"),
        ({"startingOffsets": '{"3": 99}'}, "revision 99 for partition 3, which is at revision"),
        ({"maxRowsPerTrigger": "0"}, "option max_rows_per_trigger is '0': a whole number from 1"),
        ({"changes": "some"}, "option changes is 'some': latest or every is allowed"),
        ({"onGap": "shrug"}, "option on_gap is 'shrug': fail or skip is allowed"),
        ({"since": '{"0": 3}'}, "option since goes with batch reads, not with a stream"),
        ({"onChange": "latest"}, "option on_change goes with batch reads, not with a stream"),
        ({"partitions": "4"}, "partition 4"),
        ({"key": "never-written"}, "has no config key 'never-written'"),
    ],
)
def test_wrong_options_are_an_error_before_anything_is_read(
    model: Model, options: dict[str, str], message: str
) -> None:
    model.write("row", "x")
    with pytest.raises(RingcastError, match=message):
        model.reader(**options).initialOffset()


def test_a_stream_without_its_service_says_so_at_once(model: Model) -> None:
    model.write("row", "x")
    secret = {"user": "u", "password": "s3cret"}
    reader = model.reader(service="127.0.0.1:1", timeout_s="0.3", **secret)
    with pytest.raises(UnavailableError, match="did not answer") as caught:
        reader.initialOffset()
    assert "s3cret" not in str(caught.value)
