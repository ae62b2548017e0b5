"""What a real worker exposes is what is documented, and says what has happened."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from ringcast import Change, InvalidInputError, Mode, UnavailableError, Worker
from ringcast._common.measures import NoMetrics
from ringcast._common.place import read_place
from ringcast.metrics import PrometheusMetrics
from ringcast_testkit import PATIENCE_S, History, WorkerProcess
from ringcast_wire import Strategy, limits, names
from ringcast_wire.metrics import WORKER, Sample, Source

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

OF_ANY_PROCESS = ("process_", "python_")


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics(CollectorRegistry())


def read(metrics: PrometheusMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


async def until(worker: Worker, condition: Callable[[], bool]) -> None:
    """Waits for something that the worker's inputs bring about."""
    await worker.wait_until("list", condition, timeout_s=PATIENCE_S)


class SlowRow:
    """A handler that keeps the row ``slow`` until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self._has_it = asyncio.Event()

    async def handle(self, change: Change) -> None:
        if change.row_id == "slow":
            self._has_it.set()
            await self.go.wait()

    async def wait_handled(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._has_it.wait()


def exposed(text: str) -> Iterator[tuple[str, str, set[frozenset[str]]]]:
    """Name, kind and sets of labels of everything of ours; without the labels that the format adds to histograms."""
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        if not name.startswith(OF_ANY_PROCESS):
            yield name, family.type, {frozenset(sample.labels) - {"le"} for sample in family.samples}


async def test_health_is_told_to_any_thread(store: Store) -> None:
    """As that of a server which answers probes."""
    await store.create()
    async with store.worker() as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        told = await asyncio.to_thread(worker.health)
        assert (told.ready, told.lease_held) == (True, True)


async def test_what_is_exposed_is_what_is_documented(store: Store, tmp_path: Path) -> None:
    """In both directions: names, kinds, and the labels of every sample, of a worker that has done everything once."""
    await store.create(inline=0, strategy=Strategy.STICKY, lease_ttl_ms=10_000, call_bound_ms=1_000)
    await store.put("a", "1")
    async with store.worker(handler=lambda change: None, metrics_listen="127.0.0.1:0", cache_dir=tmp_path) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        partition, version = await store.put("a", "2")
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        url = f"http://{worker.metrics_address}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    found = list(exposed(text))
    assert {name: kind for name, kind, _ in found} == {metric.name: metric.kind for metric in WORKER}
    expected = {metric.name: {frozenset(metric.labels)} for metric in WORKER}
    assert {name: labels for name, _, labels in found} == expected
    assert "process_resident_memory_bytes" in text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(worker.metrics_address.rpartition(":")[2])), timeout=5)


async def test_what_happens_is_counted(store: Store, metrics: PrometheusMetrics) -> None:
    await store.create()
    for number in range(20):
        await store.put(f"r{number}", "v")
    key = {"store": store.name, "key": "list"}
    async with store.worker(handler=lambda change: None, metrics=metrics) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        mine = {**key, "worker_id": worker.config.worker_id}
        assert read(metrics, "config_partitions_owned", **mine) == 8
        assert read(metrics, "config_rows_held", **mine) == 20
        assert read(metrics, "config_changes_total", **key) == 20
        assert read(metrics, "config_rebalances_total", **key, trigger="join") == 1
        assert read(metrics, "config_bootstrap_duration_seconds_count", **key, partition="") == 8
        for number in range(10):
            partition, version = await store.put("a", str(number))
            await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert read(metrics, "config_notification_batch_size_sum", **key) == 10
        assert read(metrics, "config_notification_lag_seconds_count", **key) == 10
        lag = read(metrics, "config_notification_lag_seconds_sum", **key)
        assert lag is not None
        assert 0 < lag < 10 * PATIENCE_S
        assert read(metrics, "config_handler_latency_seconds_count", **key) == 30
        consumer = {
            "store": store.name,
            "worker_id": worker.config.worker_id,
            "consumer": names.consumer_name("ringcast", worker.config.worker_id),
        }
        delivered = read(metrics, "config_consumer_messages_total", **consumer)
        assert delivered is not None
        assert delivered >= 10
        assert read(metrics, "config_consumer_redeliveries_total", **consumer) == 0
        assert read(metrics, "config_consumer_subject_count", **consumer) == 1  # it owns all partitions
        of_worker = {"store": store.name, "worker_id": worker.config.worker_id}
        assert read(metrics, "config_consumer_update_duration_seconds_count", **of_worker) == 1
        assert read(metrics, "config_consumer_update_failures_total", **of_worker) == 0
        assert read(metrics, "config_staleness_seconds", **of_worker) == 0
    assert read(metrics, "config_partitions_owned", **mine) is None  # a worker that has ended says no more


async def test_a_slow_handler_shows_as_inflight_and_latency(store: Store, metrics: PrometheusMetrics) -> None:
    await store.create(partition_count=1)
    await store.put("first", "x")
    slow = SlowRow()
    async with store.worker(handler=slow.handle, metrics=metrics) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await store.put("slow", "1")
        await slow.wait_handled()
        consumer = {
            "store": store.name,
            "worker_id": worker.config.worker_id,
            "consumer": names.consumer_name("ringcast", worker.config.worker_id),
        }
        before = read(metrics, "config_consumer_messages_total", **consumer) or 0
        for number in range(5):
            partition, version = await store.put(f"r{number}", "1")
        await until(worker, lambda: read(metrics, "config_consumer_messages_total", **consumer) == before + 5)
        assert read(metrics, "config_consumer_inflight", **consumer) == 6
        slow.go.set()
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert read(metrics, "config_consumer_inflight", **consumer) == 0


async def test_redeliveries_and_unreadable_events_are_counted(store: Store, metrics: PrometheusMetrics) -> None:
    """An event that the broker delivers again, and one that is damaged, are counted, and the partition goes on."""
    await store.create(partition_count=1)
    await store.put("first", "x")
    first, go = asyncio.Event(), asyncio.Event()

    async def handler(change: Change) -> None:
        if change.row_id == "slow":
            first.set()
            await go.wait()

    async with store.worker(handler=handler, metrics=metrics, ack_wait_s=1.0) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        labels = {"store": store.name, "worker_id": worker.config.worker_id}
        consumer = {**labels, "consumer": names.consumer_name("ringcast", worker.config.worker_id)}
        partition, version = await store.put("slow", "1")
        async with asyncio.timeout(PATIENCE_S):
            await first.wait()
        assert worker._life.runtime is not None
        (token,) = worker._life.runtime.sessions["list"].machine.partitions[0].unacknowledged
        nc = await nats.connect(store.nats_url)
        await nc.publish(token, b"-NAK")  # the broker is to deliver it again
        await until(worker, lambda: (read(metrics, "config_consumer_redeliveries_total", **consumer) or 0) >= 1)
        assert (read(metrics, "config_duplicate_events_total", store=store.name, key="list") or 0) >= 1
        go.set()
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        await nc.jetstream().publish(names.notify_subject(store.name, "list", 0), b"nonsense")
        await nc.close()
        partition, version = await store.put("later", "1")
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        assert (read(metrics, "config_unreadable_events_total", **labels) or 0) >= 1


async def test_what_led_to_a_rebalance_is_told(store: Store, metrics: PrometheusMetrics) -> None:
    await store.create()
    key = {"store": store.name, "key": "list"}

    def count(trigger: str) -> float | None:
        return read(metrics, "config_rebalances_total", **key, trigger=trigger)

    async with store.worker(metrics=metrics) as worker:
        async with store.worker("other"):
            await until(worker, lambda: count("join") == 2)
        await until(worker, lambda: count("leave") == 1)
        assert count("heartbeat-miss") == 0
        dying = WorkerProcess(
            f"{store.name}-dying", servers=store.nats_url, store=store.name, keys=("list",), history=History()
        )
        with dying:
            await until(worker, lambda: count("join") == 3)
            dying.kill()
            await until(worker, lambda: count("heartbeat-miss") == 1)  # once its lease has run out
        assert count("leave") == 1


@pytest.mark.parametrize(("asked", "label"), [(False, ""), (True, "0")])
async def test_the_partition_is_a_label_only_where_it_is_asked_for(store: Store, asked: bool, label: str) -> None:
    metrics = PrometheusMetrics(CollectorRegistry(), partition_label=asked)
    await store.create(partition_count=8)
    await store.put("a", "1")
    async with store.worker(metrics=metrics) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        name, key = "config_bootstrap_duration_seconds_count", {"store": store.name, "key": "list"}
        count = read(metrics, name, **key, partition=label)
        assert count == (1 if label else 8)
        assert (read(metrics, name, **key, partition="1") is None) == (label == "")


async def test_a_partition_that_has_moved_away_leaves_no_series(store: Store) -> None:
    """The one that lost it shows it no more, and the one that gained it does."""
    await store.create()
    await store.put("a", "1")
    both = [PrometheusMetrics(CollectorRegistry(), partition_label=True) for _ in range(2)]

    def shown(metrics: PrometheusMetrics) -> set[str]:
        return {
            sample.labels["partition"]
            for family in metrics.registry.collect()
            if family.name == "config_bootstrap_duration_seconds"
            for sample in family.samples
        }

    async with store.worker("first", metrics=both[0]) as first:
        await first.wait_ready(timeout_s=PATIENCE_S)
        assert len(shown(both[0])) == 8
        async with store.worker("second", metrics=both[1]) as second:
            await second.wait_ready(timeout_s=PATIENCE_S)
            await until(first, lambda: len(shown(both[0])) < 8)
            await until(second, lambda: shown(both[0]) | shown(both[1]) == {str(number) for number in range(8)})
            assert not shown(both[0]) & shown(both[1])


async def test_a_worker_of_the_largest_store_has_fewer_than_300_lines_of_metrics(store: Store) -> None:
    """With all 4096 partitions, and what the client of Prometheus tells of every process."""
    await store.create(partition_count=limits.MAX_PARTITIONS)
    await store.put("a", "1")
    metrics = PrometheusMetrics.of_process()
    async with store.worker(handler=lambda change: None, metrics=metrics) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        mine = {"store": store.name, "key": "list", "worker_id": worker.config.worker_id}
        assert read(metrics, "config_partitions_owned", **mine) == limits.MAX_PARTITIONS
        lines = generate_latest(metrics.registry).decode().splitlines()
    series = [line for line in lines if not line.startswith("#")]
    assert len(series) > 100
    assert len(series) < 300, len(series)


async def test_the_age_of_what_waits_for_a_handler_is_told(store: Store, metrics: PrometheusMetrics) -> None:
    """From the first change that is not applied; one that observes tells it too, and owns nothing."""
    await store.create(partition_count=1)
    await store.put("first", "x")
    slow = SlowRow()
    async with store.worker(handler=slow.handle, metrics=metrics) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        mine = {"store": store.name, "key": "list", "worker_id": worker.config.worker_id}
        assert read(metrics, "config_oldest_unapplied_age_seconds", **mine) == 0
        assert read(metrics, "config_partition_count", **mine) == 1
        partition, version = await store.put("slow", "1")
        await slow.wait_handled()
        earlier = read(metrics, "config_oldest_unapplied_age_seconds", **mine)
        assert earlier is not None
        assert 0 < earlier < PATIENCE_S
        _, version = await store.put("slow", "2")
        assert (read(metrics, "config_oldest_unapplied_age_seconds", **mine) or 0) > earlier
        slow.go.set()
        await worker.wait_for("list", partition, version, timeout_s=PATIENCE_S)
        await until(worker, lambda: read(metrics, "config_oldest_unapplied_age_seconds", **mine) == 0)
    async with store.worker("observer", observe=True, metrics=metrics) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        mine["worker_id"] = worker.config.worker_id
        assert read(metrics, "config_oldest_unapplied_age_seconds", **mine) == 0
        assert read(metrics, "config_partitions_owned", **mine) is None


async def test_in_mode_full_a_key_is_one_bootstrap_and_nothing_rebalances(
    store: Store, metrics: PrometheusMetrics
) -> None:
    await store.create(mode=Mode.FULL)
    await store.put("a", "1")
    async with store.worker(metrics=metrics) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
    # asked while it ran:
    async with store.worker(metrics=metrics) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        key = {"store": store.name, "key": "list"}
        assert read(metrics, "config_bootstrap_duration_seconds_count", **key, partition="") == 1
        assert [read(metrics, "config_rebalances_total", **key, trigger=t) for t in ("join", "leave")] == [0, 0]


async def test_several_workers_share_the_metrics_of_a_process(store: Store, metrics: PrometheusMetrics) -> None:
    await store.create()
    async with store.worker("a", metrics=metrics) as a, store.worker("b", metrics=metrics) as b:
        await until(a, lambda: 0 < len(a.owned("list")) < 8)
        await until(b, lambda: len(a.owned("list")) + len(b.owned("list")) == 8)
        owned = [
            read(metrics, "config_partitions_owned", store=store.name, key="list", worker_id=worker.config.worker_id)
            for worker in (a, b)
        ]
        assert owned == [len(a.owned("list")), len(b.owned("list"))]
        generate_latest(metrics.registry)  # would show the same series twice


class Recorder(NoMetrics):
    """Another taker of metrics than Prometheus: the protocol is all that it needs."""

    def __init__(self) -> None:
        self.sources: list[Source] = []

    def add(self, source: Source) -> None:
        self.sources.append(source)

    def remove(self, source: Source) -> None:
        self.sources.remove(source)


async def test_anything_of_that_shape_takes_metrics(store: Store) -> None:
    await store.create()
    recorder = Recorder()
    async with store.worker(metrics=recorder) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        (source,) = recorder.sources
        samples = list(source())
        assert Sample("config_partitions_owned", (store.name, "list", worker.config.worker_id), 8) in samples
    assert recorder.sources == []


async def test_other_metrics_can_not_be_served(store: Store) -> None:
    await store.create()
    with pytest.raises(InvalidInputError, match=r"metrics_listen .* can serve PrometheusMetrics only"):
        await store.worker(metrics=Recorder(), metrics_listen="127.0.0.1:0").start()


async def test_an_address_that_is_taken_is_refused(store: Store) -> None:
    await store.create()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=f"metrics_listen {address} can't be used: Address already in use"):
            await store.worker(metrics_listen=address).start()


async def test_the_environment_can_turn_the_endpoint_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_METRICS_LISTEN", "127.0.0.1:0")
    await store.create()
    async with store.worker() as worker:
        assert worker.metrics_address.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.stream.consumer.1.10.9.1700000000000000000.7", (10, 9, 1_700_000_000_000_000_000, 7)),
        ("$JS.ACK._.hash.stream.consumer.1.10.9.1700000000000000000.7.token", (10, 9, 1_700_000_000_000_000_000, 7)),
        ("", None),
        ("_R_.abc.def", None),
        ("$JS.ACK.stream.consumer.1.10.9.soon.7", None),
    ],
)
def test_what_a_delivery_says_of_itself(reply: str, expected: Any) -> None:
    assert read_place(reply) == expected


def test_a_worker_without_metrics_or_traces_does_not_pay_for_them() -> None:
    modules = "('prometheus_client', 'opentelemetry', 'wsgiref')"
    code = f"import sys, ringcast; sys.exit(any(name in sys.modules for name in {modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
