"""A handler that is slow, or stuck, while many events pile up: memory stays bounded, nothing is lost, and no more is
taken in than is applied in good time."""

from __future__ import annotations

import asyncio
import itertools
import time
import tracemalloc
from typing import TYPE_CHECKING

import nats
import pytest
from ringcast import Change, Worker
from ringcast_client import ConfigServiceClient
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer
from ringcast_wire import WIRE_VERSION, Event, encode, names
from ringcast_wire import Change as WireChange

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

EVENTS = 100_000
PARTITIONS = 8
VALUE_CHARS = 200
MOST_BYTES = 16 * 1024 * 1024
"""Stated in the README."""


async def test_memory_is_bounded_with_a_hundred_thousand_events_pending(
    nats_server: NatsServer, config_service: ConfigServiceProcess
) -> None:
    async with ConfigServiceClient(config_service.address) as service:
        await service.create_store("s", partition_count=PARTITIONS)
    client = await nats.connect(nats_server.url)
    go_on, begun = asyncio.Event(), asyncio.Event()
    seen: dict[str, int] = {}
    fell: list[Change] = []

    async def handler(change: Change) -> None:
        if change.version <= seen.get(change.row_id, 0):
            fell.append(change)
        begun.set()
        await go_on.wait()
        seen[change.row_id] = change.version

    heads = [0] * PARTITIONS
    try:
        js = client.jetstream()
        stream = names.notify_stream("s")
        # No heads within the test: the events are made here, and the service does not know of them.
        async with Worker(
            store="s", keys=["list"], servers=nats_server.url, worker_id="w", handler=handler, heads_s=3600.0
        ) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            config_service.kill()  # else it sees to it that the stream keeps fewer events of each partition
            config = (await js.stream_info(stream)).config
            config.max_msgs_per_subject = -1
            await js.update_stream(config)
            tracemalloc.start()
            try:
                for number in range(EVENTS):
                    row_id = f"row{number}"
                    partition = row_partition(row_id, PARTITIONS)
                    prev = heads[partition]
                    heads[partition] = prev + 1
                    change = WireChange(row_id, prev + 1, False, f"{number:x>{VALUE_CHARS}}")
                    event = encode(Event(WIRE_VERSION, prev, prev + 1, 1, [change]))
                    await client.publish(names.notify_subject("s", "list", partition), event)
                    if number % 500 == 0:
                        await client.flush()
                await client.flush()
                async with asyncio.timeout(PATIENCE_S):
                    await begun.wait()
                    while (await js.stream_info(stream)).state.messages < EVENTS:  # it stores what it got in a moment
                        pass
                most = 8 * worker.config.max_parallel_handlers
                await worker.wait_until("list", lambda: worker.stats("list").events >= most, timeout_s=PATIENCE_S)
                info = await js.consumer_info(stream, names.consumer_name("ringcast", worker.config.worker_id))
                assert info.num_ack_pending == most
                assert info.num_pending is not None
                assert info.num_pending >= EVENTS - most
                _, peak = tracemalloc.get_traced_memory()
                gathered = worker.stats("list").events
            finally:
                tracemalloc.stop()
            assert gathered < EVENTS / 4, "pulling did not pause"
            assert peak < MOST_BYTES, f"{peak} bytes"
            go_on.set()
            for partition, head in enumerate(heads):
                await worker.wait_for("list", partition, head, timeout_s=PATIENCE_S)
            assert len(seen) == EVENTS
            assert worker.row_count("list") == EVENTS
            assert not fell
    finally:
        await client.close()


async def test_no_more_events_are_taken_in_than_a_handler_that_blocks_applies_in_time(store: Store) -> None:
    """While a plain function runs nothing can be acknowledged, nor reported to be in progress."""
    await store.create(partition_count=1)
    events = 60  # fewer than one request may ask for, so that it is open while the handler blocks
    slow: list[Change] = []

    def handler(change: Change) -> None:
        time.sleep(0.1)
        slow.append(change)

    async with store.worker(handler=handler, ack_wait_s=3.0, max_parallel_handlers=1, heads_s=3600.0) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        client = await nats.connect(store.nats_url)
        try:
            for number in range(events):
                row = WireChange(f"row{number}", number + 1, False, "v")
                event = encode(Event(WIRE_VERSION, number, number + 1, 1, [row]))
                await client.publish(names.notify_subject(store.name, "list", 0), event)
            await client.flush()
        finally:
            await client.close()
        await worker.wait_for("list", 0, events, timeout_s=PATIENCE_S)
        assert len(slow) == events
        (counters,) = worker._life.runtime.joined.consumers.counters.values()  # type: ignore[union-attr]
        assert counters.messages >= events
        assert counters.redeliveries < 0.03 * counters.messages


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "async"])
async def test_a_handler_that_blocks_leaves_a_part_of_the_time_to_the_event_loop(store: Store, waits: bool) -> None:
    """Answers to heartbeats and pulls take several turns of it: one after each call would not do."""
    await store.create(partition_count=1)
    calls: list[tuple[float, float]] = []

    def block(_change: Change) -> None:
        began_s = time.monotonic()
        time.sleep(0.1)
        calls.append((began_s, time.monotonic()))

    async def block_all_the_same(change: Change) -> None:
        block(change)

    async with store.worker(handler=block_all_the_same if waits else block) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for number in range(10):
            _, version = await store.put(f"row{number}", "v")
        await worker.wait_for("list", 0, version, timeout_s=PATIENCE_S)
    assert len(calls) == 10
    for (began_s, ended_s), (next_s, _) in itertools.pairwise(calls):
        assert next_s - ended_s >= (ended_s - began_s) / 20
