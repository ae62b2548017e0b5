"""One Spark session for all tests, a NATS server and config service a file; each test has a store of its own."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, ClassArchive, ConfigServiceProcess, NatsServer, frugal_jvm
from ringcast_wire.grpc import ConfigServiceStub, pb

PARTITIONS = 16
MOST_S = 1_000
"""Of a test, for what hangs. A time-out within a call of py4j leaves its connection one answer behind, so that all
later tests of the process fail: it must come to none that is only slow. Beside much else one has needed over 240 s."""

T = TypeVar("T")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives the tests beside this file their limit."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(MOST_S))


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark writes down what the session does."""
    return tmp_path_factory.mktemp("spark-events")


@pytest.fixture(scope="session")
def spark(event_log: Path, spark_home: Path, spark_python: Path) -> Iterator[SparkSession]:
    """Two cores, and each failed task is tried four times, as on a cluster."""
    os.environ["PYSPARK_PYTHON"] = str(spark_python)
    os.environ["SPARK_HOME"] = str(spark_home)
    paths = os.pathsep.join(path for path in sys.path if path)
    classes = ClassArchive(spark_home)
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("ringcast-spark-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "768m")
        .config("spark.driver.extraJavaOptions", f"{frugal_jvm(spark_home)} {classes.options}")
        # Of few rows, making and compiling a program for each query takes more than the query does.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.executorEnv.PYTHONPATH", paths)
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", event_log.as_uri())
        .config("spark.sql.warehouse.dir", event_log.with_name("spark-warehouse").as_uri())
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    classes.keep(session)
    yield session
    session.stop()


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Rows go from one step to the next a hundred at a time, so that a step can be in the middle."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.fixture
def logged(spark: SparkSession) -> Iterator[Callable[[str], list[dict[str, str]]]]:
    """The fields of the lines of an event about a store that came since: what Spark keeps of its Python processes."""
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")

    def lines(event: str) -> list[dict[str, str]]:
        found = spark.tvf.python_worker_logs().filter(sql.col("msg").startswith(f"event={event} ")).collect()
        return [dict(re.findall(r"(\w+)=(\S+)", row.msg)) for row in found]

    yield lines
    spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")


@pytest.fixture(scope="module")
def service(service_nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfigServiceProcess]:
    """A config service beside it; no test may stop it either. One a file: it takes 50 stores, and each test has one."""
    directory = tmp_path_factory.mktemp("service")
    database = f"sqlite:{directory / 'ringcast.db'}"
    with ConfigServiceProcess(directory, nats_url=service_nats.url, database=database) as process:
        yield process


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Pieces of at most so many."""
    left = iter(items)
    while piece := list(islice(left, size)):
        yield piece


@dataclass
class Store:
    """A store of a test's own."""

    name: str
    nats_url: str
    address: str
    spark: SparkSession
    stub: ConfigServiceStub
    key: str = "list"
    partition_count: int = PARTITIONS
    more: dict[str, str] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        """Everything that a read or write needs."""
        return {
            "servers": self.nats_url,
            "service": self.address,
            "store": self.name,
            "key": self.key,
            "timeout_s": "10",
            **self.more,
        }

    def put(self, row_id: str, value: str, **metadata: str) -> int:
        """Writes a row beside Spark; returns its version."""
        request = pb.PutRequest(store=self.name, key=self.key, row_id=row_id, value=value, metadata=metadata)
        return int(self.stub.Put(request).version)

    def delete(self, row_id: str) -> None:
        """Deletes a row beside Spark."""
        self.stub.Delete(pb.DeleteRequest(store=self.name, key=self.key, row_id=row_id))

    def write_rows(self, rows: Mapping[str, str], *, at_once: int = 500) -> None:
        """Writes rows beside Spark."""
        for some in batched(rows.items(), at_once):
            batch = [pb.RowWrite(row_id=row_id, value=value) for row_id, value in some]
            list(self.stub.Write(iter([pb.WriteBatch(store=self.name, key=self.key, rows=batch)])))

    def heads(self) -> list[int]:
        """The revisions as the service has them."""
        return list(self.stub.Heads(pb.HeadsRequest(store=self.name, key=self.key)).heads)

    def rows(self) -> dict[str, str]:
        """Every live row as the service has it."""
        pages = self.stub.List(pb.ListRequest(store=self.name, key=self.key))
        return {row.row_id: row.value for page in pages for row in page.rows}

    def metadata(self, row_id: str) -> dict[str, str]:
        """What a live row has beside its value."""
        (row,) = self.stub.Get(pb.GetRequest(store=self.name, key=self.key, row_ids=[row_id])).rows
        return dict(row.metadata)

    def history(self, *, after_ms: int = 0) -> list[pb.Row]:
        """Every write, in the order of their time."""
        return [revision.row for revision in self.revisions() if revision.written_at_ms > after_ms]

    def revisions(self) -> list[pb.Revision]:
        """The same with their times."""
        pages = self.stub.History(pb.HistoryRequest(store=self.name, key=self.key))
        found = [revision for page in pages for revision in page.revisions]
        return sorted(found, key=lambda revision: revision.written_at_ms)

    def frame(
        self, rows: Mapping[str, str] | list[tuple[Any, ...]], schema: str = "row_id STRING, value STRING"
    ) -> DataFrame:
        """A DataFrame to write."""
        data = list(rows.items()) if isinstance(rows, Mapping) else rows
        return self.spark.createDataFrame(data, schema)

    def load(self, **options: str) -> DataFrame:
        """A DataFrame that reads the store."""
        return self.spark.read.format("ringcast").options(**{**self.options, **options}).load()

    def save(self, frame: DataFrame, mode: str = "append", **options: str) -> None:
        """Writes a DataFrame."""
        frame.write.format("ringcast").mode(mode).options(**{**self.options, **options}).save()


@pytest.fixture
def store(
    spark: SparkSession, service_nats: NatsServer, service: ConfigServiceProcess, store_name: str
) -> Iterator[Store]:
    """A store that no other test uses."""
    with service.channel() as channel:
        stub = ConfigServiceStub(channel)
        stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=PARTITIONS))
        yield Store(store_name, service_nats.url, service.address, spark, stub)


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[ConfigServiceProcess]:
    """A config service that the test may kill, with a NATS server of its own."""
    with NatsServer(tmp_path / "nats") as nats:
        database = f"sqlite:{tmp_path / 'ringcast.db'}"
        with ConfigServiceProcess(tmp_path / "service", nats_url=nats.url, database=database) as process:
            process.nats_url = nats.url  # type: ignore[attr-defined]
            yield process


@pytest.fixture
def own_store(spark: SparkSession, own_service: Any, store_name: str) -> Iterator[Store]:
    """A store at that service."""
    with own_service.channel() as channel:
        stub = ConfigServiceStub(channel)
        stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=PARTITIONS))
        more = {"timeout_s": "60"}
        yield Store(store_name, own_service.nats_url, own_service.address, spark, stub, more=more)


@dataclass
class CompactingStore(Store):
    """A store of a service that forgets deletes, or revisions, after seconds."""

    def wait_for_compaction(self) -> None:
        """Until no tombstone is left."""
        request = pb.ListRequest(store=self.name, key=self.key, include_deleted=True)
        deadline = time.monotonic() + PATIENCE_S
        while any(row.deleted for page in self.stub.List(request) for row in page.rows):
            assert time.monotonic() < deadline, "the service compacts nothing"
            time.sleep(0.1)

    def wait_for_history(self) -> None:
        """Until of each row only the newest revision is left."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.history()) > len(self.rows()):
            assert time.monotonic() < deadline, "the service compacts nothing"
            time.sleep(0.1)


@pytest.fixture
def forgetful_store(spark: SparkSession, store_name: str, tmp_path: Path) -> Iterator[CompactingStore]:
    """With a service of its own, which forgets revisions."""
    with _compacting(spark, store_name, tmp_path, "--history-retention", "1s", "--tombstone-retention", "1s") as store:
        yield store


@pytest.fixture
def compacted_store(spark: SparkSession, store_name: str, tmp_path: Path) -> Iterator[CompactingStore]:
    """100 rows, after the service has forgotten the deletes of others in the lower half of the partitions.

    Then it runs without the short retention, so that what a test deletes is kept.
    """
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    quickly = ("--tombstone-retention", "1s", "--compaction-interval", "1s")
    names = [f"row-{number}" for number in range(100)]
    more = [f"gone-{number}" for number in range(100) if row_partition(f"gone-{number}", PARTITIONS) < PARTITIONS // 2]
    with NatsServer(tmp_path / "nats") as nats:

        def open_store(process: ConfigServiceProcess, channel: grpc.Channel) -> CompactingStore:
            return CompactingStore(store_name, nats.url, process.address, spark, ConfigServiceStub(channel))

        with (
            ConfigServiceProcess(tmp_path, nats_url=nats.url, database=database, options=quickly) as process,
            process.channel() as channel,
        ):
            store = open_store(process, channel)
            store.stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=PARTITIONS))
            store.write_rows(dict.fromkeys([*more, *names], "1"))
            for row_id in more:
                store.delete(row_id)
            store.wait_for_compaction()
        with (
            ConfigServiceProcess(tmp_path, nats_url=nats.url, database=database) as process,
            process.channel() as channel,
        ):
            yield open_store(process, channel)


@contextmanager
def _compacting(spark: SparkSession, store_name: str, tmp_path: Path, *words: str) -> Iterator[CompactingStore]:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    quickly = (*words, "--compaction-interval", "1s")
    with (
        NatsServer(tmp_path / "nats") as nats,
        ConfigServiceProcess(tmp_path, nats_url=nats.url, database=database, options=quickly) as process,
        process.channel() as channel,
    ):
        stub = ConfigServiceStub(channel)
        stub.CreateStore(pb.CreateStoreRequest(name=store_name, partition_count=PARTITIONS))
        yield CompactingStore(store_name, nats.url, process.address, spark, stub)


@dataclass
class Stream:
    """A stream of a store's changes with a checkpoint of its own; ``batches`` has what came, by batch id."""

    store: Store
    checkpoint: Path
    batches: dict[int, list[Row]] = field(default_factory=dict)

    def frame(self, **options: str) -> DataFrame:
        """The stream as a DataFrame."""
        return self.store.spark.readStream.format("ringcast").options(**{**self.store.options, **options}).load()

    def start(self, *, available_now: bool = False, **options: str) -> StreamingQuery:
        """Begins, or goes on from the checkpoint."""
        writer = self.frame(**options).writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer
        return writer.start()

    def catch_up(self, **options: str) -> list[Row]:
        """Reads what is there, stops, and returns the rows that came."""
        seen = set(self.batches)
        query = self.start(available_now=True, **options)
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [row for number in sorted(set(self.batches) - seen) for row in self.batches[number]]

    def _keep(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = frame.collect()


@pytest.fixture
def stream(store: Store, tmp_path: Path) -> Stream:
    """A stream of the test's store, not begun."""
    return Stream(store, tmp_path / "checkpoint")
