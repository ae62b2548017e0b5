"""Exclusive ownership from Python: evenness and moves against a search over all tables, and what is refused."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ringcast_core import MAX_WEIGHT, assign_sticky

NAMES = ["a", "b", "c", "d"]
GOOD: dict[str, Any] = {"owners": ["a", None], "workers": ["a", "b"]}


def is_even(
    table: list[str], workers: dict[str, int], loads: list[int], pins: dict[int, str], drains: set[str]
) -> bool:
    """Whether pins and drains are obeyed, and no free partition has a worker that it would leave less full."""
    load = Counter(dict.fromkeys(workers, 0))
    for partition, name in enumerate(table):
        load[name] += loads[partition]
    taking = [name for name in workers if name not in drains]
    for partition, name in enumerate(table):
        pin = pins.get(partition)
        if name in drains or (pin in taking and pin != name):
            return False
        if pin not in taking and any(
            Fraction(load[other] + loads[partition], workers[other]) < Fraction(load[name], workers[name])
            for other in taking
            if other != name
        ):
            return False
    return True


def moves(owners: list[str | None], workers: dict[str, int], table: list[str]) -> int:
    return sum(owner in workers and owner != name for owner, name in zip(owners, table, strict=True))


@st.composite
def drawn(draw: st.DrawFn, most: int) -> dict[str, Any]:
    workers = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3), min_size=1))
    owners = draw(st.lists(st.sampled_from([*NAMES, "gone", None]), min_size=1, max_size=most))
    drains = draw(st.sets(st.sampled_from(NAMES), max_size=2))
    if drains >= workers.keys():
        drains = set()
    pins = draw(st.dictionaries(st.integers(0, len(owners) - 1), st.sampled_from([*NAMES, "gone"]), max_size=2))
    return {"owners": owners, "workers": workers, "pins": pins, "drains": drains}


def call(case: dict[str, Any], loads: list[int] | None = None) -> list[str]:
    return assign_sticky(
        case["owners"],
        case["workers"],
        capacities=case["workers"].values(),
        loads=loads,
        pins=case["pins"],
        drains=case["drains"],
    )


@given(drawn(6), st.integers(1, MAX_WEIGHT))
def test_no_even_table_needs_fewer_moves(case: dict[str, Any], load: int) -> None:
    table, ones = call(case), [1] * len(case["owners"])
    rest = {name: case[name] for name in ("workers", "pins", "drains")}
    assert is_even(table, loads=ones, **rest)
    every = map(list, itertools.product(case["workers"], repeat=len(table)))
    fewest = min(moves(case["owners"], case["workers"], other) for other in every if is_even(other, loads=ones, **rest))
    assert moves(case["owners"], case["workers"], table) == fewest
    assert call(case, [load] * len(table)) == table


@given(drawn(40), st.data())
@settings(max_examples=200)
def test_different_loads_are_even_and_stay(case: dict[str, Any], data: st.DataObject) -> None:
    count = len(case["owners"])
    loads = data.draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    table = call(case, loads)
    assert is_even(table, loads=loads, **{name: case[name] for name in ("workers", "pins", "drains")})
    assert call(case | {"owners": table}, loads) == table
    other_order = dict(sorted(case["workers"].items(), reverse=True))
    assert call(case | {"workers": other_order}, loads) == table


def test_every_worker_has_the_floor_or_the_ceiling() -> None:
    workers = [f"worker-{n}" for n in range(200)]
    table = assign_sticky([None] * 4096, workers)
    assert set(Counter(table).values()) == {20, 21}
    fewer = assign_sticky(table, workers[1:])
    assert sum(old != new for old, new in zip(table, fewer, strict=True)) == table.count("worker-0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"owners": []}, "number of owners must be between 1 and 4096, got 0"),
        ({"owners": [None] * 4097}, "number of owners must be between 1 and 4096, got 4097"),
        ({"workers": []}, "number of workers must be between 1 and 1024, got 0"),
        ({"workers": ["a", "a"]}, 'workers must not repeat an entry, got "a" twice'),
        ({"workers": ["a", ""]}, "worker name length in bytes must be between 1 and 512, got 0"),
        ({"capacities": [1]}, "capacities must have as many entries as workers, 2, got 1"),
        ({"capacities": [1, 0]}, "capacity must be between 1 and 1000000, got 0"),
        ({"capacities": [1, -1]}, r"capacities\[1\] must be between 1 and 1000000, got -1"),
        ({"loads": [1]}, "loads must have as many entries as there are partitions, 2, got 1"),
        ({"loads": [1, 1_000_001]}, "load must be between 1 and 1000000, got 1000001"),
        ({"pins": {2: "a"}}, "pinned partition must be between 0 and 1, got 2"),
        ({"pins": {-1: "a"}}, "pinned partition must be between 0 and 4095, got -1"),
        ({"pins": {5000: "gone"}}, "pinned partition must be between 0 and 4095, got 5000"),
        ({"drains": ["a", "b"]}, "workers that do not drain must have at least one entry, got none"),
        ({"owners": ["a", "\ud800"]}, r"owners\[1\] must be encodable as UTF-8, got a lone surrogate"),
    ],
)
def test_bad_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        assign_sticky(**(GOOD | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"owners": "ab"}, "owners must be a sequence of str and None, not one str"),
        ({"owners": ["a", 1]}, r"owners\[1\] must be str, got int"),
        ({"workers": "ab"}, "workers must be a sequence of str, not one str"),
        ({"pins": [(0, "a")]}, "pins must be dict, got list"),
        ({"pins": {0: None}}, r"pins\[0\] must be str, got NoneType"),
    ],
)
def test_bad_types(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        assign_sticky(**(GOOD | arguments))
