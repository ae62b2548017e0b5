"""What an event costs a worker in CPU time, from its delivery to the handler: bare, with metrics, with traces.

Usage: python -m benchmarks.worker_events [ROUNDS]. Broker and service are left out: their answers are made here.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, cast

from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from ringcast import Change
from ringcast._bus.bus import Delivery
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._common.measures import Metrics, NoMetrics
from ringcast._common.opening import Openings
from ringcast._common.stats import Stats
from ringcast._delivery.callbacks import Listeners
from ringcast._worker.routes import Routes
from ringcast._worker.session import KeySession
from ringcast._worker.telemetry import KeyTelemetry
from ringcast.metrics import PrometheusMetrics
from ringcast_core import row_partition
from ringcast_wire import WIRE_VERSION, Event, FetchReply, PartitionRows, RingcastError, StoreSettings, encode, names
from ringcast_wire import Change as WireChange
from ringcast_wire.tracing import Tracing, make_tracing

PARTITIONS = 64
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class _Acks:
    """Takes acknowledgements."""

    def add(self, tokens: list[str]) -> None:
        pass


class _Connection:
    """A connection that stays."""

    acks = _Acks()

    def on_back(self, callback: Callable[[], None]) -> None:
        pass


class _Fetches:
    """Every partition is empty."""

    async def request(self, subject: str, payload: bytes = b"", headers: object = None) -> bytes:
        number = int(subject.rpartition(".")[2])
        return encode(FetchReply(WIRE_VERSION, [PartitionRows(number, 0, True, [])]))


@dataclass(frozen=True, slots=True)
class Variant:
    """What takes measurements and spans meanwhile."""

    name: str
    metrics: Callable[[], Metrics] = NoMetrics
    tracing: Callable[[], Tracing | None] = lambda: None
    traced: bool = False


VARIANTS = (
    Variant("bare"),
    Variant("metrics", lambda: PrometheusMetrics(CollectorRegistry())),
    Variant("provider, no traced write", tracing=lambda: make_tracing("bench", TracerProvider())),
    Variant("provider, every write traced", tracing=lambda: make_tracing("bench", TracerProvider()), traced=True),
)


def deliveries(count: int, traced: bool) -> list[Delivery]:
    """Events as a consumer delivers them, round the partitions."""
    found = []
    rows: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
    for row_id in (f"row-{number}" for number in range(PARTITIONS * 50)):
        rows[row_partition(row_id, PARTITIONS)].append(row_id)
    for index in range(count):
        partition, rev = index % PARTITIONS, index // PARTITIONS + 1
        change = WireChange(rows[partition][rev % len(rows[partition])], rev, False, "value")
        reply = f"$JS.ACK.config_notify_s.ringcast-w.1.{index}.{index}.{time.time_ns()}.0"
        data = encode(Event(WIRE_VERSION, rev - 1, rev, 0, [change]))
        subject = names.notify_subject("s", "k", partition)
        found.append(Delivery(subject, reply, data, TRACEPARENT if traced else None))
    return found


class _Host:
    """A worker that has what a session asks for, at once."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.session: KeySession | None = None
        self._tasks = tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.create_task(work)

    def want(self, _key: str, subjects: frozenset[str]) -> None:
        assert self.session is not None
        asyncio.get_running_loop().call_soon(self.session.ownership.filters_confirmed, subjects)

    def suspect_consumer(self, subject: str) -> None:
        raise AssertionError(f"{subject}: no event was lost here")

    def check_store(self) -> None:
        raise AssertionError("the store is the same here")

    def pressure_changed(self) -> None:
        pass

    def recovered(self, _key: str) -> None:
        pass

    def deleted(self, _key: str, _error: RingcastError) -> None:
        pass


async def measure(variant: Variant, events: int, at_once: int) -> float:
    """Microseconds of CPU time an event."""
    handled = 0

    def handler(change: Change) -> None:
        nonlocal handled
        handled += 1

    config = WorkerConfig.resolve({"store": "s", "keys": ["k"], "worker_id": "w"}, {})
    log = worker_log(logging.getLogger("bench"))
    settings = StoreSettings(partition_count=PARTITIONS)
    connection = cast(Any, _Connection())

    async with asyncio.TaskGroup() as tasks:
        host = _Host(tasks)
        session = host.session = KeySession(
            "k",
            config,
            settings,
            bus=connection,
            host=host,
            listeners=Listeners(),
            cache=None,
            telemetry=KeyTelemetry.of("k", config, log=log, metrics=variant.metrics(), tracing=variant.tracing()),
            openings=Openings(None),
        )
        session.attach(handler)
        routes = Routes(connection, config, {"k": session}, PARTITIONS, Stats(), log)
        jobs = tasks.create_task(session.deliveries.run())
        session.fetches.client = cast(Any, _Fetches())
        session.ownership.assign(frozenset(range(PARTITIONS)))
        await session.wait_until(lambda: session.ready)
        messages = deliveries(events, variant.traced)
        last = session.machine.partitions[PARTITIONS - 1]
        began_s = time.process_time()
        for start in range(0, events, at_once):
            routes.deliver(messages[start : start + at_once])
            await asyncio.sleep(0)
        await session.wait_until(lambda: last.applied == events // PARTITIONS)
        took_s = time.process_time() - began_s
        session.applier.stopping.begin()
        jobs.cancel()
    assert handled == events - session.machine.stats.stale
    return took_s / events * 1e6


def main(rounds: int = 7, events: int = PARTITIONS * 500) -> None:
    """Prints a table; the best of some rounds, which take turns so that a busy moment hits all."""
    best = {(variant.name, at_once): float("inf") for variant in VARIANTS for at_once in (1, 64)}
    for _ in range(rounds):
        for variant in VARIANTS:
            for at_once in (1, 64):
                cost = asyncio.run(measure(variant, events, at_once))
                best[variant.name, at_once] = min(best[variant.name, at_once], cost)
    print("| | one by one | 64 at a time |\n|---|---|---|")
    for variant in VARIANTS:
        print(f"| {variant.name} | {best[variant.name, 1]:.1f} µs | {best[variant.name, 64]:.1f} µs |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
