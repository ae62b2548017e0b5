"""How long a report round takes: one request to all workers of a key, until the last of them has answered.

Usage: python -m benchmarks.report_round [--workers N] [--partitions N] [--rounds N] [--full]. A real server of NATS;
the workers' own code reads real machines of the key, with a row in each partition, and answers. Membership and fetches
are left out: 200 whole workers do not fit a machine of 2 cores. They share two processes; with ``--full`` each of them
owns every partition. Prints milliseconds and bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import nats
from ringcast import WorkerConfig
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.measures import KeyMeasures, NoMetrics
from ringcast._common.opening import Openings
from ringcast._delivery.callbacks import Listeners
from ringcast._protocol.partition import PartitionInput
from ringcast._worker.reports import Reports
from ringcast._worker.session import KeySession
from ringcast._worker.telemetry import KeyTelemetry
from ringcast_testkit import NatsServer
from ringcast_wire import EventLog, Mode, Row, StoreSettings, assign
from ringcast_wire.reports import ReportAsker, ReportRound, assignment_digest

STORE, KEY = "bench", "list"
PROCESSES = 2


class _Host:
    """What a session asks of its worker while nothing happens."""

    def pressure_changed(self) -> None:
        """Nothing is pulled."""


async def answer(url: str, workers: Sequence[str], owned: Sequence[frozenset[int]], count: int, digest: str) -> None:
    """Answers for some workers, over a connection each, until it is killed."""
    log = EventLog(logging.getLogger("bench"))
    settings = StoreSettings(partition_count=count, mode=Mode.PARTITIONED)
    async with asyncio.TaskGroup() as tasks:
        for worker_id, partitions in zip(workers, owned, strict=True):
            config = WorkerConfig(store=STORE, keys=(KEY,), worker_id=worker_id, servers=(url,))
            tasks.create_task(_answer(config, settings, partitions, digest, log))


async def _answer(
    config: WorkerConfig, settings: StoreSettings, partitions: frozenset[int], digest: str, log: EventLog
) -> None:
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
        session.machine.assign(partitions)
        for number, partition in session.machine.partitions.items():
            partition.accept(Row(f"row{number}", "value", 1_000_000 + number))
            partition.on(PartitionInput.LOADED)
            partition.advance(1_000_000 + number)
        session.machine.history.begin("h" * 16)
        reports = Reports(
            bus,
            config,
            {KEY: session},
            incarnation="i" * 16,
            assigned=lambda _: digest,
            laid=lambda _key, _request: None,
            judged=lambda *_: None,
            groups=False,
            log=log,
        )
        await reports.run()


def _process(*arguments: Any) -> None:
    asyncio.run(answer(*arguments))


async def measure(url: str, workers: Sequence[str], rounds: int) -> tuple[list[ReportRound], float]:
    """The rounds after the first one that everybody answered, and the CPU seconds that asking has taken."""
    client = await nats.connect(url)
    asker = ReportAsker(client)
    while (await asker.ask(STORE, KEY, workers, timeout_s=1.0)).silent:
        pass
    found = []
    began_s = time.process_time()
    for _ in range(rounds):
        found.append(await asker.ask(STORE, KEY, workers, timeout_s=10.0))
        await asyncio.sleep(0.1)  # no more than a worker answers in a second
    cpu_s = time.process_time() - began_s
    await client.close()
    return found, cpu_s


def run(workers: int, partitions: int, rounds: int, *, full: bool) -> tuple[list[ReportRound], float]:
    """Starts the server and the workers, and asks, as :func:`measure`."""
    ids = [f"worker-{number:03}" for number in range(workers)]
    owners = assign(StoreSettings(partition_count=partitions), {name: slot for slot, name in enumerate(ids)})
    by_worker: dict[str, set[int]] = {name: set() for name in ids}
    for number, owner in enumerate(owners):
        by_worker[owner].add(number)
    owned = {name: frozenset(range(partitions)) if full else frozenset(by_worker[name]) for name in ids}
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as directory, NatsServer(Path(directory)) as server:
        shares = [ids[first::PROCESSES] for first in range(PROCESSES)]
        started = [
            context.Process(
                target=_process,
                args=(server.url, share, [owned[name] for name in share], partitions, assignment_digest(owners)),
            )
            for share in shares
            if share
        ]
        for process in started:
            process.start()
        try:
            return asyncio.run(measure(server.url, ids, rounds))
        finally:
            for process in started:
                process.kill()
                process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--partitions", type=int, default=4_096)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--full", action="store_true")
    words = parser.parse_args()
    found, cpu_s = run(words.workers, words.partitions, words.rounds, full=words.full)
    times = sorted(1000 * each.took_s for each in found)
    pairs = sum(len(report.applied) for report in found[-1].reports.values())
    silent = sum(len(each.silent) for each in found)
    print(f"{words.workers} workers, {pairs} pairs of partition and revision, {len(times)} rounds, {silent} silent")
    p90 = times[len(times) * 9 // 10]
    print(f"round: median {statistics.median(times):.1f} ms, p90 {p90:.1f} ms, most {times[-1]:.1f} ms")
    print(f"CPU time of the asker: {1000 * cpu_s / len(found):.1f} ms a round")


if __name__ == "__main__":
    main()
