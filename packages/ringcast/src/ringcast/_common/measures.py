"""What a worker measures besides its :class:`Stats`, and where the metrics go."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from ringcast_wire.metrics import MAX_PARTITIONS_AS_LABEL, Histogram, Source

from ringcast._common.place import read_place
from ringcast._common.stats import Trigger


class Metrics(Protocol):
    """Takes what workers measure. A worker adds itself when it starts and removes itself when it has ended."""

    timed: bool
    """Whether workers are to read clocks for it; without, only what is counted anyway is there."""
    partition_label: bool | None
    """Whether bootstraps are labelled by partition; ``None``: where there are at most 256."""

    def add(self, source: Source) -> None:
        """Reads this source from now on, from any thread."""

    def remove(self, source: Source) -> None:
        """Reads it no longer."""


class NoMetrics:
    """Drops all metrics."""

    timed = False
    partition_label: bool | None = None

    def add(self, source: Source) -> None:
        pass

    def remove(self, source: Source) -> None:
        pass


class ConsumerCounters:
    """Of one durable consumer, over all its pull loops."""

    __slots__ = ("last_reply", "messages", "redeliveries")

    def __init__(self) -> None:
        self.messages = 0
        self.redeliveries = 0
        self.last_reply = ""


class KeyMeasures:
    """Of one config key. Only with ``timed`` is anything but ``rebalances`` taken in."""

    def __init__(self, metrics: Metrics, partition_count: int) -> None:
        self.timed = metrics.timed
        self.rebalances = dict.fromkeys(Trigger, 0)
        self.lag = Histogram.of("config_notification_lag_seconds")
        self.handler_latency = Histogram.of("config_handler_latency_seconds")
        self.bootstraps: dict[str, Histogram] = {}
        few = partition_count <= MAX_PARTITIONS_AS_LABEL
        self._by_partition = few if metrics.partition_label is None else metrics.partition_label

    def handing_over(self, replies: Iterable[str]) -> None:
        """The rows of these events go to the application now."""
        now_ns = time.time_ns()
        for reply in replies:
            place = read_place(reply)
            if place is not None:
                self.lag.observe(max(0, now_ns - place.stored_ns) / 1e9)

    def bootstrapped(self, partition: int | None, seconds: float) -> None:
        """A whole partition has come, or (``None``) a whole key."""
        if not self.timed:
            return
        label = str(partition) if self._by_partition and partition is not None else ""
        histogram = self.bootstraps.get(label)
        if histogram is None:
            histogram = self.bootstraps[label] = Histogram.of("config_bootstrap_duration_seconds")
        histogram.observe(seconds)
