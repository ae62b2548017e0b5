"""The metrics of the table for Prometheus. Needs ``prometheus-client``: the extra ``metrics``."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import Any, Final, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ringcast_wire._common.errors import InvalidInputError, UnavailableError, shown
from ringcast_wire.addresses import split_address
from ringcast_wire.metrics import Histogram, Metric, Source

OFF: Final = "off"
_SCRAPES_AT_ONCE: Final = 8
_SILENCE_S: Final = 10.0
_POLL_S: Final = 0.1

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class TableCollector(Collector):
    """Asks its sources at each scrape; nothing is counted twice, and nothing is done in between.

    Samples of several sources with the same labels are added up.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Asks this source from now on."""
        self._sources = [*self._sources, source]

    def remove(self, source: Source) -> None:
        """Asks it no longer."""
        self._sources = [other for other in self._sources if other is not source]

    def describe(self) -> Iterable[Family]:
        return [_family(metric) for metric in self._metrics]

    def collect(self) -> Iterable[Family]:
        found: dict[str, dict[tuple[str, ...], float | Histogram]] = {metric.name: {} for metric in self._metrics}
        for source in self._sources:
            for name, labels, value in source():
                held = found[name].get(labels)
                found[name][labels] = value if held is None else _sum(held, value)
        for metric in self._metrics:
            family = _family(metric)
            for labels, value in found[metric.name].items():
                _add(family, labels, value)
            yield family


def process_registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of a process of ours: collectors, and what the client tells of any process (``process_…``)."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    for kind in (ProcessCollector, PlatformCollector, GCCollector):
        kind(registry=registry)
    return registry


class _Handler(WSGIRequestHandler):
    """Says nothing, and hangs up on a client that is silent."""

    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name in the base class
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """A bounded number of requests at once; one more is hung up on."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._slots = threading.BoundedSemaphore(_SCRAPES_AT_ONCE)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away half-way is no news."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class MetricsServer:
    """Serves a registry over HTTP, on a thread of its own so that a busy program can still be scraped.

    ``ready``: what ``/ready`` answers with, as 200 or 503; it is called by that thread. Without it, and by any other
    path, there are the metrics.
    """

    def __init__(self, listen: str, registry: CollectorRegistry, ready: Callable[[], bool] | None = None) -> None:
        """Listens; port 0 takes a free one, which ``address`` then names.

        Raises:
            InvalidInputError: ``listen`` is not ``host:port``.
            UnavailableError: the address can't be used.
        """
        host, port = parse_listen(listen)
        kind = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, port, _application(registry, ready), kind, _Handler)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UnavailableError(
                f"metrics_listen {listen} can't be used: {reason}", field="metrics_listen"
            ) from error
        self.address = f"{listen.rpartition(':')[0]}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="ringcast-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends it, which takes 0.1 s at most. Calling it again is harmless."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _application(registry: CollectorRegistry, ready: Callable[[], bool] | None) -> Callable[..., Any]:
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if ready is None or environ.get("PATH_INFO") != "/ready":
            return metrics(environ, start_response)
        yes = ready()
        start_response("200 OK" if yes else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ready\n" if yes else b"not ready\n"]

    return answer


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port of an address to listen on.

    Raises:
        InvalidInputError: it is not ``host:port`` with a port of 0 to 65535.
    """
    found = split_address(listen)
    if found is None:
        raise InvalidInputError(
            f"metrics_listen {shown(listen)} is neither {OFF} nor host:port with a port of 0 to 65535",
            field="metrics_listen",
        )
    return found


def _family(metric: Metric) -> Family:
    families: dict[str, type[Family]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return families[metric.kind](metric.name, metric.help, labels=metric.labels)


def _add(family: Family, labels: Sequence[str], value: float | Histogram) -> None:
    if not isinstance(value, Histogram):
        assert not isinstance(family, HistogramMetricFamily)
        family.add_metric(labels, value)
        return
    assert isinstance(family, HistogramMetricFamily)
    count, buckets = 0, []
    for bound, inside in zip((*map(str, value.bounds), "+Inf"), list(value.counts), strict=True):
        count += inside
        buckets.append((bound, count))
    family.add_metric(labels, buckets, value.total)


def _sum(one: float | Histogram, other: float | Histogram) -> float | Histogram:
    if isinstance(one, Histogram):
        assert isinstance(other, Histogram)
        return one + other
    assert not isinstance(other, Histogram)
    return one + other


__all__ = ["MetricsServer", "OFF", "TableCollector", "parse_listen", "process_registry"]
