"""From "change number n was due then" and "a subscriber had it then" to latencies, percentiles and a histogram.

Changes are numbered from 0 and were due at a fixed rate, whether the system kept up or not: what waited because the one
before it was slow counts in full (no coordinated omission). Change ``n`` writes row ``n mod rows``. A change that was
never heard of because a later one to its row was heard first counts as known from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PERCENTILES = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p99.9_ms": 99.9}
SLICES = 8
"""Into how many stretches of time a run is cut, for the spread of its percentiles."""
_STEP = 1.05
"""Each class of the histogram is so many times as wide as the one before it."""
_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Schedule:
    """When each change was due, on the machine's monotonic clock."""

    start_ns: int
    rate: float
    count: int
    rows: int

    def due_ns(self) -> Floats:
        """Relative to ``start_ns``."""
        return np.arange(self.count, dtype=np.float64) * (1e9 / self.rate)


def latencies_ms(schedule: Schedule, heard: Sequence[tuple[Ints, Ints]], *, by_all: bool) -> Floats:
    """For each change, how long after it was due it was known; infinite when it never was.

    ``heard`` has, for each subscriber, numbers of changes and when they came (monotonic, ns). ``by_all``: known is what
    every subscriber knows; otherwise what one of them does, since each row has one owner.
    """
    known = [_known_ns(schedule, numbers, at) for numbers, at in heard]
    if not known:
        return np.full(schedule.count, np.inf)
    together = np.max(known, axis=0) if by_all else np.min(known, axis=0)
    return np.asarray((together - schedule.due_ns()) / _NS_PER_MS, dtype=np.float64)


def _known_ns(schedule: Schedule, numbers: Ints, at: Ints) -> Floats:
    """When one subscriber knew each change or a later one of its row, relative to the start."""
    rounds = -(-schedule.count // schedule.rows)
    first = np.full(rounds * schedule.rows, np.inf)
    # What was heard before the start is what an earlier load left, by the same numbers.
    ours = (numbers >= 0) & (numbers < schedule.count) & (at >= schedule.start_ns)
    # At least once: the first time counts.
    np.minimum.at(first, numbers[ours], (at[ours] - schedule.start_ns).astype(np.float64))
    by_row = first.reshape(rounds, schedule.rows)
    known = np.minimum.accumulate(by_row[::-1], axis=0)[::-1]
    return np.asarray(known.reshape(-1)[: schedule.count], dtype=np.float64)


def percentiles(values: Floats) -> dict[str, float]:
    """The usual ones and the maximum; infinite where too much never came."""
    if not len(values):
        return {}
    ordered = np.sort(values)
    # The smallest value that so many of all values do not exceed: never a mean of a number and infinity.
    found = {name: float(ordered[_rank(percent, len(ordered))]) for name, percent in PERCENTILES.items()}
    return {**found, "max_ms": float(ordered[-1])}


def _rank(percent: float, count: int) -> int:
    # 99.9 % of 1,000 is 999: the binary fraction would make it a little more, and the next one up.
    return min(count - 1, max(0, int(np.ceil(round(percent * count / 100, 6))) - 1))


def slices(values: Floats, count: int = SLICES) -> list[dict[str, float]]:
    """The percentiles of equal stretches of the run, for its spread. Short runs have fewer."""
    parts = np.array_split(values, max(1, min(count, len(values) // 10)))
    return [percentiles(part) for part in parts]


def histogram(values: Floats) -> list[tuple[float, int]]:
    """Upper bound in ms and count of each class that has any, in rising order; classes are 5 % wide.

    What never came stands last, with the bound ``inf``.
    """
    finite = values[np.isfinite(values)]
    found: list[tuple[float, int]] = []
    if len(finite):
        classes = np.ceil(np.log(np.maximum(finite, 1e-3)) / np.log(_STEP)).astype(np.int64)
        numbers, counts = np.unique(classes, return_counts=True)
        bounds = _STEP ** numbers.astype(np.float64)
        found = [(round(float(bound), 6), int(n)) for bound, n in zip(bounds, counts, strict=True)]
    lost = len(values) - len(finite)
    return [*found, (float("inf"), lost)] if lost else found


def spread(samples: Sequence[float]) -> float:
    """Half the distance between the quartiles, as a share of the median; 0 for a single sample."""
    finite = [sample for sample in samples if np.isfinite(sample)]
    if len(finite) < 2:
        return 0.0
    low, middle, high = np.percentile(finite, [25, 50, 75])
    return float((high - low) / 2 / abs(middle)) if middle else 0.0


def samples_of(parts: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """One figure of each part that has it."""
    return [part[name] for part in parts if name in part]
