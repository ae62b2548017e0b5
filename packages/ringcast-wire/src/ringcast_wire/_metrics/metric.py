"""What a metric is, and the buckets of histograms."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
Emitter = Literal["worker", "config service", "agent"]


class Metric(NamedTuple):
    """One metric. A counter's name ends in ``_total``; ``reference``: its name in the reference design, if it has one.

    ``buckets`` are the upper bounds of a histogram, rising, in ``unit``; the last bucket above them has no bound.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    help: str
    emitter: Emitter
    reference: str = ""
    buckets: tuple[float, ...] = ()


SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHORT_SECONDS: Final = (0.000_01, 0.000_1, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0)
