"""The consumers of a worker, over a real NATS server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import nats
import pytest
from ringcast._bus.bus import Delivery, connected
from ringcast._bus.consumers import Consumers
from ringcast._bus.nats_bus import NatsBus
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast_testkit import PATIENCE_S, NatsServer
from ringcast_wire import names

LOG = worker_log(logging.getLogger("ringcast"))


class Owner:
    """Keeps its lease, has room for events, and notes which subjects the server has confirmed."""

    held = True

    def __init__(self) -> None:
        self.confirmed: frozenset[str] = frozenset()
        self.news = asyncio.Event()

    async def next(self, consumers: int) -> int:
        return 16

    def deliver(self, messages: Sequence[Delivery], /) -> None:
        raise AssertionError(f"no event was published, and {len(messages)} came")

    def filters_confirmed(self, subjects: frozenset[str], /) -> None:
        self.confirmed = subjects
        self.news.set()

    def undelivered(self, subjects: frozenset[str], reason: str, /, *, lost: bool) -> None:
        raise AssertionError(f"{subjects} were given up: {reason}")

    async def until(self, subjects: frozenset[str]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.confirmed != subjects:
                self.news.clear()
                await self.news.wait()


async def test_a_consumer_that_has_no_partition_left_goes_without_a_warning(
    nats_server: NatsServer, store_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers that start at the same time lose and get partitions often: each loss read as a fault of the server."""
    stream, subject = names.notify_stream(store_name), names.notify_subject(store_name, "list", 0)
    config = WorkerConfig(
        store=store_name,
        keys=("list",),
        servers=(nats_server.url,),
        worker_id=f"{store_name}-w",
        update_interval_s=0.01,
    )
    client = await nats.connect(nats_server.url)
    await client.jetstream().add_stream(name=stream, subjects=[subject])
    try:
        async with connected(NatsBus.prepared, config, LOG) as bus:
            owner = Owner()
            consumers = Consumers(bus, config, observer=owner, demand=owner, lease=owner, log=LOG)
            running = asyncio.create_task(consumers.run())
            for _ in range(5):
                for wanted in (frozenset({subject}), frozenset[str]()):
                    consumers.want("list", wanted)
                    await owner.until(wanted)
            # What the server says of the pulls comes before the answer to this.
            await client.jetstream().stream_info(stream)
            await consumers.release()
            running.cancel()
            await asyncio.wait([running])
    finally:
        await client.jetstream().delete_stream(stream)
        await client.close()
    assert "consumer.missing" not in caplog.text
