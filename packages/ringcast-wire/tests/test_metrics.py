"""The table of metrics, and what turns it into Prometheus's format."""

from __future__ import annotations

import http.client
import re
import socket

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from ringcast_wire import InvalidInputError, UnavailableError
from ringcast_wire.metrics import BY_NAME, METRICS, WORKER, Histogram, Sample
from ringcast_wire.prometheus import MetricsServer, TableCollector, parse_listen


def test_the_table_keeps_the_rules_of_prometheus() -> None:
    assert len(METRICS) == len(BY_NAME) > 30
    for metric in METRICS:
        assert re.fullmatch(r"config_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert (metric.unit == "seconds") == metric.name.endswith("_seconds"), metric.name
        assert (metric.kind == "histogram") == bool(metric.buckets), metric.name
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.name.startswith("config_service_") == (metric.emitter == "config service")


REFERENCE = {
    "config_partitions_owned": ("gauge", ("store", "key", "worker_id")),
    "config_rebalances_total": ("counter", ("store", "key", "trigger")),
    "config_bootstrap_duration_seconds": ("histogram", ("store", "key", "partition")),
    "config_notification_batch_size": ("histogram", ("store", "key")),
    "config_notification_lag_seconds": ("histogram", ("store", "key")),
    "config_heartbeat_failures_total": ("counter", ("store", "key", "worker_id")),
    "config_stale_updates_discarded_total": ("counter", ("store", "key")),
}
CONSUMER = {
    "parti_consumer_messages_total": "counter",
    "parti_consumer_redeliveries_total": "counter",
    "parti_consumer_inflight": "gauge",
    "parti_consumer_update_duration_seconds": "histogram",
    "parti_consumer_subject_count": "gauge",
    "parti_handler_latency_seconds": "histogram",
    "parti_consumer_update_failures_total": "counter",
    "parti_consumer_update_skipped_total": "counter",
}


@pytest.mark.parametrize("name", REFERENCE)
def test_the_metrics_of_the_contract_have_its_names_types_and_labels(name: str) -> None:
    metric = BY_NAME[name]
    assert (metric.kind, metric.labels) == REFERENCE[name]
    assert metric.reference == name


def test_each_consumer_metric_of_the_contract_is_there_under_our_prefix() -> None:
    ours = {metric.reference: metric for metric in WORKER if metric.reference.startswith("parti_")}
    assert {name: metric.kind for name, metric in ours.items()} == CONSUMER
    for reference, metric in ours.items():
        assert metric.name == reference.replace("parti_", "config_")


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 1, 1], 5.5)
    both = histogram + histogram
    assert (both.counts, both.total) == ([4, 2, 2], 11.0)
    assert histogram.counts == [2, 1, 1]


def lag(*values: float) -> Histogram:
    histogram = Histogram.of("config_notification_lag_seconds")
    for value in values:
        histogram.observe(value)
    return histogram


def test_samples_with_the_same_labels_are_added_up() -> None:
    collector = TableCollector(WORKER)
    registry = CollectorRegistry()
    registry.register(collector)
    for owned in (3, 4):
        collector.add(
            lambda owned=owned: [  # type: ignore[misc]
                Sample("config_partitions_owned", ("s", "k", "w"), owned),
                Sample("config_changes_total", ("s", "k"), 10 * owned),
                Sample("config_notification_lag_seconds", ("s", "k"), lag(0.002, 60)),
            ]
        )
    where = {"store": "s", "key": "k"}
    assert registry.get_sample_value("config_partitions_owned", {**where, "worker_id": "w"}) == 7
    assert registry.get_sample_value("config_changes_total", where) == 70
    assert registry.get_sample_value("config_notification_lag_seconds_count", where) == 4
    assert registry.get_sample_value("config_notification_lag_seconds_sum", where) == pytest.approx(120.004)
    bucket = "config_notification_lag_seconds_bucket"
    assert registry.get_sample_value(bucket, {**where, "le": "0.001"}) == 0
    assert registry.get_sample_value(bucket, {**where, "le": "0.0025"}) == 2
    assert registry.get_sample_value(bucket, {**where, "le": "30.0"}) == 2
    assert registry.get_sample_value(bucket, {**where, "le": "+Inf"}) == 4


def test_a_source_that_was_removed_is_asked_no_more() -> None:
    collector = TableCollector(WORKER)
    registry = CollectorRegistry()
    registry.register(collector)
    samples = [Sample("config_gaps_total", ("s", "k"), 1)]

    def source() -> list[Sample]:
        return samples

    collector.add(source)
    assert registry.get_sample_value("config_gaps_total", {"store": "s", "key": "k"}) == 1
    collector.remove(source)
    assert registry.get_sample_value("config_gaps_total", {"store": "s", "key": "k"}) is None


def test_every_metric_is_described_even_without_a_sample() -> None:
    registry = CollectorRegistry()
    registry.register(TableCollector(METRICS))
    text = generate_latest(registry).decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert kinds == {metric.name: metric.kind for metric in METRICS}


def test_the_server_serves_until_it_is_closed() -> None:
    server = MetricsServer("127.0.0.1:0", CollectorRegistry())
    host, _, port = server.address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 200
    connection.close()
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), timeout=10):
        pass


def test_an_address_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=f"metrics_listen {address} can't be used: Address already in use"):
            MetricsServer(address, CollectorRegistry())


def test_silent_clients_leave_room_for_others() -> None:
    server = MetricsServer("127.0.0.1:0", CollectorRegistry())
    host, _, port = server.address.partition(":")
    try:
        silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(20)]
        # Those past the bound are hung up on at once; nobody else is kept out for good.
        ended = [client for client in silent if not _is_open(client)]
        assert ended
        for client in silent:
            client.close()
    finally:
        server.close()


def _is_open(client: socket.socket) -> bool:
    client.settimeout(0.1)
    try:
        return client.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("listen", ["", "7421", "127.0.0.1", "127.0.0.1:65536", "a b:1", "on"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(InvalidInputError, match="metrics_listen"):
        parse_listen(listen)


def test_addresses_are_read() -> None:
    assert parse_listen("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_listen("[::1]:7421") == ("::1", 7421)
