"""A message in an agent, from its worker's handler to a consumer's connection and back."""

from __future__ import annotations

import asyncio

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.agent_messages import measure

MESSAGES = 4_000


@pytest.mark.parametrize("at_once", [1, 64])
def test_message(benchmark: BenchmarkFixture, at_once: int) -> None:
    benchmark.group = f"{MESSAGES} messages in an agent, {at_once} at a time"
    costs: list[float] = []
    benchmark.pedantic(lambda: costs.append(asyncio.run(measure(MESSAGES, at_once))), rounds=5)
    assert min(costs) > 0
