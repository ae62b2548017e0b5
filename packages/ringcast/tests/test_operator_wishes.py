"""Pins and drains from outside: what they do to real workers of exclusive ownership, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import nats
import pytest
from ringcast import Change, Worker
from ringcast.topology import read_topologies, read_topology
from ringcast.wishes import (
    KeyWishes,
    drain_worker,
    follow_drain,
    pin_partition,
    read_wishes,
    undrain_worker,
    unpin_partition,
)
from ringcast_testkit import PATIENCE_S
from ringcast_wire import (
    InvalidInputError,
    NodePhase,
    Strategy,
    UnavailableError,
    UnknownKeyError,
    UnknownStoreError,
    names,
)

PARTITIONS = 8
TIMES = {"strategy": Strategy.STICKY, "lease_ttl_ms": 2_000, "call_bound_ms": 200}


async def _handle(change: Change) -> None:
    """Takes a change."""


@pytest.fixture
async def workers(store: Any) -> AsyncIterator[dict[str, Worker]]:
    """Two workers of a store, by name, each with half of the partitions."""
    await store.create(partition_count=PARTITIONS, **TIMES)
    await store.put("row", "1")
    async with AsyncExitStack() as stack:
        found = {name: await stack.enter_async_context(store.worker(name, handler=_handle)) for name in "ab"}
        for worker in found.values():
            await _owns(worker, PARTITIONS // 2)
        yield found


async def _owns(worker: Worker, count: int) -> None:
    await worker.wait_until("list", lambda: len(worker.owned("list")) == count, timeout_s=PATIENCE_S)


async def test_a_drained_worker_gives_up_what_it_has_and_gets_it_back(store: Any, workers: dict[str, Worker]) -> None:
    one, two, url = workers["a"], workers["b"], store.nats_url
    name = f"{store.name}-a"
    (drain,) = await drain_worker(url, store.name, name)
    assert (drain.key, drain.worker_id, drain.others) == ("list", name, 1)
    assert await read_wishes(url, store.name) == [KeyWishes(store.name, "list", {}, (name,))]
    counts = [each.partitions async for (each,) in follow_drain(url, store.name, name, ["list"])]
    assert counts[-1] == 0
    assert counts == sorted(counts, reverse=True)
    await _owns(two, PARTITIONS)
    await _owns(one, 0)
    assert await undrain_worker(url, store.name, name, "list") == ["list"]
    await _owns(one, PARTITIONS // 2)
    assert await read_wishes(url, store.name) == []


async def test_a_drain_waits_while_no_other_worker_takes_partitions(store: Any, workers: dict[str, Worker]) -> None:
    url = store.nats_url
    for name, others in (("a", 1), ("b", 0)):
        (drain,) = await drain_worker(url, store.name, f"{store.name}-{name}", "list")
        assert drain.others == others
        if name == "a":
            await _owns(workers["b"], PARTITIONS)
    async with asyncio.timeout(PATIENCE_S):
        async for (each,) in follow_drain(url, store.name, f"{store.name}-b", ["list"]):
            assert (each.partitions, each.others) == (PARTITIONS, 0)
            break
    await undrain_worker(url, store.name, f"{store.name}-a")
    async for (each,) in follow_drain(url, store.name, f"{store.name}-b", ["list"]):
        last = each
    assert (last.partitions, last.others) == (0, 1)


async def test_a_pinned_partition_moves_to_its_worker_and_stays(store: Any, workers: dict[str, Worker]) -> None:
    one, url, name = workers["a"], store.nats_url, f"{store.name}-a"
    partition = min(workers["b"].owned("list"))
    assert await pin_partition(url, store.name, "list", partition, name)
    await one.wait_until("list", lambda: partition in one.owned("list"), timeout_s=PATIENCE_S)
    assert await read_wishes(url, store.name, "list") == [KeyWishes(store.name, "list", {partition: name}, ())]
    topology = await read_topology(url, store.name, "list")
    assert topology.exclusive is not None
    assert topology.exclusive.pins == {partition: name}
    await drain_worker(url, store.name, name, "list")
    assert not await pin_partition(url, store.name, "list", partition, name), "a pin to a drained worker counts not"
    await _owns(one, 0)
    assert await unpin_partition(url, store.name, "list", partition) == name
    with pytest.raises(InvalidInputError, match=f"partition {partition} of {store.name}/list is not pinned"):
        await unpin_partition(url, store.name, "list", partition)


async def test_the_topology_is_what_the_table_says(store: Any, workers: dict[str, Worker]) -> None:
    url = store.nats_url
    (topology,) = await read_topologies(url, store.name)
    exclusive = topology.exclusive
    assert exclusive is not None
    assert exclusive.leader in {f"{store.name}-{name}" for name in "ab"}
    assert exclusive.epoch >= max(each.token for each in exclusive.partitions) > 0
    assert [each.owner for each in exclusive.partitions] == list(topology.owners)
    assert {each.phase for each in exclusive.partitions} == {"held"}
    assert not exclusive.unreadable
    for member in topology.members:
        worker = workers[member.worker_id.removeprefix(f"{store.name}-")]
        assert member.slot is None
        assert member.alive
        assert member.pid
        assert member.phase is NodePhase.ACTIVE
        assert set(member.partitions) == worker.owned("list")


async def test_what_is_refused(store: Any, workers: dict[str, Worker]) -> None:
    url, name = store.nats_url, f"{store.name}-a"
    with pytest.raises(UnknownStoreError, match="store 'nowhere' does not exist"):
        await drain_worker(url, "nowhere", name)
    with pytest.raises(UnknownKeyError, match="has no config key 'other'"):
        await drain_worker(url, store.name, name, "other")
    with pytest.raises(UnknownKeyError, match="has no config key 'other'"):
        await pin_partition(url, store.name, "other", 0, name)
    with pytest.raises(InvalidInputError, match=f"no worker 'c' takes part in {store.name}/list"):
        await pin_partition(url, store.name, "list", 0, "c")
    with pytest.raises(InvalidInputError, match=f"no worker 'c' takes part in any key of store '{store.name}'"):
        await drain_worker(url, store.name, "c")
    with pytest.raises(InvalidInputError, match=f"worker '{name}' is not drained in {store.name}"):
        await undrain_worker(url, store.name, name)
    for partition in (-1, PARTITIONS):
        with pytest.raises(InvalidInputError, match=f"partition {partition} is out of range: the store has .* 0 to 7"):
            await pin_partition(url, store.name, "list", partition, name)
        with pytest.raises(InvalidInputError, match=f"partition {partition} is out of range"):
            await unpin_partition(url, store.name, "list", partition)
    for words in (("a b", name), (store.name, "a.b")):
        with pytest.raises(InvalidInputError, match="is not a valid name"):
            await drain_worker(url, *words)
    assert await read_wishes(url, store.name) == []


async def test_a_store_of_another_strategy_has_no_wishes(store: Any) -> None:
    await store.create(partition_count=2)
    sentence = f"store '{store.name}' has mode PARTITIONED and strategy jump: its partitions can't be pinned"
    for refused in (
        read_wishes(store.nats_url, store.name),
        drain_worker(store.nats_url, store.name, "a"),
        pin_partition(store.nats_url, store.name, "list", 0, "a"),
    ):
        with pytest.raises(InvalidInputError, match=sentence):
            await refused


async def test_many_writers_lose_nothing(store: Any, workers: dict[str, Worker]) -> None:
    """Each compare-and-set that fails starts again from what stands there; with more than five it says so."""
    pins = [pin_partition(store.nats_url, store.name, "list", number, f"{store.name}-b") for number in range(3)]
    assert await asyncio.gather(*pins) == [True] * 3
    (wishes,) = await read_wishes(store.nats_url, store.name)
    assert wishes.pins == dict.fromkeys(range(3), f"{store.name}-b")


async def test_a_record_that_can_not_be_read_is_shown_and_left_alone(store: Any, workers: dict[str, Worker]) -> None:
    client = await nats.connect(store.nats_url)
    try:
        bucket = names.wishes_bucket(store.name)
        await client.jetstream().publish(f"$KV.{bucket}.{names.wishes_key('list')}", b'{"later": 1}')
        (wishes,) = await read_wishes(store.nats_url, store.name)
        assert "can't be read" in wishes.unreadable_because
        topology = await read_topology(store.nats_url, store.name, "list")
        assert topology.exclusive is not None
        assert list(topology.exclusive.unreadable) == ["list.wishes"]
        with pytest.raises(UnavailableError, match=f"what is wanted of {store.name}/list can't be read, so nothing"):
            await drain_worker(store.nats_url, store.name, f"{store.name}-a")
        deleted = {"KV-Operation": "DEL"}  # as the config service ends the wishes of a key that it purges
        await client.jetstream().publish(f"$KV.{bucket}.{names.wishes_key('list')}", b"", headers=deleted)
        assert await pin_partition(store.nats_url, store.name, "list", 0, f"{store.name}-b")
    finally:
        await client.close()
