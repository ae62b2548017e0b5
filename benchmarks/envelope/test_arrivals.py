"""Latencies from what was due and what was heard."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.envelope import arrivals
from benchmarks.envelope.arrivals import Ints, Schedule
from benchmarks.envelope.plots import percentile_points

MS = 1_000_000
START = 5_000 * MS


def heard(*pairs: tuple[int, float]) -> tuple[Ints, Ints]:
    """Numbers of changes, and when they came in ms after the start."""
    return np.array([number for number, _ in pairs]), np.array([START + int(at * MS) for _, at in pairs])


def test_time_runs_from_when_a_change_was_due() -> None:
    schedule = Schedule(START, rate=100, count=3, rows=3)
    found = arrivals.latencies_ms(schedule, [heard((0, 1), (2, 50), (1, 30))], by_all=False)
    assert found.tolist() == [1, 20, 30]


def test_a_later_change_of_the_row_makes_an_earlier_one_known() -> None:
    schedule = Schedule(START, rate=1_000, count=5, rows=2)
    found = arrivals.latencies_ms(schedule, [heard((1, 2), (4, 9))], by_all=False)
    assert found.tolist() == [9, 1, 7, math.inf, 5]


def test_what_comes_twice_counts_the_first_time() -> None:
    schedule = Schedule(START, rate=1_000, count=1, rows=1)
    assert arrivals.latencies_ms(schedule, [heard((0, 7), (0, 3), (9, 1))], by_all=False).tolist() == [3]


def test_what_an_earlier_load_left_is_not_heard_of() -> None:
    schedule = Schedule(START, rate=1_000, count=2, rows=1)
    assert arrivals.latencies_ms(schedule, [heard((1, -3), (0, 2), (1, 3))], by_all=False).tolist() == [2, 2]


def test_known_to_one_of_them_or_to_all() -> None:
    schedule = Schedule(START, rate=1_000, count=2, rows=2)
    both = [heard((0, 1), (1, 4)), heard((0, 6))]
    assert arrivals.latencies_ms(schedule, both, by_all=False).tolist() == [1, 3]
    assert arrivals.latencies_ms(schedule, both, by_all=True).tolist() == [6, math.inf]
    assert arrivals.latencies_ms(schedule, [], by_all=True).tolist() == [math.inf, math.inf]


def test_percentiles_are_values_that_occurred() -> None:
    values = np.arange(1.0, 1001.0)
    found = arrivals.percentiles(values)
    assert found == {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p99.9_ms": 999, "max_ms": 1000}
    values[-5:] = math.inf
    assert arrivals.percentiles(values)["p99.9_ms"] == math.inf
    assert arrivals.percentiles(values[:0]) == {}


def test_histogram_holds_everything() -> None:
    values = np.array([0.0, 1.0, 1.01, 250.0, math.inf])
    found = arrivals.histogram(values)
    assert sum(count for _, count in found) == len(values)
    assert found[-1] == (math.inf, 1)
    bounds = [bound for bound, _ in found]
    assert bounds == sorted(bounds)
    assert next(bound for bound in bounds if bound >= 250) < 250 * 1.05
    assert percentile_points(found)[-1][1] < 250 * 1.05


def test_spread_is_half_the_distance_between_the_quartiles() -> None:
    assert arrivals.spread([8.0, 10.0, 12.0]) == 0.1
    assert arrivals.spread([3.0]) == 0
    assert arrivals.spread([1.0, math.inf]) == 0
