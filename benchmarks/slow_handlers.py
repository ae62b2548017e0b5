"""How many events are delivered again while a handler is slow: to a worker, and to a consumer whose pulls are fixed.

Usage: python -m benchmarks.slow_handlers [ROUNDS [EVENTS]]. All settings of the worker are the defaults. Its peer is a
pull consumer of the same stream that has the same time to acknowledge, and asks for as many events as clients of NATS
do by default, however slow its handler is. Each has a thread of its own, and both hear of the same writes. The handlers
of each round block, but for those of a last one, which wait in the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from prometheus_client import CollectorRegistry
from ringcast import Change, Worker
from ringcast.metrics import PrometheusMetrics
from ringcast_client import ConfigServiceClient
from ringcast_core import row_partition
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import names

STORE: Final = "bench"
WORKER: Final = "worker"
PARTITIONS: Final = 32
CALL_S: Final = (0.15, 0.25)
"""The shortest and the longest call of a handler."""
PARALLEL: Final = 16
"""Calls at once of a handler that waits in the event loop, as by default in a worker."""
FIXED: Final = 500
"""Events that the peer asks for: what clients of NATS that consume without end ask for by default. They ask for half as
many when they have handled half of them."""

Handler = Callable[[object], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What a consumer was sent until its handler had had every event."""

    delivered: int
    redelivered: int
    took_s: float
    failed_heartbeats: int = 0

    @property
    def share(self) -> float:
        """Of the deliveries, those that were not the first of their event."""
        return self.redelivered / self.delivered if self.delivered else 0.0

    def __str__(self) -> str:
        return f"{self.redelivered} / {self.delivered} = {self.share:.1%} in {self.took_s:.0f} s"


def slow(call_s: tuple[float, float], *, blocks: bool) -> Handler:
    """A handler whose calls take between so many seconds; the lengths are the same in each round."""
    random = Random(12)

    def block(_event: object) -> None:
        time.sleep(random.uniform(*call_s))

    async def wait(_event: object) -> None:
        await asyncio.sleep(random.uniform(*call_s))

    return block if blocks else wait


async def serve_worker(
    nats_url: str, address: str, key: str, handler: Handler, ready: threading.Event, written: threading.Event
) -> Deliveries:
    """A worker, until it has handed over all that was written; ``ready`` is set when it hears of changes."""
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    calls: Callable[[Change], Awaitable[None] | None] = handler
    async with Worker(
        store=STORE, keys=[key], servers=nats_url, worker_id=WORKER, handler=calls, metrics=metrics
    ) as worker:
        await worker.wait_ready()
        began_s = time.monotonic()
        ready.set()
        await asyncio.to_thread(written.wait)
        async with ConfigServiceClient(address) as client:
            heads = await client.heads(STORE, key)
        for partition, head in enumerate(heads):
            await worker.wait_for(key, partition, head, timeout_s=3600.0)
        labels = {"store": STORE, "worker_id": WORKER, "consumer": names.consumer_name("ringcast", WORKER)}
        delivered = registry.get_sample_value("config_consumer_messages_total", labels)
        redelivered = registry.get_sample_value("config_consumer_redeliveries_total", labels)
        assert delivered is not None
        assert redelivered is not None
        labels = {"store": STORE, "key": key, "worker_id": WORKER}
        failed = registry.get_sample_value("config_heartbeat_failures_total", labels)
        assert failed is not None
        return Deliveries(int(delivered), int(redelivered), time.monotonic() - began_s, int(failed))


class FixedPulls:
    """A pull consumer that has ``FIXED`` events or half as many wait for its handler, however slow that is."""

    def __init__(self, client: Client, subject: str, handler: Handler, events: int) -> None:
        self._client = client
        self._subject = subject
        self._inbox = client.new_inbox()
        self._handler = handler
        self._events = events
        self._handled: set[int] = set()
        self._since_asked = 0
        self._messages: asyncio.Queue[Msg] = asyncio.Queue()
        self._all = asyncio.Event()
        self.delivered = 0
        self.redelivered = 0

    async def ask(self, events: int) -> None:
        """Asks for so many more."""
        request = {"batch": events, "expires": 3600 * 10**9}
        await self._client.publish(self._subject, json.dumps(request).encode(), reply=self._inbox)

    async def run(self, parallel: int) -> None:
        """Until each event has been handled."""
        await self._client.subscribe(self._inbox, cb=self._take)
        await self.ask(FIXED)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._handle()) for _ in range(parallel)]
            await self._all.wait()
            for task in running:
                task.cancel()

    async def _take(self, message: Msg) -> None:
        self.delivered += 1
        self.redelivered += message.metadata.num_delivered > 1
        self._messages.put_nowait(message)

    async def _handle(self) -> None:
        while True:
            message = await self._messages.get()
            waits = self._handler(message)
            if waits is not None:
                await waits
            await message.ack()
            await asyncio.sleep(0)  # the acknowledgement goes out
            self._handled.add(message.metadata.sequence.stream)
            if len(self._handled) == self._events:
                self._all.set()
            self._since_asked += 1
            if self._since_asked == FIXED // 2:
                self._since_asked = 0
                await self.ask(FIXED // 2)


async def serve_fixed_pulls(
    nats_url: str, key: str, events: int, handler: Handler, ready: threading.Event, *, ack_wait_s: float, parallel: int
) -> Deliveries:
    """The peer, until its handler has had every event."""
    client = await nats.connect(nats_url)
    try:
        jetstream, stream = client.jetstream(), names.notify_stream(STORE)
        config = api.ConsumerConfig(
            durable_name="fixed",
            deliver_policy=api.DeliverPolicy.NEW,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=ack_wait_s,
            filter_subject=names.notify_key_subjects(STORE, key),
        )
        await jetstream.add_consumer(stream, config)
        pulls = FixedPulls(client, f"$JS.API.CONSUMER.MSG.NEXT.{stream}.fixed", handler, events)
        began_s = time.monotonic()
        ready.set()
        await pulls.run(parallel)
        await jetstream.delete_consumer(stream, "fixed")
        return Deliveries(pulls.delivered, pulls.redelivered, time.monotonic() - began_s)
    finally:
        await client.close()


async def write(address: str, key: str, events: int) -> None:
    """Each change is an event: of those that are written at once no two are of one partition, lest they be merged."""
    async with ConfigServiceClient(address) as client:
        for start in range(0, events, PARTITIONS):
            at_once = [_row_of(partition, start) for partition in range(min(PARTITIONS, events - start))]
            await asyncio.gather(*(client.put(STORE, key, row_id, "value") for row_id in at_once))


def measure(
    nats_url: str,
    address: str,
    key: str,
    events: int,
    *,
    blocks: bool,
    call_s: tuple[float, float] = CALL_S,
    ack_wait_s: float = 30.0,
) -> tuple[Deliveries, Deliveries]:
    """The worker and its peer, side by side."""
    parallel = 1 if blocks else PARALLEL
    ready, written = (threading.Event(), threading.Event()), threading.Event()
    both: tuple[Coroutine[Any, Any, Deliveries], ...] = (
        serve_worker(nats_url, address, key, slow(call_s, blocks=blocks), ready[0], written),
        serve_fixed_pulls(
            nats_url, key, events, slow(call_s, blocks=blocks), ready[1], ack_wait_s=ack_wait_s, parallel=parallel
        ),
    )
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(asyncio.run, one) for one in both]
        for event, one in zip(ready, found, strict=True):
            while not event.wait(0.1) and not one.done():
                pass
        asyncio.run(write(address, key, events))
        written.set()
        return found[0].result(), found[1].result()


def main(rounds: int = 3, events: int = 450) -> None:
    """Prints a table, a line after each round."""
    print(f"{events} events, calls of {CALL_S[0]:g} to {CALL_S[1]:g} s\n")
    print(
        "| handler | worker: redelivered / delivered | failed heartbeats | fixed pulls |\n|---|---|---|---|", flush=True
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        NatsServer(Path(directory, "nats")) as server,
        ConfigServiceProcess(
            Path(directory, "service"), nats_url=server.url, database=f"sqlite:{directory}/ringcast.db"
        ) as service,
    ):
        prepare(service.address)
        for number in range(rounds + 1):
            blocks = number < rounds
            ours, fixed = measure(server.url, service.address, f"key-{number}", events, blocks=blocks)
            print(f"| {'blocks' if blocks else 'async'} | {ours} | {ours.failed_heartbeats} | {fixed} |", flush=True)


def _row_of(partition: int, number: int) -> str:
    names_of_it = (f"row-{number}-{count}" for count in itertools.count())
    return next(name for name in names_of_it if row_partition(name, PARTITIONS) == partition)


def prepare(address: str) -> None:
    """Makes the store."""

    async def create() -> None:
        async with ConfigServiceClient(address) as client:
            await client.create_store(STORE, partition_count=PARTITIONS)

    asyncio.run(create())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
