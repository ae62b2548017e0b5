"""What a worker suffers from shows in its health, its staleness and its metrics."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from ringcast import Change
from ringcast._bus.nats_client import TESTED_VERSIONS
from ringcast._worker.routes import Routes
from ringcast.metrics import PrometheusMetrics
from ringcast_client import RowWrite
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import limits, names

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store


async def test_a_handler_that_does_not_return_is_told(store: Store) -> None:
    await store.create(partition_count=1)
    registry = CollectorRegistry()
    stuck = asyncio.Event()

    async def handler(change: Change) -> None:
        if change.row_id == "stuck":
            await stuck.wait()

    settings: dict[str, Any] = {"handler": handler, "handler_stall_s": 0.05, "metrics": PrometheusMetrics(registry)}
    async with store.worker(keys=("list", "other"), **settings) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert worker.health().ready
        partition, version = await store.put("stuck", "1")
        await until(lambda: worker.health().keys[0].handler_stalled)
        health = worker.health()
        assert health.keys[0].handler_running_s > 0.05
        assert health.staleness_s > 0.05
        assert not health.ready
        assert health.keys[1].ready
        assert worker.staleness("other") == 0
        labels = {"store": store.name, "key": "list", "worker_id": worker.config.worker_id}
        assert (registry.get_sample_value("config_handler_running_seconds", labels) or 0) > 0.05
        stuck.set()
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert worker.health().ready
        assert worker.health().keys[0].handler_running_s == 0


@pytest.mark.parametrize("assigned", [True, False])
async def test_a_callback_that_does_not_return_is_told(store: Store, assigned: bool) -> None:
    await store.create(partition_count=4)
    registry = CollectorRegistry()
    stuck = asyncio.Event()

    async def callback(key: str, partitions: frozenset[int]) -> None:
        await stuck.wait()

    name = "on_assigned" if assigned else "on_revoked"
    settings: dict[str, Any] = {name: callback, "handler_stall_s": 0.05, "metrics": PrometheusMetrics(registry)}
    async with store.worker(handler=lambda change: None, **settings) as worker:
        if not assigned:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            assert worker.health().ready
        async with store.worker("other"):
            await until(lambda: worker.health().keys[0].handler_stalled)
            health = worker.health()
            assert health.keys[0].callback_running_s > 0.05
            assert health.keys[0].handler_running_s == 0
            assert health.staleness_s > 0.05
            assert not health.ready
            labels = {"store": store.name, "key": "list", "worker_id": worker.config.worker_id}
            assert (registry.get_sample_value("config_callback_running_seconds", labels) or 0) > 0.05
            stuck.set()
            await until(lambda: worker.health().ready)
            assert worker.health().keys[0].callback_running_s == 0


async def test_what_a_fetch_makes_up_for_counts_as_lag(store: Store) -> None:
    """Events of large writes do not list their rows: each leads to a fetch."""
    await store.create(partition_count=1)
    registry = CollectorRegistry()
    key = {"store": store.name, "key": "list"}
    async with store.worker(handler=lambda change: None, metrics=PrometheusMetrics(registry)) as worker:
        await store.put("first", "1")
        await worker.wait_ready(timeout_s=PATIENCE_S)
        before = registry.get_sample_value("config_notification_lag_seconds_count", key) or 0
        gaps = worker.stats("list").gaps
        async for _ in store.client.bulk_write(
            store.name, "list", [RowWrite(f"r{n}", "v" * 2_000) for n in range(900)]
        ):
            pass
        (head,) = await store.client.heads(store.name, "list")
        await worker.wait_for("list", 0, head, timeout_s=PATIENCE_S)
        assert worker.stats("list").gaps > gaps
        assert (registry.get_sample_value("config_notification_lag_seconds_count", key) or 0) > before


async def test_what_can_not_be_taken_in_is_a_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of our own while events are taken in must not be one that nobody sees."""
    await store.create(partition_count=1)
    deliver, failures = Routes.deliver, [ValueError("not today")]

    def fails_once(self: Routes, burst: object) -> None:
        if failures:
            raise failures.pop()
        deliver(self, burst)  # type: ignore[arg-type]

    monkeypatch.setattr(Routes, "deliver", fails_once)
    with caplog.at_level(logging.WARNING):
        async with store.worker(ack_wait_s=1.0) as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            partition, version = await store.put("a", "1")
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
            await until(lambda: not failures)
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "nats.unexpected_error"]
    assert getattr(told, "error", "") == "ValueError('not today')"


@pytest.mark.parametrize("parser", ["batch", "library"])
async def test_either_parser_will_do(store: Store, parser: str) -> None:
    await store.create()
    async with store.worker(nats_parser=parser) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        for number in range(50):
            partition, version = await store.put(f"r{number % 7}", str(number))
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        await worker.wait_until("list", lambda: worker.row_count("list") == 7, timeout_s=PATIENCE_S)
        assert {type(worker._life.runtime.bus._nc._ps).__name__} == (  # type: ignore[union-attr]
            {"BatchParser"} if parser == "batch" else {"Parser"}
        )


async def test_a_library_that_was_not_tried_reads_with_its_own_parser(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ringcast._bus.nats_client.LIBRARY_VERSION", "3.0.0")
    assert not "3.0.0".startswith(TESTED_VERSIONS)
    await store.create()
    with caplog.at_level(logging.WARNING):
        async with store.worker() as worker:
            await worker.wait_ready(timeout_s=PATIENCE_S)
            partition, version = await store.put("a", "1")
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
    assert [record for record in caplog.records if "event=nats.library_unknown" in record.getMessage()]


async def test_the_limit_of_filters_is_a_metric(store: Store) -> None:
    await store.create()
    registry = CollectorRegistry()
    async with store.worker(metrics=PrometheusMetrics(registry)) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        consumer = names.consumer_name("ringcast", worker.config.worker_id)
        labels = {"store": store.name, "worker_id": worker.config.worker_id, "consumer": consumer}
        limit = registry.get_sample_value("config_consumer_subject_limit", labels)
        assert limit == limits.MAX_FILTERS_PER_CONSUMER
