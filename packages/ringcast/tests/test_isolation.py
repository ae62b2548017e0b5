"""A slow or stuck handler holds up its own row, and not what else the worker has to tell the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import nats
from nats.aio.msg import Msg
from ringcast import Change, Worker
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S
from ringcast_wire import names

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

PARTITIONS = 8
ROWS = 200
EVENTS = 64


async def kept_beside_another(store: Store, worker: Worker) -> frozenset[int]:
    """The partitions that the worker keeps when ``other`` joins, which is here for a moment to show it."""
    async with store.worker("other") as other:
        await other.wait_ready(timeout_s=PATIENCE_S)
        await worker.wait_until("list", lambda: len(worker.owned("list")) < PARTITIONS, timeout_s=PATIENCE_S)
        kept = worker.owned("list")
    await worker.wait_until("list", lambda: len(worker.owned("list")) == PARTITIONS, timeout_s=PATIENCE_S)
    await worker.wait_ready(timeout_s=PATIENCE_S)
    return kept


async def test_a_loss_is_told_at_once_while_calls_of_other_partitions_run(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    stuck, go_on, revoked = asyncio.Event(), asyncio.Event(), asyncio.Event()
    running: set[int] = set()
    gone: set[int] = set()
    late: list[Change] = []
    kept: frozenset[int] = frozenset()

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

    async with store.worker(handler=handler, on_revoked=on_revoked, max_parallel_handlers=4) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        kept = await kept_beside_another(store, worker)
        gone.clear()
        revoked.clear()
        async with store.client.changes(store.name, "list") as writer:
            await asyncio.gather(*(writer.put(f"row{number}", "v") for number in range(ROWS)))
        async with asyncio.timeout(PATIENCE_S):
            await stuck.wait()
        async with store.worker("other") as other:
            await other.wait_ready(timeout_s=PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                await revoked.wait()
            assert running
            assert running.isdisjoint(gone)
            assert gone == set(range(PARTITIONS)) - kept
            go_on.set()
            moved = {f"row{number}" for number in range(ROWS) if row_partition(f"row{number}", PARTITIONS) in gone}
            assert moved == {row.row_id for row in other.rows("list")}
            partition, version = await store.put(min(moved), "w")
            await other.wait_for("list", partition, version, timeout_s=PATIENCE_S)
            assert not late


async def test_a_loss_is_told_after_the_call_that_runs_for_its_partition(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    begun, go_on, revoked = asyncio.Event(), asyncio.Event(), asyncio.Event()
    revoked_before_the_end: list[bool] = []

    async def handler(_change: Change) -> None:
        begun.set()
        await go_on.wait()
        revoked_before_the_end.append(revoked.is_set())

    def on_revoked(_key: str, _partitions: frozenset[int]) -> None:
        revoked.set()

    async with store.worker(handler=handler, on_revoked=on_revoked) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        kept = await kept_beside_another(store, worker)
        async with asyncio.timeout(PATIENCE_S):
            await revoked.wait()
        revoked.clear()
        await store.put(next(row for row in map(str, range(100)) if row_partition(row, PARTITIONS) not in kept), "v")
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
        async with store.worker("other") as other:
            await other.wait_ready(timeout_s=PATIENCE_S)
            # Each hears of the other by itself, and this one may be the later.
            await worker.wait_until("list", lambda: worker.owned("list") == kept, timeout_s=PATIENCE_S)
            assert not revoked.is_set()
            go_on.set()
            async with asyncio.timeout(PATIENCE_S):
                await revoked.wait()
            assert revoked_before_the_end == [False]


async def test_a_loss_waits_for_a_call_whose_task_has_not_begun(store: Store) -> None:
    """A plain function that returns an awaitable has been called before there is a task that waits for it."""
    await store.create(partition_count=1)
    order: list[str] = []
    losses: list[asyncio.Task[None]] = []

    async def rest() -> None:
        await asyncio.sleep(0)
        order.append("ended")

    def handler(change: Change) -> Awaitable[None]:
        if not losses:
            applier = worker._life.runtime.sessions["list"].applier  # type: ignore[union-attr]
            losses.append(asyncio.create_task(applier.announce("list", False, frozenset({change.partition}))))
        return rest()

    for row_id in ("a", "b"):
        await store.put(row_id, "v")
    worker = store.worker(handler=handler, on_revoked=lambda _key, _partitions: order.append("revoked"))
    async with worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            await losses[0]
        assert order == ["ended", "ended", "revoked"]


async def test_an_event_whose_handler_is_slow_is_not_delivered_again(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    go_on, reported = asyncio.Event(), asyncio.Event()
    reports: list[str] = []

    async def handler(_change: Change) -> None:
        await go_on.wait()

    async def spy(message: Msg) -> None:
        if message.data == b"+WPI":
            reports.append(message.subject)
            if reports.count(message.subject) == 6:  # two thirds of a second after it came, then each third
                reported.set()

    client = await nats.connect(store.nats_url)
    try:
        async with store.worker(handler=handler, ack_wait_s=1.0) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            await client.subscribe("$JS.ACK.>", cb=spy)
            async with store.client.changes(store.name, "list") as writer:
                written = await asyncio.gather(*(writer.put(f"row{number}", "v") for number in range(ROWS)))
            async with asyncio.timeout(PATIENCE_S):
                await reported.wait()
            consumer = names.consumer_name("ringcast", worker.config.worker_id)
            info = await client.jetstream().consumer_info(names.notify_stream(store.name), consumer)
            assert info.num_ack_pending
            assert info.num_redelivered == 0
            go_on.set()
            for result in written:
                await worker.wait_for("list", result.partition, result.version, timeout_s=PATIENCE_S)
            assert worker.stats().duplicates == 0
    finally:
        await client.close()


async def test_a_call_that_takes_too_long_is_cancelled_and_counts_as_a_failure(store: Store) -> None:
    await store.create(partition_count=1)
    took: list[str] = []
    ended: list[str] = []

    async def handler(change: Change) -> None:
        if change.row_id == "stuck":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(change.row_id)
        took.append(change.row_id)

    async with store.worker(handler=handler, handler_timeout_s=0.05, handler_tries=2, poison_policy="block") as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for row_id in ("stuck", "free"):
            partition, version = await store.put(row_id, "v")
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert (took, ended) == (["free"], ["stuck", "stuck"])
        assert (worker.stats().handler_timeouts, worker.stats().handler_failures, worker.stats().blocked) == (2, 2, 1)
        (row,) = worker.blocked()
        assert "handler_timeout_s = 0.05 s" in row.error


async def test_a_key_whose_handler_is_stuck_leaves_others_alone(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    go_on = asyncio.Event()
    took: dict[tuple[str, str], int] = {}

    async def handler(change: Change) -> None:
        if change.key == "stuck":
            await go_on.wait()
        took[change.key, change.row_id] = change.version

    # No comparison of heads helps within the test; a few events use up what the broker delivers at once.
    worker = store.worker(keys=("stuck", "free"), handler=handler, max_ack_pending=32, heads_s=3_600.0)
    async with worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        written = [await store.put(f"row{number}", "v", key="stuck") for number in range(ROWS)]  # an event each
        for number in range(EVENTS):
            partition, version = await store.put(f"row{number}", "v", key="free")
            await worker.wait_for("free", partition, version, timeout_s=PATIENCE_S)
        assert worker.stats("stuck").deferred > 0
        assert worker.stats("free").deferred == 0
        assert {key for key, _ in took} == {"free"}
        assert worker.health().keys[0].owned == PARTITIONS
        go_on.set()
        for partition, version in written:
            await worker.wait_for("stuck", partition, version, timeout_s=PATIENCE_S)
        assert len(took) == ROWS + EVENTS


async def test_a_partition_is_acknowledged_before_the_rest_of_its_batch(store: Store) -> None:
    await store.create(partition_count=PARTITIONS)
    first, go_on = asyncio.Event(), asyncio.Event()

    async def handler(change: Change) -> None:
        if change.row_id == "first":
            first.set()
        if change.row_id in ("first", "stuck"):
            await go_on.wait()

    async with store.worker(handler=handler, window_s=60.0) as worker:  # what comes while the first is handled
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await store.put("first", "v")
        async with asyncio.timeout(PATIENCE_S):
            await first.wait()
        stuck, _ = await store.put("stuck", "v")
        written = [await store.put(f"row{number}", "v") for number in range(EVENTS)]
        await worker.wait_until("list", lambda: worker.stats("list").events == EVENTS + 2, timeout_s=PATIENCE_S)
        go_on.set()
        go_on.clear()
        for partition, version in written:
            if partition != stuck:
                await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        last = max(version for partition, version in written if partition == stuck)
        assert worker.applied("list")[stuck] < last
        go_on.set()
        await worker.wait_for("list", stuck, last, timeout_s=PATIENCE_S)
