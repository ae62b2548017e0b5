"""The connector's own share of a read: encoded replies to record batches, with no network and no Spark.

5M rows pass through the tasks of a reader; where a connection would be stand replies that are held in memory. Two
processes share the work, as Spark has a Python worker for each of two cores. The peer is the fastest way without a
decoder of one's own: msgspec makes tuples, and Arrow makes columns of them. Ratios are of processor time, so that
what else runs on the machine weighs on both alike.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark_ringcast._batch import read as _read
from pyspark_ringcast._batch.read import ReadTask, Snapshot
from pyspark_ringcast._common.columns import SCHEMA
from pyspark_ringcast._common.options import parse_options
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_client.fetches import FetchRequest
from ringcast_wire import FetchReply, PartitionRows, Row, encode

PARTITIONS: Final = 256
PROCESSES: Final = 2
MEASURED_ROWS: Final = 5_000_000
ROUNDS: Final = 3


class Replies:
    """Where a task has a client: one encoded reply for each partition, made before the clock runs."""

    def __init__(self, rows: int) -> None:
        share = rows // PARTITIONS
        self.heads = (share,) * PARTITIONS
        row_ids = (f"user{number}@example{number % 997}.com" for number in range(share))
        made = [Row(row_id, "blocked", version) for version, row_id in enumerate(row_ids, 1)]
        self._bodies = [
            encode(FetchReply(1, [PartitionRows(number, share, True, made)])) for number in range(PARTITIONS)
        ]

    def fetch_bodies(self, requests: Iterable[FetchRequest], _timeout_s: float) -> Iterator[bytes]:
        for request in requests:
            yield self._bodies[int(request.subject.rpartition(".")[2])]


def read_share(replies: Any, partitions: range) -> int:
    """Reads some partitions through the connector; how many rows came."""
    snapshot = Snapshot(parse_options({"store": "s", "key": "k"}, {}), replies.heads, "h")
    task = _read._TaskRead(snapshot, ReadTask(tuple(partitions)), replies)
    return sum(batch.num_rows for batch in task.batches())


class _PeerRows(msgspec.Struct, array_like=True, gc=False):
    partition: int
    revision: int
    whole: bool
    rows: list[tuple[str, str, int, bool, dict[str, str] | None]]


class _PeerReply(msgspec.Struct, array_like=True, gc=False):
    wire_version: int
    partitions: list[_PeerRows]


_peer_decoder: Final = msgspec.msgpack.Decoder(_PeerReply)


def peer_share(replies: Replies, partitions: range) -> int:
    """Reads replies that are known to hold neither tombstones nor metadata; how many rows came."""
    requests = [FetchRequest(f"config.fetch.s.k.{partition}", b"") for partition in partitions]
    count = 0
    gc.disable()  # it would look at every tuple time and again
    try:
        for body in replies.fetch_bodies(requests, 0.0):
            for entry in _peer_decoder.decode(body).partitions:
                row_ids, values, versions, _, _ = zip(*entry.rows, strict=True)
                rows = len(entry.rows)
                columns = [
                    pa.array(row_ids, pa.string()),
                    pa.array(values, pa.string()),
                    pa.array(versions, pa.int64()),
                    pa.repeat(pa.scalar(entry.partition, pa.int32()), rows),
                    pa.repeat(False, rows),
                    pa.nulls(rows, SCHEMA.field("metadata").type),
                ]
                count += pa.RecordBatch.from_arrays(columns, schema=SCHEMA).num_rows
    finally:
        gc.enable()
    return count


def _process(rows: int, index: int, at_the_line: Any, seconds: Any) -> None:
    replies = Replies(rows)
    mine = range(index * PARTITIONS // PROCESSES, (index + 1) * PARTITIONS // PROCESSES)
    read_share(replies, range(1))  # pyarrow imports half of pandas with its first array
    at_the_line.wait()
    start = time.perf_counter()
    count = read_share(replies, mine)
    at_the_line.wait()
    seconds.put((count, time.perf_counter() - start))


def in_two_processes(rows: int) -> tuple[int, float]:
    """Rows, and seconds from the common start to the end of the last."""
    context = multiprocessing.get_context("spawn")
    at_the_line, found = context.Barrier(PROCESSES), context.Queue()
    workers = [context.Process(target=_process, args=(rows, index, at_the_line, found)) for index in range(PROCESSES)]
    for worker in workers:
        worker.start()
    results = [found.get(timeout=100) for _ in workers]
    for worker in workers:
        worker.join()
    return sum(count for count, _ in results), max(spent for _, spent in results)


def test_replies_to_record_batches(benchmark: BenchmarkFixture) -> None:
    enabled = bool(benchmark.enabled)
    rows = MEASURED_ROWS // PARTITIONS * PARTITIONS if enabled else 4 * PARTITIONS
    replies = Replies(rows)
    benchmark.group = "spark read"
    cpu_s: list[float] = []
    peer_cpu_s: list[float] = []

    def timed(read: Callable[[Replies, range], int], spent: list[float]) -> None:
        before = time.process_time()
        assert read(replies, range(PARTITIONS)) == rows
        spent.append(time.process_time() - before)

    def both() -> tuple[tuple[Any, ...], dict[str, Any]]:
        timed(peer_share, peer_cpu_s)  # in turns, so that no minute of the machine belongs to one of them
        return (read_share, cpu_s), {}

    benchmark.pedantic(timed, setup=both, rounds=ROUNDS if enabled else 1)
    together, spent = in_two_processes(rows)
    assert together == rows
    if enabled and benchmark.stats is not None:
        benchmark.extra_info.update(
            rows=rows,
            rows_per_s=round(together / spent),
            rows_per_s_one_process=round(rows / benchmark.stats.stats.min),
            rows_per_cpu_s=round(rows / min(cpu_s)),
            peer_rows_per_cpu_s=round(rows / min(peer_cpu_s)),
            times_as_fast=round(min(peer_cpu_s) / min(cpu_s), 1),
        )
