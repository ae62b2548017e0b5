"""Events a second that one worker process can take, and CPU time an event, beside bare clients on the same events.

The events are written to the store's stream beforehand, while the worker is stopped, so that neither the broker's other
clients nor the database have a share in it. The stream is told to keep all of them: otherwise most would be gone by the
time, and the worker would rightly fetch their rows at once.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from typing import Any

import nats
from ringcast_core import row_partitions
from ringcast_wire import WIRE_VERSION, Change, Event, encode, names

from benchmarks.envelope.changes import create_store
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import Child
from benchmarks.envelope.results import Figure, median_of
from benchmarks.envelope.run import Run
from benchmarks.envelope.system import System, running
from benchmarks.envelope.targets import KEY
from benchmarks.envelope.values import value_of

EVENTS = "events"
BARE = ("raw pull", "fetch")
_PARTITIONS = 256
_AT_ONCE = 1_000
_START_S = 60.0
_DRAIN_S = 120.0
_LEASE_SAFE_S = 8.0


def events(run: Run) -> None:
    """Into one partition and into 256, one change an event and sixteen."""
    with run.directory() as directory, running(directory) as system:
        for partitions, changes in ((1, 1), (_PARTITIONS, 1), (_PARTITIONS, 16))[-run.size(3, 1) :]:
            _compare(run, system, partitions, changes)


def _compare(run: Run, system: System, partitions: int, changes: int) -> None:
    count = run.size(40_000, 2_000) // changes
    params = {"events": count, "changes_per_event": changes, "partitions": partitions}
    name = f"{partitions} partition{'s' * (partitions > 1)}, {changes} change{'s' * (changes > 1)} an event"
    with run.case(EVENTS, name, params) as case:
        costs: dict[str, list[float]] = defaultdict(list)
        rates: dict[str, list[float]] = defaultdict(list)
        for number in range(run.size(3, 1)):
            store = f"events{partitions}x{changes}r{number}"
            for who, found in run_coroutine(_round(system, store, partitions, changes, count)).items():
                costs[who].append(found["cpu_s"] / count * 1e6)
                rates[who].append(count / found["took_s"])
        case.figures = {
            **{f"cpu_us_per_event, {who}": median_of(cost, "µs") for who, cost in costs.items()},
            **{
                f"events_per_s, {who}": median_of(rate, "events/s", smaller_is_better=False)
                for who, rate in rates.items()
            },
            "cpu, worker over raw pull": _ratio(costs, "raw pull"),
            "cpu, worker over fetch": _ratio(costs, "fetch"),
        }


def _ratio(costs: dict[str, list[float]], bare: str) -> Figure:
    return median_of([ours / theirs for ours, theirs in zip(costs["worker"], costs[bare], strict=True)], "times")


def relayed(store: str, count: int, partitions: int, changes: int) -> list[tuple[str, bytes]]:
    """Subjects and payloads as the relay writes them. No row changes twice, so that none is left out as outdated."""
    found: list[tuple[str, bytes]] = []
    gathered: dict[int, list[Change]] = defaultdict(list)
    heads: dict[int, int] = defaultdict(int)
    now_ms = int(time.time() * 1000)
    # Some of the last rows are left over in partitions that have too few for another event.
    row_ids = [f"row-{number}" for number in range((count + partitions) * changes)]
    for number, (row_id, partition) in enumerate(zip(row_ids, row_partitions(row_ids, partitions), strict=True)):
        heads[partition] += 1
        gathered[partition].append(Change(row_id, heads[partition], False, value_of(number, 100)))
        if len(gathered[partition]) == changes:
            head = heads[partition]
            payload = encode(Event(WIRE_VERSION, head - changes, head, now_ms, gathered.pop(partition)))
            found.append((names.notify_subject(store, KEY, partition), payload))
    return found[:count]


async def _round(system: System, store: str, partitions: int, changes: int, count: int) -> dict[str, dict[str, float]]:
    """CPU and wall seconds of the worker and of each bare client, for all of the events."""
    await create_store(system.service.address, store, partitions)
    published = relayed(store, count, partitions, changes)
    found: dict[str, dict[str, float]] = {}
    settings: dict[str, Any] = {"servers": system.nats.url, "store": store, "count": count}
    of_worker = {**settings, "who": "worker", "count": count * changes}
    with Child("worker", "benchmarks.envelope.drain", of_worker) as worker:
        await asyncio.to_thread(worker.wait_for, "ready", _START_S)
        worker.process.signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        await publish(system.nats.url, store, published)
        if time.monotonic() - stopped_at > _LEASE_SAFE_S:
            raise TimeoutError(f"publishing {len(published)} events took longer than the worker's lease lasts")
        worker.process.signal(signal.SIGCONT)
        found["worker"] = await asyncio.to_thread(worker.wait_for, "drained", _DRAIN_S)
    for who in BARE:
        with Child(who, "benchmarks.envelope.drain", {**settings, "who": who}) as client:
            found[who] = await asyncio.to_thread(client.wait_for, "drained", _DRAIN_S)
    return found


async def publish(url: str, store: str, published: list[tuple[str, bytes]]) -> None:
    """Puts events into a store's stream, which keeps all of them from now on; returns when the broker has them."""
    connection = await nats.connect(url)
    try:
        stream = connection.jetstream()
        config = (await stream.stream_info(names.notify_stream(store))).config
        config.max_msgs_per_subject = -1
        await stream.update_stream(config)
        for start in range(0, len(published), _AT_ONCE):
            part = published[start : start + _AT_ONCE]
            waiting = [await stream.publish_async(subject, payload) for subject, payload in part]
            await asyncio.gather(*waiting)
    finally:
        await connection.close()
