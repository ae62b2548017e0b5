"""Deduplication of gathered changes beside a plain dict, each keeping the newest version of a row."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ringcast_core import Dedup

from benchmarks.micro.core_peer import beside

CHANGES = 16_384
Change = tuple[int, str, int, bool]


def changes(rows: int) -> list[Change]:
    """Changes to so many rows, in random order."""
    draw = random.Random(7)
    numbers = [draw.randrange(rows) for _ in range(CHANGES)]
    return [(number % 256, f"row-{number:06d}", version, False) for version, number in enumerate(numbers, start=1)]


@pytest.mark.parametrize("rows", [100, 10_000, 1_000_000])
def test_dedup(benchmark: Any, rows: int) -> None:
    """From all changes of one row again and again to each of another row."""
    pushed = changes(rows)

    def ours() -> list[Change]:
        dedup = Dedup(CHANGES)
        dedup.push_many(pushed)
        return dedup.drain()

    def plain() -> list[Change]:
        newest: dict[tuple[int, str], Change] = {}
        for change in pushed:
            held = newest.get(change[:2])
            if held is None or held[2] < change[2]:
                newest[change[:2]] = change
        return list(newest.values())

    found = beside(benchmark, f"dedup, {CHANGES} changes of {rows} rows", CHANGES, ours, plain)
    assert found == plain()
