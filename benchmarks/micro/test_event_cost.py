"""An event in a worker: bare, with metrics, with traces."""

from __future__ import annotations

import asyncio

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.worker_events import PARTITIONS, VARIANTS, Variant, measure

EVENTS = PARTITIONS * 50


@pytest.mark.parametrize("at_once", [1, 64])
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name.replace(" ", "-"))
def test_event(benchmark: BenchmarkFixture, variant: Variant, at_once: int) -> None:
    benchmark.group = f"{EVENTS} events in a worker, {at_once} at a time"
    costs: list[float] = []
    benchmark.pedantic(lambda: costs.append(asyncio.run(measure(variant, EVENTS, at_once))), rounds=5)
    assert min(costs) > 0
