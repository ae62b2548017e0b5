"""Ten thousand damaged answers into workers that run: none stops or ends with a wrong row, and each is counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import nats
import pytest
from ringcast import Mode, Worker
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer
from ringcast_wire import names

from tests.integration.damaged_answers import DAMAGES, MAPPINGS, PARTITIONS, Front, Verdict

SILENCE_S = 2.0
ROWS = 120
VALUE = "x" * 300
"""Large enough that a partition of some rows takes several chunks, and never rides in an event."""
LEAST = {"full": 600, "partition": 3_500, "since": 3_000, "batch": 1_500, "heads": 1_500}
SEED = 20261120


class Failures(logging.Handler):
    """Counts what a worker logs of failed fetches."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: Counter[str] = Counter()
        self.late = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.messages[getattr(record, "event", "")] += 1
        self.late += "of silence" in str(vars(record).get("error", ""))

    @property
    def total(self) -> int:
        """Failed fetches of every kind."""
        return sum(self.messages[said] for said in ("bootstrap.failed", "fetch.attempt_failed", "anti_entropy.failed"))


@pytest.fixture
def failures() -> Iterator[Failures]:
    """The handler, while the test runs; nothing else writes what is logged."""
    logger = logging.getLogger("ringcast")
    handler = Failures()
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    yield handler
    logger.removeHandler(handler)
    logger.propagate = propagate


@pytest.fixture
def mapped_nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that sends what is asked of the service to the front."""
    with NatsServer(tmp_path / "nats", mappings=MAPPINGS) as server:
        yield server


@pytest.fixture
async def client(mapped_nats: NatsServer, tmp_path: Path) -> AsyncIterator[ConfigServiceClient]:
    """A config service behind it."""
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=mapped_nats.url, database=database) as service:
        async with ConfigServiceClient(service.address) as client:
            yield client


async def has_everything(worker: Worker, client: ConfigServiceClient, store: str) -> None:
    """Waits until the worker holds exactly what the database has."""
    heads = await client.heads(store, "k")
    truth = {row.row_id: (row.value, row.version) async for row in client.list(store, "k")}

    def equal() -> bool:
        held = {row.row_id: (row.value, row.version) for row in worker.rows("k")}
        return held == truth and all(worker.applied("k")[number] == head for number, head in enumerate(heads))

    def well() -> bool:
        return worker.health().ready and equal()

    async with asyncio.timeout(PATIENCE_S):
        while not well():
            compare_now(worker)
            with suppress(TimeoutError):  # of both: to wait for what is there already would let no other task run
                await worker.wait_until("k", well, timeout_s=0.1)


async def fill(client: ConfigServiceClient, store: str, mode: Mode) -> None:
    await client.create_store(store, partition_count=PARTITIONS, mode=mode, inline_max_bytes=0)
    async for _ in client.bulk_write(store, "k", [RowWrite(f"row{number}", VALUE) for number in range(ROWS)]):
        pass


def compare_now(worker: Worker) -> None:
    """Ends every delay before another try, as after a reconnect, and compares the heads."""
    assert worker._life.runtime is not None
    worker._life.runtime.sessions["k"]._reconnected()


async def until_damaged(front: Front, worker: Worker, kind: str, goal: int) -> None:
    """Has the worker ask again and again until so many answers of a kind were damaged; each takes its time alone."""
    seen = -1
    async with asyncio.timeout(None) as patience:
        while front.damaged[kind] < goal:
            if front.damaged[kind] > seen:
                seen = front.damaged[kind]
                patience.reschedule(asyncio.get_running_loop().time() + PATIENCE_S)
            front.sent.clear()
            compare_now(worker)
            with suppress(TimeoutError):  # what was sent is noted later, and then nothing else may be under way
                async with asyncio.timeout(0.01):
                    await front.sent.wait()


async def nothing_is_under_way(front: Front, worker: Worker, failures: Failures) -> None:
    """Waits until each request has its answer or has timed out: only then can the failures be told apart."""
    assert worker._life.runtime is not None
    client = worker._life.runtime.sessions["k"].fetches.client
    assert client is not None
    async with asyncio.timeout(PATIENCE_S):
        while client._pending:
            with suppress(TimeoutError):
                await worker.wait_until("k", lambda: not client._pending, timeout_s=0.1)
        while front.cancelled < failures.late:  # which each of these is told of
            front.sent.clear()
            await front.sent.wait()


def is_counted(front: Front, worker: Worker, failures: Failures) -> None:
    """Every bad answer was counted and logged, but for those to what was given up; what came late counts as missing."""
    given_up = front.cancelled - failures.late
    bad, late = worker.stats().bad_replies, failures.late - front.verdicts[Verdict.SILENT]
    damaged, refused = front.verdicts[Verdict.DAMAGED], front.verdicts[Verdict.REFUSED]
    assert 0 <= given_up < damaged / 100
    assert -given_up <= late < damaged / 100
    unheard = max(late, 0) + given_up
    assert damaged - unheard <= bad <= damaged
    assert damaged + refused - unheard <= failures.total - failures.late <= damaged + refused


async def test_a_full_copy_survives_damaged_answers(
    mapped_nats: NatsServer, client: ConfigServiceClient, failures: Failures
) -> None:
    await fill(client, "s", Mode.FULL)
    async with Front.open(mapped_nats.url, Random(SEED)) as front:
        front.share, front.unkind = 1.0, True
        async with Worker(
            servers=mapped_nats.url, store="s", keys=["k"], worker_id="w", fetch_timeout_s=PATIENCE_S
        ) as worker:
            await until_damaged(front, worker, names.FETCH_FULL, LEAST["full"])
            front.share = 0.0
            await has_everything(worker, client, "s")
            await nothing_is_under_way(front, worker, failures)
            is_counted(front, worker, failures)


async def test_a_worker_survives_damaged_answers_while_rows_are_written(
    mapped_nats: NatsServer, client: ConfigServiceClient, failures: Failures
) -> None:
    await fill(client, "s", Mode.PARTITIONED)
    bus = await nats.connect(mapped_nats.url)
    random = Random(SEED)
    stop = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            await client.put("s", "k", f"row{random.randrange(ROWS)}", f"{number} {VALUE}")
            # And an event that nobody can read, for which the partition is fetched.
            await bus.publish(names.notify_subject("s", "k", random.randrange(PARTITIONS)), random.randbytes(9))

    async with Front.open(mapped_nats.url, Random(SEED)) as front:
        front.share, front.unkind = 1.0, True
        async with Worker(
            servers=mapped_nats.url, store="s", keys=["k"], worker_id="w", fetch_timeout_s=SILENCE_S, window_s=0.0
        ) as worker:
            await until_damaged(front, worker, "partition", LEAST["partition"])
            front.share, front.unkind = 0.8, False
            writing = asyncio.create_task(write())
            for kind in ("since", names.FETCH_BATCH):
                await until_damaged(front, worker, kind, LEAST[kind])
            stop.set()
            await writing
            # There is one comparison of heads at a time: beside fetches that fail too, the rest of them takes minutes.
            for share in (0.0, 1.0, 0.0):
                front.share = share
                if share:
                    await until_damaged(front, worker, names.FETCH_HEADS, LEAST[names.FETCH_HEADS])
                else:
                    await has_everything(worker, client, "s")
            await nothing_is_under_way(front, worker, failures)
            is_counted(front, worker, failures)
            assert set(front.tried) == {damage.__name__.strip("_") for damage in DAMAGES}
            assert set(front.verdicts) == set(Verdict)
    await bus.close()


def test_these_are_ten_thousand() -> None:
    assert sum(LEAST.values()) >= 10_000
