"""A DataFrame into PostgreSQL and back, from the start of each Spark job to its end: service, history, events and all.

The peers of a load are plain COPYs of the same rows into a table with the same columns and indexes, in the same run,
before each load: one in the order of the DataFrame, one in the order of the table's primary key, in which ``prepare``
sends rows. They keep no history and tell nobody. The peer of a read is a COPY out of the service's own table.

How long it takes to stage a DataFrame as a release, beside a load of the same.

And what a load does to others: the 95th percentile of single puts of another client, due 50 times a second, while
nothing else happens, beside a load, and beside a load with a throttle, one after the other in the same run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import asyncpg
import grpc
import pytest
from pyspark.sql import SparkSession
from pyspark_ringcast import prepare
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_core import row_partitions
from ringcast_testkit import ConfigServiceProcess, NatsServer, frugal_jvm
from ringcast_wire.grpc import ConfigServiceStub, pb

from benchmarks.cpu import cpu_seconds, us_per_row

PARTITIONS: Final = 256
MEASURED_ROWS: Final = 1_000_000
ROUNDS: Final = 3
THROTTLED_ROWS_PER_S: Final = 1_000
STAGED_ROWS: Final = 100_000
STAGED_ROUNDS: Final = 5
STAGED_RATIO: Final = 2.0
"""Staging a DataFrame is to take at most so many times as long as writing it."""


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """As users have it where something is measured, and one that takes little where all is only tried."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    more: dict[str, Any] = {}
    if request.config.getoption("benchmark_disable"):
        home: Path = request.getfixturevalue("spark_home")
        os.environ["SPARK_HOME"] = str(home)
        os.environ["PYSPARK_PYTHON"] = str(request.getfixturevalue("spark_python"))
        java = frugal_jvm(home)
        more = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.executorEnv.PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        .config(map=more)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def service(tmp_path: Path, nats_server: NatsServer, postgres_url: str) -> Iterator[ConfigServiceProcess]:
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=postgres_url) as process:
        yield process


async def copy(url: str, count: int, *, ordered: bool) -> float:
    """Seconds for a COPY into a table like the service's own."""
    row_ids = [f"user{number}@example{number % 997}.com" for number in range(count)]
    places = list(zip(row_partitions(row_ids, PARTITIONS), row_ids, strict=True))
    if ordered:
        places.sort()
    records = [
        (1, home, row_id, "blocked", version, False, None, len(row_id) + 7, 1)
        for version, (home, row_id) in enumerate(places, 1)
    ]
    db: Any = await asyncpg.connect(url)
    await db.execute("CREATE TABLE peer (LIKE rows INCLUDING ALL)")
    assert len(await db.fetch("SELECT 1 FROM pg_indexes WHERE tablename = 'peer'")) == 3
    start = time.perf_counter()
    await db.copy_records_to_table("peer", records=records)
    spent = time.perf_counter() - start
    await db.execute("DROP TABLE peer")
    await db.close()
    return spent


async def copy_out(url: str, count: int) -> float:
    """Seconds for a COPY out of the service's table, of the columns that a read has, as text."""
    sizes: list[int] = []

    async def take(chunk: bytes) -> None:
        sizes.append(len(chunk))

    query = """
        SELECT row_id, value, version, partition, deleted, metadata FROM rows
        WHERE key_id = (SELECT key_id FROM config_keys WHERE name = 'list1')
    """
    db: Any = await asyncpg.connect(url)
    start = time.perf_counter()
    status = await db.copy_from_query(query, output=take)
    spent = time.perf_counter() - start
    await db.close()
    assert status == f"COPY {count}"
    assert sum(sizes) > count
    return spent


def share(peers: list[float], ours: list[float]) -> float:
    """Our speed as a share of the peer's: the median of the rounds."""
    return round(statistics.median(peer_s / spent for peer_s, spent in zip(peers, ours, strict=True)), 2)


@pytest.mark.timeout(1_800)  # seconds: on a busy machine a million rows take minutes, three times over
def test_a_data_frame_into_postgresql_and_back(
    benchmark: BenchmarkFixture,
    spark: SparkSession,
    service: ConfigServiceProcess,
    nats_server: NatsServer,
    postgres_url: str,
) -> None:
    enabled = bool(benchmark.enabled)
    count = MEASURED_ROWS if enabled else 2_000
    with grpc.insecure_channel(service.address) as channel:
        stub = ConfigServiceStub(channel)
        stub.CreateStore(pb.CreateStoreRequest(name="bench", partition_count=PARTITIONS))
        frame = spark.range(count).selectExpr(
            "concat('user', id, '@example', id % 997, '.com') AS row_id", "'blocked' AS value"
        )

        def load(key: str, rows: int) -> None:
            options = {"service": service.address, "store": "bench", "key": key}
            prepared = prepare(frame.limit(rows) if rows < count else frame, PARTITIONS, tasks=2)
            prepared.write.format("ringcast").mode("append").options(**options).save()

        load("warm", 1_000)  # Python workers and the JVM's compiler
        loads: list[float] = []
        peers: list[float] = []
        ordered_peers: list[float] = []
        reads: list[float] = []
        read_peers: list[float] = []

        server = int((Path(postgres_url.partition("?host=")[2]) / "postmaster.pid").read_text().split()[0])
        cpu: dict[str, dict[str, float]] = {}

        def once(key: str) -> None:
            start, before = time.perf_counter(), cpu_seconds(server)
            load(key, count)
            loads.append(time.perf_counter() - start)
            cpu["load"] = us_per_row(before, cpu_seconds(server), count)

        def beside() -> tuple[tuple[str], dict[str, str]]:
            peers.append(asyncio.run(copy(postgres_url, count, ordered=False)))
            before = cpu_seconds(server)
            ordered_peers.append(asyncio.run(copy(postgres_url, count, ordered=True)))
            cpu["ordered peer"] = us_per_row(before, cpu_seconds(server), count)
            return (f"list{len(peers)}",), {}

        benchmark.group = "spark load"
        benchmark.pedantic(once, setup=beside, rounds=ROUNDS if enabled else 1)
        for number in range(1, len(peers) + 1):
            assert sum(stub.Heads(pb.HeadsRequest(store="bench", key=f"list{number}")).heads) == count
        options = {"service": service.address, "servers": nats_server.url, "store": "bench", "key": "list1"}
        stored = spark.read.format("ringcast").options(**options).load()
        assert stored.count() == count
        for _ in peers:
            read_peers.append(asyncio.run(copy_out(postgres_url, count)))
            start = time.perf_counter()
            stored.write.format("noop").mode("overwrite").save()
            reads.append(time.perf_counter() - start)
    benchmark.extra_info.update(
        rows=count,
        rows_per_s=round(count / min(loads)),
        peer_rows_per_s=round(count / min(peers)),
        share_median=share(peers, loads),
        ordered_peer_rows_per_s=round(count / min(ordered_peers)),
        ordered_share_median=share(ordered_peers, loads),
        cpu_us_per_row=cpu,
        read_rows_per_s=round(count / min(reads)),
        read_peer_rows_per_s=round(count / min(read_peers)),
        read_share_median=share(read_peers, reads),
        load_average=round(os.getloadavg()[0], 1),
    )


@pytest.mark.timeout(1_800)  # seconds
def test_a_release_beside_a_load(
    benchmark: BenchmarkFixture, spark: SparkSession, service: ConfigServiceProcess
) -> None:
    """The same DataFrame staged as a release and written, each into a key that is not there yet, alternately."""
    count, rounds = (STAGED_ROWS, STAGED_ROUNDS) if benchmark.enabled else (1_500, 1)
    taken: dict[str, list[float]] = {"load": [], "stage": []}
    frame = spark.range(count, numPartitions=2).selectExpr("concat('user', id) AS row_id", "'blocked' AS value")

    def save(key: str, rows: int, **more: str) -> float:
        options = {"service": service.address, "store": "bench", "key": key, **more}
        some = frame if rows == count else frame.limit(rows)
        start = time.perf_counter()
        some.write.format("ringcast").mode("append").options(**options).save()
        return time.perf_counter() - start

    with grpc.insecure_channel(service.address) as channel:
        stub = ConfigServiceStub(channel)
        stub.CreateStore(pb.CreateStoreRequest(name="bench", partition_count=PARTITIONS))
        save("warm", 1_000)
        save("warm-stage", 1_000, release="new")

        def run() -> None:
            for turn in range(rounds):
                for name in ("load", "stage") if turn % 2 else ("stage", "load"):
                    more = {"release": "new"} if name == "stage" else {}
                    taken[name].append(save(f"{name}-{turn}", count, **more))

        benchmark.group = "releases"
        benchmark.pedantic(run, rounds=1)
        found = stub.ListReleases(pb.ListReleasesRequest(store="bench")).releases
        assert [release.rows for release in found] == [count] * rounds + [1_000]
    ratio = statistics.median(one / other for one, other in zip(taken["stage"], taken["load"], strict=True))
    benchmark.extra_info.update(
        rows=count,
        load_s=round(statistics.median(taken["load"]), 2),
        stage_s=round(statistics.median(taken["stage"]), 2),
        ratio=round(ratio, 2),
    )
    if benchmark.enabled:
        assert ratio <= STAGED_RATIO


class OtherClient:
    """Puts of single rows, each due at its time whether the one before it is answered or not."""

    INTERVAL_S: Final = 0.02

    def __init__(self, address: str) -> None:
        self._address = address

    def p95_ms(self, enough: Callable[[int], bool]) -> float:
        """Puts until ``enough`` says so of their number; the time of each runs from when it was due."""
        waits: list[float] = []
        calls: list[Any] = []
        with grpc.insecure_channel(self._address) as channel:
            stub = ConfigServiceStub(channel)
            start = time.perf_counter()
            while not enough(len(calls)):
                due = start + len(calls) * self.INTERVAL_S
                time.sleep(max(0.0, due - time.perf_counter()))
                call = stub.Put.future(pb.PutRequest(store="bench", key="others", row_id="row", value=str(len(calls))))
                call.add_done_callback(lambda _, due=due: waits.append(time.perf_counter() - due))
                calls.append(call)
            for call in calls:
                call.result()
        return statistics.quantiles(waits, n=20)[-1] * 1e3


@pytest.mark.timeout(1_800)  # seconds
def test_other_clients_during_a_load(
    benchmark: BenchmarkFixture, spark: SparkSession, tmp_path: Path, nats_server: NatsServer
) -> None:
    enabled = bool(benchmark.enabled)
    rows, puts = (150_000, 500) if enabled else (1_500, 20)
    throttled_rows = 15 * THROTTLED_ROWS_PER_S if enabled else THROTTLED_ROWS_PER_S // 4
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with (
        ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database) as service,
        grpc.insecure_channel(service.address) as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        stub = ConfigServiceStub(channel)
        stub.CreateStore(pb.CreateStoreRequest(name="bench", partition_count=PARTITIONS))

        def load(key: str, count: int, rate: int | None = None) -> None:
            options = {"service": service.address, "store": "bench", "key": key}
            if rate:
                options["maxRowsPerSecond"] = str(rate)
            frame = spark.range(count, numPartitions=2).selectExpr("concat('user', id) AS row_id", "'blocked' AS value")
            frame.write.format("ringcast").mode("append").options(**options).save()

        def during(key: str, count: int, rate: int | None = None) -> float:
            done = threading.Event()
            putting = pool.submit(other.p95_ms, lambda puts: done.is_set() and puts > 1)
            try:
                load(key, count, rate)  # in this thread, to which the session belongs
            finally:
                done.set()
            return putting.result()

        load("warm", 1_000)
        other = OtherClient(service.address)
        other.p95_ms(lambda count: count >= 20)
        quiet = other.p95_ms(lambda count: count >= puts)
        free = during("free", rows)
        throttled: list[float] = []
        benchmark.group = "spark load"
        benchmark.pedantic(
            lambda: throttled.append(during("throttled", throttled_rows, THROTTLED_ROWS_PER_S)), rounds=1
        )
        for key, count in (("free", rows), ("throttled", throttled_rows)):
            assert sum(stub.Heads(pb.HeadsRequest(store="bench", key=key)).heads) == count
    benchmark.extra_info.update(
        quiet_p95_ms=round(quiet, 1),
        load_p95_ratio=round(free / quiet, 1),
        throttled_p95_ratio=round(throttled[0] / quiet, 1),
        throttled_rows_per_s=THROTTLED_ROWS_PER_S,
        load_average=round(os.getloadavg()[0], 1),
    )
    found = f"{quiet:.1f} ms, x {free / quiet:.1f} in a load, x {throttled[0] / quiet:.1f} in a throttled one"
    print(f"95th percentile of other clients: {found}")
