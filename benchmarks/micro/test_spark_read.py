"""The connector's own share of a read: encoded replies to record batches, with no network and no Spark.

5M rows pass through the tasks of a reader; where a connection would be stand replies that are held in memory. Two
processes share the work, as Spark has a Python worker for each of two cores. The peer does the same in the way that
comes first to mind: the decoder that the rest of Ringcast uses, and a list of dictionaries that Arrow makes columns of.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark_ringcast import _read
from pyspark_ringcast._columns import SCHEMA
from pyspark_ringcast._fetch import Request
from pyspark_ringcast._options import parse_options
from pyspark_ringcast._read import ReadTask, Snapshot
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_wire import FetchReply, PartitionRows, Row, decode_fetch_reply, encode

PARTITIONS: Final = 256
PROCESSES: Final = 2
MEASURED_ROWS: Final = 5_000_000
PEER_ROWS: Final = 200_000


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

    def fetch_bodies(self, requests: Iterable[Request], _timeout_s: float) -> Iterator[bytes]:
        for request in requests:
            yield self._bodies[int(request.subject.rpartition(".")[2])]


def read_share(replies: Any, partitions: range) -> int:
    """Reads some partitions through the connector; how many rows came."""
    snapshot = Snapshot(parse_options({"store": "s", "key": "k"}, {}), replies.heads)
    task = _read._TaskRead(snapshot, ReadTask(tuple(partitions)), replies)
    return sum(batch.num_rows for batch in task.batches())


def peer_share(replies: Replies, partitions: range) -> int:
    requests = [Request(f"config.fetch.s.k.{partition}", b"") for partition in partitions]
    count = 0
    for body in replies.fetch_bodies(requests, 0.0):
        for entry in decode_fetch_reply(body).partitions:
            rows = [
                {
                    "row_id": row.row_id,
                    "value": row.value,
                    "version": row.version,
                    "partition": entry.partition,
                    "deleted": row.deleted,
                    "metadata": row.metadata,
                }
                for row in entry.rows
            ]
            count += pa.RecordBatch.from_pylist(rows, schema=SCHEMA).num_rows
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

    def once() -> None:
        before = time.process_time()
        assert read_share(replies, range(PARTITIONS)) == rows
        cpu_s.append(time.process_time() - before)

    benchmark.pedantic(once, rounds=3 if enabled else 1, warmup_rounds=1)
    some = Replies(PEER_ROWS // PARTITIONS * PARTITIONS if enabled else rows)
    start = time.perf_counter()
    peer_rows = peer_share(some, range(PARTITIONS))
    peer_spent = time.perf_counter() - start
    assert peer_rows == sum(some.heads)
    together, spent = in_two_processes(rows)
    assert together == rows
    if enabled and benchmark.stats is not None:
        benchmark.extra_info.update(
            rows=rows,
            rows_per_s=round(together / spent),
            rows_per_s_one_process=round(rows / benchmark.stats.stats.min),
            rows_per_cpu_s=round(rows / min(cpu_s)),
            peer_rows_per_s=round(peer_rows / peer_spent),
        )
