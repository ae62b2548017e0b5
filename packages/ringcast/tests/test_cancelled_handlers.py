"""A ``CancelledError`` out of the application is a failure like any other, unless the worker is being stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from ringcast import Change, PoisonPolicy
from ringcast_testkit import PATIENCE_S

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

ROWS = 24

Failure = Callable[[], Awaitable[None]]


async def cancelled_elsewhere() -> None:
    """Awaits what another task has cancelled."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancels_itself() -> None:
    """Cancels the task that it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


class Fragile:
    """A handler that fails for some rows, every time or so many times."""

    def __init__(self, failure: Failure) -> None:
        self.fragile: dict[str, int] = {}
        """How often each of these rows still fails."""
        self.took: dict[str, str | None] = {}
        self._failure = failure

    async def __call__(self, change: Change) -> None:
        await asyncio.sleep(0)
        if self.fragile.get(change.row_id, 0) > 0:
            self.fragile[change.row_id] -= 1
            await self._failure()
        self.took[change.row_id] = change.value


@pytest.mark.parametrize("failure", [cancelled_elsewhere, cancels_itself])
async def test_a_cancelled_handler_is_called_again_and_no_change_is_lost(store: Store, failure: Failure) -> None:
    await store.create(partition_count=2)
    handler = Fragile(failure)
    async with store.worker(handler=handler, handler_tries=3) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        handler.fragile = {f"row{number}": 2 for number in range(0, ROWS, 3)}
        failures = sum(handler.fragile.values())
        async with store.client.changes(store.name, "list") as writer:
            written = await asyncio.gather(*(writer.put(f"row{number}", "v") for number in range(ROWS)))
        for result in written:
            await worker.wait_for("list", result.partition, result.version, timeout_s=PATIENCE_S)
        assert handler.took == {f"row{number}": "v" for number in range(ROWS)}
        assert (worker.stats().handler_failures, worker.stats().poisoned) == (failures, 0)
        assert worker.health().ready


@pytest.mark.parametrize("failure", [cancelled_elsewhere, cancels_itself])
async def test_one_that_is_cancelled_every_time_goes_to_the_poison_policy(store: Store, failure: Failure) -> None:
    await store.create(partition_count=1)
    handler = Fragile(failure)
    handler.fragile = {"bad": 1_000}
    async with store.worker(handler=handler, poison_policy=PoisonPolicy.BLOCK, handler_tries=2) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for row_id in ("bad", "good"):
            partition, version = await store.put(row_id, "v")
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert handler.took == {"good": "v"}
        assert (worker.stats().handler_failures, worker.stats().poisoned) == (2, 1)
        assert [row.error for row in worker.blocked()] == ["CancelledError()"]
        if failure is cancelled_elsewhere:  # the other would cancel this test
            assert not await worker.unblock("list", "bad")
        handler.fragile = {}
        assert await worker.unblock("list", "bad")
        assert handler.took == {"good": "v", "bad": "v"}


async def test_a_plain_handler_may_raise_it_and_may_cancel_its_task(store: Store) -> None:
    await store.create(partition_count=1)
    raised: list[str] = []
    took: list[str] = []

    def handler(change: Change) -> None:
        task = asyncio.current_task()
        assert task is not None
        if change.row_id == "cancels":
            task.cancel()
        elif change.row_id not in raised:
            raised.append(change.row_id)
            raise asyncio.CancelledError
        took.append(change.row_id)

    async with store.worker(handler=handler) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for row_id in ("raises", "cancels", "last"):
            partition, version = await store.put(row_id, "v")
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert took == ["raises", "cancels", "last"]
        assert worker.stats().handler_failures == 2


async def test_callbacks_that_are_cancelled_are_counted_and_the_rows_come(store: Store) -> None:
    await store.create(partition_count=4)
    await store.put("row", "v")
    told: list[str] = []
    took: list[str] = []

    async def assigned(_key: str, _partitions: frozenset[int]) -> None:
        told.append("assigned")
        await cancelled_elsewhere()

    async def revoked(_key: str, _partitions: frozenset[int]) -> None:
        told.append("revoked")
        await cancels_itself()

    def handler(change: Change) -> None:
        took.append(change.row_id)

    async with store.worker(on_assigned=assigned, on_revoked=revoked, handler=handler) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert told == ["assigned"]
        assert took == ["row"]
        assert worker.stats().callback_failures == 1
        async with store.worker("other") as other:
            await other.wait_ready(timeout_s=PATIENCE_S)
            assert other.owned("list")
            await worker.wait_until("list", lambda: "revoked" in told, timeout_s=PATIENCE_S)
            assert worker.stats().callback_failures >= 2
            partition, version = await store.put("later", "v")
            owner = worker if partition in worker.owned("list") else other
            await owner.wait_for("list", partition, version, timeout_s=PATIENCE_S)


async def test_a_worker_that_is_stopped_ends_the_call_that_does_not_return(store: Store) -> None:
    await store.create(partition_count=1)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(_change: Change) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    worker = store.worker(handler=handler, drain_timeout_s=0.01)
    async with worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await store.put("row", "v")
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
    assert ended.is_set()
    assert worker.stats().handler_failures == 0


async def test_whoever_unblocks_a_row_may_be_cancelled(store: Store) -> None:
    await store.create(partition_count=1)
    begun = asyncio.Event()

    async def handler(_change: Change) -> None:
        if not worker.blocked():
            raise ValueError("not yet")
        begun.set()
        await asyncio.Event().wait()

    worker = store.worker(handler=handler, poison_policy="block", handler_tries=1)
    async with worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        partition, version = await store.put("row", "v")
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        unblocking = asyncio.create_task(worker.unblock("list", "row"))
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
        unblocking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unblocking
        assert len(worker.blocked()) == 1
        assert worker.stats().handler_failures == 1


async def test_a_worker_whose_handing_over_is_cancelled_from_outside_fails(store: Store) -> None:
    await store.create(partition_count=1)
    worker = store.worker(handler=lambda _: None)
    await worker.start()
    try:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert worker._life.runtime is not None
        for task in worker._life.runtime._keys._handing_over:
            task.cancel()
        with pytest.raises(RuntimeError, match="hands over the changes of key list was cancelled"):
            await worker.wait_closed()
        assert not worker.health().ready
    finally:
        await worker.stop()
