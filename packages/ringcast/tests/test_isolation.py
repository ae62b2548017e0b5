"""A slow or stuck handler holds up its own row, and not what else the worker has to tell the application."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringcast import Change
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S

if TYPE_CHECKING:
    from .conftest import Store

PARTITIONS = 8
ROWS = 200


async def test_a_loss_is_told_at_once_while_calls_of_other_partitions_run(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    stuck, go_on, revoked = asyncio.Event(), asyncio.Event(), asyncio.Event()
    running: set[int] = set()
    gone: set[int] = set()
    late: list[Change] = []

    async def handler(change: Change) -> None:
        if change.partition in gone:
            late.append(change)
        if change.partition in kept:  # there is a call that does not return, and all further ones wait
            running.add(change.partition)
            stuck.set()
            await go_on.wait()

    def on_revoked(_key: str, partitions: frozenset[int]) -> None:
        gone.update(partitions)
        revoked.set()

    kept: frozenset[int] = frozenset()
    async with store.worker(handler=handler, on_revoked=on_revoked, max_parallel_handlers=4) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        async with store.worker("other") as first:  # shows which partitions will stay
            await first.wait_ready(timeout_s=PATIENCE_S)
            await worker.wait_until("list", lambda: revoked.is_set(), timeout_s=PATIENCE_S)
            kept = worker.owned("list")
        await worker.wait_until("list", lambda: len(worker.owned("list")) == PARTITIONS, timeout_s=PATIENCE_S)
        await worker.wait_ready(timeout_s=PATIENCE_S)
        gone.clear()
        revoked.clear()
        async with store.client.changes(store.name, "list") as writer:
            await asyncio.gather(*(writer.put(f"row{number}", "v") for number in range(ROWS)))
        async with asyncio.timeout(PATIENCE_S):
            await stuck.wait()
        async with store.worker("other") as again:
            await again.wait_ready(timeout_s=PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                await revoked.wait()
            assert running and running.isdisjoint(gone)
            assert gone == set(range(PARTITIONS)) - worker.owned("list")
            go_on.set()
            moved = {f"row{number}" for number in range(ROWS) if row_partition(f"row{number}", PARTITIONS) in gone}
            assert moved == {row.row_id for row in again.rows("list")}
            partition, version = await store.put(min(moved), "w")
            await again.wait_for("list", partition, version, timeout_s=PATIENCE_S)
            assert not late


async def test_a_loss_is_told_after_the_call_that_runs_for_its_partition(store: Store) -> None:
    await store.create(partition_count=2)
    begun, go_on, revoked = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ended: list[bool] = []

    async def handler(_change: Change) -> None:
        begun.set()
        await go_on.wait()
        ended.append(revoked.is_set())

    def on_revoked(_key: str, _partitions: frozenset[int]) -> None:
        revoked.set()

    async with store.worker(handler=handler, on_revoked=on_revoked) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for number in range(16):
            await store.put(f"row{number}", "v")
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
        async with store.worker("other") as other:
            await other.wait_ready(timeout_s=PATIENCE_S)
            assert len(worker.owned("list")) == 1
            assert not revoked.is_set()  # both partitions have a call that runs
            go_on.set()
            async with asyncio.timeout(PATIENCE_S):
                await revoked.wait()
            assert ended
            assert not any(ended)
