"""The process that takes events as fast as it can: a worker, or a bare client of the broker.

It says ``ready``, and ``drained`` with the CPU and wall seconds that all of the events took.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import nats
import ringcast
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from ringcast_wire import names

from benchmarks.envelope.reporting import say
from benchmarks.envelope.targets import KEY

_BATCH = 256
_FETCH = 500
_NS = 1_000_000_000
_CONSUMER = "bare"


class Stopwatch:
    """Ends with the last of so many."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._cpu_s = 0.0
        self._wall_s: float | None = None
        self.done = asyncio.Event()
        self.found: dict[str, float] = {}

    def start(self, *, wall: bool) -> None:
        """CPU time counts from here: what comes before the first event is handed over is a part of its cost.

        ``wall``: so does wall time; otherwise that counts from the first event.
        """
        self._cpu_s = time.process_time()
        if wall:
            self._wall_s = time.perf_counter()

    def count(self) -> None:
        """One more."""
        if self._wall_s is None:
            self._wall_s = time.perf_counter()
        self._left -= 1
        if self._left == 0:
            now_s = time.perf_counter()
            self.found = {"cpu_s": time.process_time() - self._cpu_s, "took_s": now_s - self._wall_s}
            self.done.set()


async def worker(settings: dict[str, Any], watch: Stopwatch) -> None:
    """A worker with a handler that does nothing."""

    def handler(_change: ringcast.Change) -> None:
        watch.count()

    # The service knows nothing of these events: it is not asked what the revisions are.
    where = {"servers": settings["servers"], "store": settings["store"], "keys": [KEY]}
    async with ringcast.Worker(**where, worker_id="w", heads_s=3600.0, lease_refresh_s=1.0, handler=handler) as running:
        await running.wait_ready()
        # It is stopped now until the events are there, which takes no CPU time of its own.
        watch.start(wall=False)
        say("ready")
        await watch.done.wait()
        say("drained", **watch.found, gaps=running.stats().gaps)


async def raw_pull(settings: dict[str, Any], watch: Stopwatch) -> None:
    """The least that a client can do: open requests, a callback, an acknowledgement for each message."""
    connection = await nats.connect(settings["servers"])
    stream = await _consumer(connection, settings["store"])
    inbox, left = connection.new_inbox(), 0
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{_CONSUMER}"
    wanted = json.dumps({"batch": _BATCH, "expires": 30 * _NS}).encode()

    async def on_message(msg: Msg) -> None:
        nonlocal left
        if not msg.reply:
            return
        await connection.publish(msg.reply)
        watch.count()
        left -= 1
        if left == 0:
            left = _BATCH
            await connection.publish(subject, wanted, reply=inbox)

    await connection.subscribe(inbox, cb=on_message)
    say("ready")
    watch.start(wall=True)
    left = _BATCH
    await connection.publish(subject, wanted, reply=inbox)
    await watch.done.wait()
    say("drained", **watch.found)
    await connection.close()


async def fetch(settings: dict[str, Any], watch: Stopwatch) -> None:
    """What the documentation of the client shows."""
    connection = await nats.connect(settings["servers"])
    stream = await _consumer(connection, settings["store"])
    subscription = await connection.jetstream().pull_subscribe_bind(consumer=_CONSUMER, stream=stream)
    say("ready")
    watch.start(wall=True)
    while not watch.done.is_set():
        for msg in await subscription.fetch(_FETCH, timeout=30):
            await msg.ack()
            watch.count()
    say("drained", **watch.found)
    await connection.close()


async def _consumer(connection: Client, store: str) -> str:
    """A new consumer of all events of a store; returns its stream."""
    stream, manager = names.notify_stream(store), connection.jetstream()
    for consumer in await manager.consumers_info(stream):
        await manager.delete_consumer(stream, consumer.name)
    settings = api.ConsumerConfig(
        durable_name=_CONSUMER,
        deliver_policy=api.DeliverPolicy.ALL,
        ack_policy=api.AckPolicy.EXPLICIT,
        max_ack_pending=4_096,
    )
    await manager.add_consumer(stream, settings)
    return stream


async def main(settings: dict[str, Any]) -> None:
    run = {"worker": worker, "raw pull": raw_pull, "fetch": fetch}[settings["who"]]
    await run(settings, Stopwatch(settings["count"]))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
