"""The metrics of workers for Prometheus: the extra ``ringcast[metrics]``. ``docs/observability.md`` lists them."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry
from ringcast_wire.metrics import WORKER, Source
from ringcast_wire.prometheus import MetricsServer, TableCollector, process_registry

from ringcast._common.measures import Metrics


class PrometheusMetrics:
    """Give it to any number of workers of a process: ``Worker(..., metrics=PrometheusMetrics())``.

    The numbers are read at each scrape; until then a worker does no work for them. ``registry`` is by default the
    one of ``prometheus_client``, in which it can be once.

    Args:
        partition_label: whether ``config_bootstrap_duration_seconds`` has a histogram for each partition that the
            worker owns: 17 series each.
    """

    timed = True

    def __init__(self, registry: CollectorRegistry | None = None, *, partition_label: bool = False) -> None:
        self.partition_label = partition_label
        self.registry = REGISTRY if registry is None else registry
        self._collector = TableCollector(WORKER)
        self.registry.register(self._collector)

    @classmethod
    def of_process(cls) -> PrometheusMetrics:
        """With a registry of its own, which also has those of the process (``process_…``, ``python_…``)."""
        return cls(process_registry())

    def add(self, source: Source) -> None:
        """A worker has started."""
        self._collector.add(source)

    def remove(self, source: Source) -> None:
        """A worker has ended."""
        self._collector.remove(source)

    def serve(self, listen: str) -> MetricsServer:
        """Serves the registry over HTTP until the server is closed.

        Raises:
            InvalidInputError: ``listen`` is not ``host:port``; port 0 takes a free one.
            UnavailableError: the address can't be used.
        """
        return MetricsServer(listen, self.registry)


__all__ = ["Metrics", "MetricsServer", "PrometheusMetrics"]
