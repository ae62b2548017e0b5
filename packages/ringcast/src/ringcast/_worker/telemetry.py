"""What operators see of a config key of a worker."""

from __future__ import annotations

from typing import NamedTuple

from ringcast_wire import EventLog
from ringcast_wire.tracing import Tracing

from ringcast._common.config import WorkerConfig
from ringcast._common.measures import KeyMeasures, Metrics
from ringcast._delivery.traces import KeyTraces


class KeyTelemetry(NamedTuple):
    """The log, the measures and the spans of one key, which its parts use. ``traces``: ``None`` without a tracer."""

    log: EventLog
    measures: KeyMeasures
    traces: KeyTraces | None = None

    @classmethod
    def of(
        cls, key: str, config: WorkerConfig, *, log: EventLog, metrics: Metrics, tracing: Tracing | None
    ) -> KeyTelemetry:
        """That of a key, from what its worker has."""
        traces = None
        if tracing is not None:
            traces = KeyTraces(tracing, store=config.store, key=key, worker_id=config.worker_id)
        return cls(log.bind(key=key), KeyMeasures(metrics), traces)
