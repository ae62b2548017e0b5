"""What a worker measures besides its :class:`Stats`, and where the metrics go."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from ringcast_wire.metrics import Histogram, Source

from ringcast._common.place import read_place
from ringcast._common.stats import Trigger


class Metrics(Protocol):
    """Takes what workers measure. A worker adds itself when it starts and removes itself when it has ended."""

    timed: bool
    """Whether workers are to read clocks for it; without, only what is counted anyway is there."""
    partition_label: bool
    """Whether bootstraps are labelled by partition: a histogram for each partition that is owned."""

    def add(self, source: Source) -> None:
        """Reads this source from now on, from any thread."""

    def remove(self, source: Source) -> None:
        """Reads it no longer."""


class NoMetrics:
    """Drops all metrics."""

    timed = False
    partition_label: bool = False

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

    def __init__(self, metrics: Metrics) -> None:
        self.timed = metrics.timed
        self.rebalances = dict.fromkeys(Trigger, 0)
        self.lag = Histogram.of("config_notification_lag_seconds")
        self.handler_latency = Histogram.of("config_handler_latency_seconds")
        self.bootstraps: dict[str, Histogram] = {}
        self._by_partition = metrics.partition_label
        self._owned: frozenset[int] = frozenset()

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
        label = str(partition) if self._by_partition and partition in self._owned else ""
        histogram = self.bootstraps.get(label)
        if histogram is None:
            histogram = self.bootstraps[label] = Histogram.of("config_bootstrap_duration_seconds")
        histogram.observe(seconds)

    def owned(self, partitions: frozenset[int]) -> None:
        """Only these partitions are owned from now on: of others no series is left."""
        self._owned = partitions
        if self._by_partition:
            kept = {"", *map(str, partitions)}
            self.bootstraps = {label: histogram for label, histogram in self.bootstraps.items() if label in kept}
