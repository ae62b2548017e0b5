"""How long a proof round takes: registrations, one request to all workers of a key, their answers, and the verdict.

Usage: python -m benchmarks.report_round [--workers N] [--partitions N] [--rounds N] [--full]. A real server of NATS has
the registration and the lease of each worker, and the config service's own code asks and judges, as it does to prove a
release with rows in every partition. The workers' own code reads real machines of the key, with a row in each
partition, and answers. Membership and fetches are left out: 200 whole workers do not fit a machine of 2 cores. They
share two processes; with ``--full`` each of them owns every partition. Prints milliseconds and bytes.

Exit status 1 where the median is more than 50 ms, or a round proves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, cast

import nats
from nats.js import JetStreamContext
from ringcast import WorkerConfig
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.measures import KeyMeasures, NoMetrics
from ringcast._common.opening import Openings
from ringcast._delivery.callbacks import Listeners
from ringcast._protocol.partition import PartitionInput
from ringcast._worker.reports import Reports
from ringcast._worker.session import KeySession
from ringcast._worker.telemetry import KeyTelemetry
from ringcast_config_service.nats import streams
from ringcast_config_service.releases.fleet import FleetRound, ask_fleet
from ringcast_config_service.releases.proof import ProofTarget, Verdict, judge
from ringcast_config_service.repository import StoreRecord
from ringcast_testkit import NatsServer
from ringcast_wire import (
    EventLog,
    LeaseRecord,
    Mode,
    NodeRecord,
    Row,
    StoreSettings,
    assign,
    encode_record,
    limits,
    names,
)
from ringcast_wire.buckets import subject_of
from ringcast_wire.reports import assignment_digest

STORE, KEY, HISTORY = "bench", "list", "h" * 16
PROCESSES = 2
GOAL_S: Final = 0.05
"""The median of a round is to be no more, with 200 workers of 4,096 partitions."""
_HEAD: Final = 1_000_000
"""The revision of partition 0."""
_ROWS: Final = 25
"""Rows of the release in each partition."""
_PATIENCE_S: Final = 120.0
"""So long the first certificate is waited for: the workers have to begin."""


class Round(NamedTuple):
    """One round, and what it proves."""

    took_s: float
    asked: FleetRound
    verdict: Verdict


class _Worker(NamedTuple):
    worker_id: str
    slot: int
    owned: frozenset[int]

    @property
    def incarnation(self) -> str:
        return f"{self.slot:016x}"


class _Host:
    """What a session asks of its worker while nothing happens."""

    def pressure_changed(self) -> None:
        """Nothing is pulled."""


async def answer(url: str, workers: Sequence[_Worker], settings: StoreSettings, digest: str) -> None:
    """Answers for some workers, over a connection each, until it is killed."""
    log = EventLog(logging.getLogger("bench"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_live(url, workers))
        for worker in workers:
            config = WorkerConfig(store=STORE, keys=(KEY,), worker_id=worker.worker_id, servers=(url,))
            tasks.create_task(_answer(config, settings, worker, digest, log))


async def _live(url: str, workers: Sequence[_Worker]) -> None:
    """Registers workers, and keeps their leases."""
    client = await nats.connect(url)
    js = client.jetstream()
    nodes, leases = names.nodes_bucket(STORE), names.LEASES_BUCKET
    for each in workers:
        node = NodeRecord(slot=each.slot, lease=each.worker_id, incarnation=each.incarnation)
        await js.publish(subject_of(nodes, names.node_key(KEY, each.worker_id)), encode_record(node))
    while True:
        for each in workers:
            lease = LeaseRecord(incarnation=each.incarnation, host="host", pid=os.getpid(), started_at_ms=1)
            await js.publish(subject_of(leases, each.worker_id), encode_record(lease))
        await asyncio.sleep(limits.LEASE_REFRESH_S / 2)


async def _answer(config: WorkerConfig, settings: StoreSettings, worker: _Worker, digest: str, log: EventLog) -> None:
    async with NatsBus.prepared(config, log) as bus:
        await bus.connect(config)
        session = KeySession(
            KEY,
            config,
            settings,
            bus=bus,
            host=cast(Any, _Host()),
            listeners=Listeners(),
            cache=None,
            telemetry=KeyTelemetry(log.bind(key=KEY), KeyMeasures(NoMetrics())),
            openings=Openings(None),
        )
        session.machine.assign(worker.owned)
        for number, partition in session.machine.partitions.items():
            partition.accept(Row(f"row{number}", "value", _HEAD + number))
            partition.on(PartitionInput.LOADED)
            partition.advance(_HEAD + number)
        session.machine.history.begin(HISTORY)
        reports = Reports(
            bus,
            config,
            {KEY: session},
            incarnation=worker.incarnation,
            assigned=lambda _: digest,
            laid=lambda _key, _request: None,
            judged=lambda *_: None,
            groups=False,
            log=log,
        )
        await reports.run()


def _process(*arguments: Any) -> None:
    asyncio.run(answer(*arguments))


async def make_buckets(js: JetStreamContext) -> None:
    """Those of leases and registrations, as the config service makes them."""
    sizes = streams.StreamSizes()
    of_nodes = subject_of(names.nodes_bucket(STORE), names.node_key("*", "*"))
    await js.add_stream(streams.leases(sizes))
    for config in streams.of_store(STORE, sizes):
        if of_nodes in (config.subjects or ()):
            await js.add_stream(config)


async def measure(url: str, settings: StoreSettings, workers: int, rounds: int) -> tuple[list[Round], float]:
    """The rounds after the first one that proves that all workers have the release, and their CPU seconds here."""
    client = await nats.connect(url)
    js = client.jetstream()
    store = StoreRecord(STORE, settings, 0, 1)
    ends = {number: (_HEAD + number - _ROWS + 1, _HEAD + number) for number in range(settings.partition_count)}
    target = ProofTarget(KEY, HISTORY, ends)

    async def one() -> Round:
        began_s = time.perf_counter()
        asked = await ask_fleet(client, js, store, KEY, target.ranges)
        verdict = judge(target, *asked, {}, everybody=settings.mode is Mode.FULL)
        return Round(time.perf_counter() - began_s, asked, verdict)

    due_s = time.monotonic() + _PATIENCE_S
    while (proven := (await one()).verdict).certificate is None or len(proven.certificate.workers) < workers:
        if time.monotonic() > due_s:
            raise TimeoutError(f"no round has had the answers of {workers} workers and a proof in {_PATIENCE_S:.0f} s")
    found = []
    began_s = time.process_time()
    for _ in range(rounds):
        found.append(await one())
        await asyncio.sleep(0.05)  # fewer than a worker answers in a second
    cpu_s = time.process_time() - began_s
    await client.close()
    return found, cpu_s


def run(workers: int, partitions: int, rounds: int, *, full: bool) -> tuple[list[Round], float]:
    """Starts the server and the workers, and asks, as :func:`measure`."""
    ids = [f"worker-{number:03}" for number in range(workers)]
    settings = StoreSettings(partition_count=partitions, mode=Mode.FULL if full else Mode.PARTITIONED)
    owners: Sequence[str | None] = ()
    by_worker: dict[str, set[int]] = {name: set(range(partitions) if full else ()) for name in ids}
    if not full:
        owners = assign(settings, {name: slot for slot, name in enumerate(ids)})
        for number, owner in enumerate(owners):
            by_worker[owner].add(number)
    fleet = [_Worker(name, slot, frozenset(by_worker[name])) for slot, name in enumerate(ids)]
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as directory, NatsServer(Path(directory)) as server:
        asyncio.run(_prepare(server.url))
        shares = [fleet[first::PROCESSES] for first in range(PROCESSES)]
        started = [
            context.Process(target=_process, args=(server.url, share, settings, assignment_digest(owners)))
            for share in shares
            if share
        ]
        for process in started:
            process.start()
        try:
            return asyncio.run(measure(server.url, settings, workers, rounds))
        finally:
            for process in started:
                process.kill()
                process.join()


async def _prepare(url: str) -> None:
    client = await nats.connect(url)
    await make_buckets(client.jetstream())
    await client.close()


def missed(found: Sequence[Round]) -> str:
    """What of the goal is missed; empty: nothing."""
    lacking = [each.verdict.lacks[0].sentence for each in found if each.verdict.certificate is None]
    if lacking:
        return f"{len(lacking)} of {len(found)} rounds prove nothing, the first because {lacking[0]}"
    median_s = statistics.median(each.took_s for each in found)
    if median_s > GOAL_S:
        return f"the median of a round is {1000 * median_s:.1f} ms, and to be {1000 * GOAL_S:.0f} ms at most"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=4_096)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--full", action="store_true")
    words = parser.parse_args()
    found, cpu_s = run(words.workers, words.partitions, words.rounds, full=words.full)
    times = sorted(1000 * each.took_s for each in found)
    reports = found[-1].asked.found.reports.values()
    pairs = sum(len(report.applied) for report in reports)
    print(f"{len(reports)} workers, {pairs} pairs of partition and revision, {len(times)} rounds")
    p99 = times[len(times) * 99 // 100]
    print(f"round: p50 {statistics.median(times):.1f} ms, p99 {p99:.1f} ms, most {times[-1]:.1f} ms")
    print(f"CPU time of the service: {1000 * cpu_s / len(found):.1f} ms a round")
    if problem := missed(found):
        sys.exit(f"report_round: FAILED: {problem}")


if __name__ == "__main__":
    main()
