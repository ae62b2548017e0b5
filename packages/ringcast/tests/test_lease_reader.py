"""Reading leases from a real server: several at one moment, and that workers hear of nobody's refreshes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import nats
import pytest
from ringcast._bus.bus import Bus
from ringcast._bus.kv import NatsBucket, NatsBuckets
from ringcast._common.log import worker_log
from ringcast._coordination.lease_reader import LeaseReader
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.lease_reading import MOST_READ, LeaseReadings
from ringcast._protocol.membership import Membership
from ringcast_testkit import PATIENCE_S
from ringcast_wire import LeaseRecord, NodeRecord, encode_record, limits, names
from ringcast_wire.buckets import BucketAnswer

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

VALUE = encode_record(LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1))


@asynccontextmanager
async def reading(
    connection: Bus, leases: list[str], changed: Callable[[], None]
) -> AsyncIterator[tuple[Membership, LeaseReader]]:
    """A reader of a worker whose key has members with these leases, of which the first is its own."""
    membership = Membership()
    readings = LeaseReadings(["k"], membership, grace_s=0.0)
    records = [NodeRecord(slot=slot, lease=lease, incarnation="i") for slot, lease in enumerate(leases)]
    entries = {f"k.{record.lease}": Entry(1, encode_record(record)) for record in records}
    membership.nodes.replace(entries)
    reader = LeaseReader(
        NatsBuckets(connection), readings, lambda: leases[0], changed, worker_log(logging.getLogger("ringcast"))
    )
    task = asyncio.create_task(reader.run())
    try:
        yield membership, reader
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(changed: asyncio.Event, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            changed.clear()
            await changed.wait()


async def test_as_many_as_there_may_be_are_read_in_one_answer(connection: Bus, store_name: str) -> None:
    leases = [f"{store_name}-{number}" for number in range(limits.MAX_WORKERS_PER_KEY)]
    bucket = NatsBucket(connection, names.LEASES_BUCKET)
    await asyncio.gather(*(bucket.put(lease, VALUE, last=0) for lease in leases))
    changed = asyncio.Event()
    async with reading(connection, leases, changed.set) as (membership, _):
        await until(changed, lambda: membership.complete)
        assert all(membership.alive(lease) for lease in leases)


async def test_what_was_given_back_or_never_was_has_ended(connection: Bus, store_name: str) -> None:
    own, back, never = (f"{store_name}-{name}" for name in ("own", "back", "never"))
    bucket = NatsBucket(connection, names.LEASES_BUCKET)
    await bucket.put(own, VALUE, last=0)
    await bucket.delete(back, last=await bucket.put(back, VALUE, last=0))
    changed = asyncio.Event()
    async with reading(connection, [own, back, never], changed.set) as (membership, _):
        await until(changed, lambda: membership.complete)
        assert membership.alive(own)
        assert membership.ended(back)
        assert membership.ended(never)


async def test_what_is_no_lease_is_not_asked_for(connection: Bus, store_name: str) -> None:
    """One such record made each question of every worker one that the server refuses."""
    own, other = f"{store_name}-own", f"{store_name}-other"
    bucket = NatsBucket(connection, names.LEASES_BUCKET)
    for lease in (own, other):
        await bucket.put(lease, VALUE, last=0)
    changed = asyncio.Event()
    async with reading(connection, [own, ">", "*", "", "x" * 2_000_000, other], changed.set) as found:
        membership, reader = found
        await until(changed, lambda: membership.complete or reader.failures > 0)
        assert not reader.failures
        assert membership.alive(other)
        assert membership.nodes.unreadable == 4


async def test_where_there_is_no_lease_at_all_nothing_is_decided(connection: Bus, store_name: str) -> None:
    own, other = f"{store_name}-own", f"{store_name}-other"
    changed = asyncio.Event()
    async with reading(connection, [own, other], changed.set) as (membership, reader):
        readings = reader._readings
        await until(changed, lambda: membership.ended(own))
        assert not membership.complete
        assert not membership.ended(other)
        assert not readings.reports
        bucket = NatsBucket(connection, names.LEASES_BUCKET)
        await bucket.put(own, VALUE, last=0)
        await until(changed, lambda: membership.complete)
        assert membership.ended(other)


async def test_an_answer_that_is_not_whole_is_not_taken(
    connection: Bus, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of it gets lost where the server drops what a slow client does not take."""
    leases = [f"{store_name}-{number}" for number in range(9)]
    bucket = NatsBucket(connection, names.LEASES_BUCKET)
    for lease in leases:
        await bucket.put(lease, VALUE, last=0)
    changed, dropped = asyncio.Event(), 0
    take = BucketAnswer.take

    def take_some(self: BucketAnswer, headers: Mapping[str, str], data: bytes) -> bool:
        nonlocal dropped
        if not dropped and headers.get("Nats-Subject", "").endswith("-3"):
            dropped += 1
            return False
        return take(self, headers, data)

    monkeypatch.setattr(BucketAnswer, "take", take_some)
    async with reading(connection, leases, changed.set) as (membership, _):
        await until(changed, lambda: membership.complete)
        assert dropped == 1
        assert all(membership.alive(lease) for lease in leases)


async def test_no_worker_watches_the_leases(store: Store) -> None:
    await store.create()
    client = await nats.connect(store.nats_url)
    try:
        js = client.jetstream()
        async with store.worker("a") as one, store.worker("b") as two:
            await one.wait_ready(timeout_s=PATIENCE_S)
            await two.wait_ready(timeout_s=PATIENCE_S)
            info = await js.stream_info(f"KV_{names.LEASES_BUCKET}")
            assert info.state.consumer_count == 0
            assert info.state.messages >= 2
            nodes = await js.stream_info(f"KV_{names.nodes_bucket(store.name)}")
            assert nodes.state.consumer_count == 2
    finally:
        await client.close()


def test_a_question_is_smaller_than_a_server_answers_at_most() -> None:
    assert limits.MAX_WORKERS_PER_KEY < MOST_READ < 1_024
