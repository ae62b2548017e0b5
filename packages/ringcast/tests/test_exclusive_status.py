"""What a worker of exclusive ownership says of itself: its share where it is none, its cache, calls and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from prometheus_client import CollectorRegistry
from ringcast import Change, Worker
from ringcast._coordination.sticky.measures import LeaderMeasures, by_phase
from ringcast._protocol.sticky.leader import LeaderTimes
from ringcast.metrics import PrometheusMetrics
from ringcast.wishes import drain_worker, undrain_worker
from ringcast_client import ConfigServiceClient
from ringcast_core import row_partition
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until, until_workers
from ringcast_wire import Strategy, names
from ringcast_wire.owner_records import Entry, Phase, Session, Table

TIMES = {"strategy": Strategy.STICKY, "lease_ttl_ms": 2_000, "call_bound_ms": 200}


def _take(change: Change) -> None:
    """Takes a change."""


async def owns(worker: Worker, count: int) -> None:
    await worker.wait_until("list", lambda: len(worker.owned("list")) == count, timeout_s=PATIENCE_S)


async def test_a_worker_more_than_there_are_partitions_is_ready_and_stands_by(store: Any) -> None:
    await store.create(partition_count=1, **TIMES)
    await store.put("row", "1")
    async with store.worker("a", handler=_take) as one:
        await owns(one, 1)
        async with store.worker("b", handler=_take) as two:
            await two.wait_ready(timeout_s=PATIENCE_S)
            (health,) = two.health().keys
            assert (health.assigned, health.joining, health.owned, health.ready) == (True, False, 0, True)
            await one.stop()
            await owns(two, 1)


async def test_a_drained_worker_that_is_started_again_is_ready_and_gets_nothing(store: Any) -> None:
    await store.create(partition_count=4, **TIMES)
    await store.put("row", "1")
    async with store.worker("a", handler=_take) as one, store.worker("b", handler=_take) as two:
        await owns(two, 2)
        await drain_worker(store.nats_url, store.name, f"{store.name}-b")
        await owns(one, 4)
        await two.stop()
        async with store.worker("b", handler=_take) as again:
            await again.wait_ready(timeout_s=PATIENCE_S)
            assert not again.owned("list")
            await undrain_worker(store.nats_url, store.name, f"{store.name}-b")
            await owns(again, 2)


async def test_a_stop_does_not_wait_for_drained_workers_to_take_over(store: Any) -> None:
    """They get nothing: a worker that is stopped would wait for them until its time is up."""
    await store.create(partition_count=4, **TIMES)
    await store.put("row", "1")
    async with store.worker("a", handler=_take) as one, store.worker("b", handler=_take) as two:
        await owns(two, 2)
        await drain_worker(store.nats_url, store.name, f"{store.name}-b")
        await owns(one, 4)
        async with asyncio.timeout(LeaderTimes().prepare_s):  # the time that it gives others is twice that
            await one.stop()
        assert not two.owned("list")
        await undrain_worker(store.nats_url, store.name, f"{store.name}-b")
        await owns(two, 4)


async def test_a_worker_that_comes_back_with_its_cache_serves_what_it_has_restored(store: Any, tmp_path: Path) -> None:
    """Its partitions are held from the start on, and their events are wanted once they are to be prepared."""
    await store.create(partition_count=4, **TIMES)
    told: asyncio.Queue[str | None] = asyncio.Queue()
    for number in range(4):
        partition, version = await store.put("row", str(number))
        async with store.worker(handler=lambda change: told.put_nowait(change.value), cache_dir=tmp_path) as worker:
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
            await owns(worker, 4)
            async with asyncio.timeout(PATIENCE_S):
                while await told.get() != str(number):
                    pass


async def test_what_was_restored_of_the_partitions_of_others_is_given_up(store: Any, tmp_path: Path) -> None:
    await store.create(partition_count=8, **TIMES)
    for number in range(40):
        await store.put(f"row{number}", "1")
    async with store.worker("a", handler=_take, cache_dir=tmp_path) as one:
        await owns(one, 8)
        await one.wait_ready(timeout_s=PATIENCE_S)
    async with store.worker("b", handler=_take) as two:
        await owns(two, 8)
        async with store.worker("a", handler=_take, cache_dir=tmp_path) as one:
            cache = one.health().cache
            assert cache is not None
            assert cache.restored_rows == 40
            await owns(one, 4)
            await owns(two, 4)

            def each_has_its_own() -> bool:
                held = [{row_partition(row.row_id, 8) for row in worker.rows("list")} for worker in (one, two)]
                return held == [one.owned("list"), two.owned("list")] and len(held[0]) == 4

            await until_workers([one, two], "list", each_has_its_own)


@pytest.fixture
async def unrepaired(nats_server: NatsServer, tmp_path: Path, new_store: Callable[[str], Any]) -> AsyncIterator[Any]:
    """A store whose buckets stay as a test has made them: its service looks after them once an hour."""
    options = ("--provision-interval", "3600s")
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, options=options) as service:
        async with ConfigServiceClient(service.address) as client:
            yield replace(new_store("unrepaired"), nats_url=nats_server.url, client=client)


async def test_rows_can_be_read_past_the_fence_and_count_as_stale(unrepaired: Any) -> None:
    """NATS takes no refresh of the session for a while, and all else goes on: rows change, and the service answers."""
    store = unrepaired
    await store.create(partition_count=4, **TIMES)
    partition, version = await store.put("row", "1")

    def value() -> str | None:
        return next((row.value for row in worker.rows("list") if row == worker.get("list", "row")), None)

    async with store.worker(handler=_take) as worker, await nats.connect(store.nats_url) as client:
        await owns(worker, 4)
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        await until(lambda: worker.staleness() == 0)
        stream = await client.jetstream().stream_info(f"KV_{names.owners_bucket(store.name)}")
        most_bytes = stream.config.max_msg_size
        await client.jetstream().update_stream(stream.config, max_msg_size=1)
        await until(lambda: worker.health().keys[0].failing_because)
        assert worker.health().keys[0].failing_because.startswith("session: the fence has passed")
        assert value() == "1"
        assert worker.staleness("list") > 0
        assert not worker.health().ready
        await store.put("row", "2")
        await until(lambda: value() == "2")
        assert worker.staleness("list") > 0
        await client.jetstream().update_stream(stream.config, max_msg_size=most_bytes)
        await owns(worker, 4)
        await until(lambda: worker.staleness() == 0)
        assert value() == "2"


async def test_a_call_over_the_bound_shows_in_health_and_metrics(store: Any) -> None:
    metrics, started, going_on = PrometheusMetrics(CollectorRegistry()), asyncio.Event(), asyncio.Event()

    async def handle(change: Change) -> None:
        started.set()
        await going_on.wait()

    await store.create(partition_count=1, **TIMES)
    await store.put("row", "1")
    key = {"store": store.name, "key": "list"}
    owner = {**key, "worker_id": f"{store.name}-w"}

    def read(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    async with store.worker(handler=handle, metrics=metrics) as worker:
        async with asyncio.timeout(PATIENCE_S):
            await started.wait()
        await until(lambda: worker.health().keys[0].call_over_bound_s > 0.2)
        assert (read("config_call_over_bound_seconds", **owner) or 0) > 0.2
        going_on.set()
        await worker.wait_until("list", lambda: worker.stats("list").calls_over_bound == 1, timeout_s=PATIENCE_S)
        await until(lambda: worker.health().keys[0].call_over_bound_s == 0)
        assert read("config_call_over_bound_seconds", **owner) == 0
        assert read("config_calls_over_bound_total", **key) == 1


async def test_moves_and_leaders_are_measured(store: Any) -> None:
    metrics = PrometheusMetrics(CollectorRegistry())
    await store.create(partition_count=4, **TIMES)
    await store.put("row", "1")
    key = {"store": store.name, "key": "list"}

    def read(name: str, worker: str | None = None, **labels: str) -> float | None:
        of = {"worker_id": f"{store.name}-{worker}"} if worker is not None else {}
        return metrics.registry.get_sample_value(name, {**key, **of, **labels})

    async with store.worker("a", handler=_take, metrics=metrics) as one:
        await owns(one, 4)
        assert read("config_key_leading", "a") == 1
        async with store.worker("b", handler=_take, metrics=metrics) as two:
            await owns(two, 2)
            await owns(one, 2)
            await until(lambda: read("config_handoff_seconds_count") == 2)
            assert 0 < (read("config_handoff_seconds_sum") or 0) < 2 * PATIENCE_S
            assert read("config_leader_changes_total") == 1
            assert read("config_key_leading", "b") == 0
            await until(lambda: read("config_phase_partitions", "a", phase="held") == 4)
            assert read("config_phase_partitions", "a", phase="drain") == 0
            assert read("config_phase_partitions", "b", phase="held") is None, "the leader alone has them"
            assert read("config_unreadable_owner_records_total", "a") == 0


X, Y = Session("x", "x", 1), Session("y", "y", 2)


def test_how_long_a_hand_over_takes_is_counted_from_the_stop_of_the_owner() -> None:
    measures = LeaderMeasures()
    held, then = Table(5, (Entry(X, 5), Entry(X, 5))), Entry(X, 5, Phase.PREPARE, Y, 6)
    prepare = Table(6, (then, Entry(X, 5)))
    drain = Table(7, (then._replace(phase=Phase.DRAIN), Entry(X, 5)))
    done = Table(8, (Entry(Y, 6), Entry(X, 5)))
    measures.began()
    for before, after, now in ((None, held, 0.0), (held, prepare, 1.0), (prepare, drain, 2.0), (drain, done, 2.25)):
        measures.wrote(before, after, now)
    assert (measures.handoff.total, sum(measures.handoff.counts)) == (0.25, 1)
    measures.wrote(prepare, drain, 3.0)
    measures.began()  # another one led meanwhile: what began before this leader does not know
    measures.wrote(drain, done, 4.0)
    assert sum(measures.handoff.counts) == 1
    assert measures.terms == 2


def test_partitions_by_phase() -> None:
    table = Table(9, (Entry(X, 5), Entry(None, 5), Entry(X, 5, Phase.PREPARE, Y, 6), Entry(X, 5, Phase.DRAIN, Y, 6)))
    assert by_phase(table) == {"held": 1, "prepare": 1, "drain": 1, "unowned": 1}
    assert by_phase(None) == {"held": 0, "prepare": 0, "drain": 0, "unowned": 0}
