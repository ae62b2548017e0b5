"""The table of metrics, and the light objects that measure: no client of any metrics system is needed for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from ringcast_wire._metrics.metric import Metric
from ringcast_wire._metrics.service_table import SERVICE
from ringcast_wire._metrics.worker_table import METRICS, WORKER

BY_NAME: Final[Mapping[str, Metric]] = MappingProxyType({metric.name: metric for metric in METRICS})


class Histogram:
    """Counts of observations by size, for use by one thread; another may read them meanwhile.

    ``counts`` has one more entry than there are bounds: what lies above the last.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @classmethod
    def of(cls, name: str) -> Histogram:
        """An empty one with the bounds that the table gives a metric."""
        return cls(BY_NAME[name].buckets)

    def observe(self, value: float) -> None:
        """Takes an observation in."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def __add__(self, other: Histogram) -> Histogram:
        both = Histogram(self.bounds)
        both.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        both.total = self.total + other.total
        return both


class Sample(NamedTuple):
    """What a metric is now: ``labels`` are the values of the labels that the table gives it, in that order."""

    name: str
    labels: tuple[str, ...]
    value: float | Histogram


Source: TypeAlias = Callable[[], Iterable[Sample]]
"""Says what its metrics are now. May be called from any thread, at any time."""

__all__ = [
    "BY_NAME",
    "Histogram",
    "METRICS",
    "Metric",
    "SERVICE",
    "Sample",
    "Source",
    "WORKER",
]
