"""How often a list is handed over when workers come and go at about the same time: counted, with real servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from ringcast import Change, Worker
from ringcast.topology import Member, read_topology
from ringcast_client import RowWrite
from ringcast_testkit import PATIENCE_S, History, WorkerProcess, until
from ringcast_wire import NodePhase

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

PARTITIONS = 64
ROWS = 640


async def fill(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    async for _ in store.client.bulk_write(store.name, "list", [RowWrite(f"r{i}", "v") for i in range(ROWS)]):
        pass


def owned_once(workers: list[Worker]) -> bool:
    owned = sorted(number for worker in workers for number in worker.owned("list"))
    loaded = all(key.loaded == key.owned for worker in workers for key in worker.health().keys)
    return loaded and owned == list(range(PARTITIONS))


async def test_workers_that_start_one_after_the_other_get_each_row_once(store: Store) -> None:
    await fill(store)
    rows: Counter[str] = Counter()

    def handler(change: Change) -> None:
        rows[change.row_id] += 1

    workers = [store.worker(f"w{i}", handler=handler, stabilisation_s=3.0, settle_s=0.5) for i in range(6)]

    async def start(number: int) -> None:
        await asyncio.sleep(0.2 * number)
        await workers[number].start()

    try:
        await asyncio.gather(*(start(number) for number in range(6)))
        await until(lambda: owned_once(workers) and len(rows) == ROWS)
        assert all(worker.owned("list") for worker in workers)
        assert set(rows.values()) == {1}
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
    assert sum(rows.values()) == ROWS  # nobody takes over from those that leave together


async def test_a_rolling_restart_moves_little_more_than_what_restarts(store: Store) -> None:
    """Each worker that comes back takes the place of the next that leaves, and owns nothing until then."""
    await fill(store)
    calls = 0

    def handler(change: Change) -> None:
        nonlocal calls
        calls += 1

    async def started(number: int) -> Worker:
        worker = store.worker(f"w{number}", handler=handler, stabilisation_s=1.0, settle_s=0.5)
        await worker.start()
        return worker

    workers = list(await asyncio.gather(*(started(number) for number in range(5))))
    try:
        await until(lambda: owned_once(workers))
        before = calls
        for number in range(5):
            await workers[number].stop()
            others = [worker for worker in workers if worker is not workers[number]]
            await until(lambda others=others: owned_once(others))  # type: ignore[misc]
            workers[number] = await started(number)
        await until(lambda: owned_once(workers) and all(worker.owned("list") for worker in workers))
        moved = calls - before
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))
    assert ROWS <= moved < 1.6 * ROWS  # 6/5 of it; without the window twice as much and more


async def test_one_that_leaves_serves_until_it_goes_and_one_that_joins_is_ready(store: Store) -> None:
    await fill(store)
    heard: set[str | None] = set()
    leaves = store.worker("b", handler=lambda change: heard.add(change.value), stabilisation_s=60.0)
    comes = store.worker("c", stabilisation_s=60.0)
    async with store.worker("first") as first:
        await first.wait_ready(timeout_s=PATIENCE_S)
        await leaves.start()
        assert leaves.health().ready
        assert leaves.health().keys[0].joining
        assert not leaves.owned("list")
    await leaves.wait_ready(timeout_s=PATIENCE_S)  # nobody else owned anything, so the wait was over
    assert len(leaves.owned("list")) == PARTITIONS
    assert not leaves.health().keys[0].joining

    async with store.worker("a") as stays:
        await until(lambda: stays.owned("list") and owned_once([stays, leaves]))
        before = stays.owned("list")
        await comes.start()
        leaving = asyncio.create_task(leaves.stop())
        async with asyncio.timeout(PATIENCE_S):
            while NodePhase.LEAVING not in {member.phase for member in await members(store)}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        row = next(row.row_id for row in leaves.rows("list"))
        partition, version = await store.put(row, "late")
        await leaves.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert "late" in heard
        assert stays.owned("list") == before
        assert not comes.owned("list")
        leaving.cancel()
        await asyncio.wait({leaving})
        await until(lambda: comes.owned("list") and owned_once([stays, comes]))
        assert stays.owned("list") == before  # the one has the place of the other
    await comes.stop()


async def members(store: Store) -> tuple[Member, ...]:
    return (await read_topology(store.nats_url, store.name, "list")).members


async def test_a_death_is_acted_upon_while_others_wait(store: Store) -> None:
    await fill(store)
    stays, comes = store.worker("a"), store.worker("c", stabilisation_s=60.0)
    history = History()
    dies = WorkerProcess(f"{store.name}-b", servers=store.nats_url, store=store.name, keys=("list",), history=history)
    async with stays:
        with dies:
            await until(lambda: 0 < len(stays.owned("list")) < PARTITIONS)
            await comes.start()
            dies.kill()
            await until(lambda: len(stays.owned("list")) == PARTITIONS)
            assert comes.health().keys[0].joining
        await comes.stop()
