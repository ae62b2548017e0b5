"""Puts with a token beside clients without one."""

from __future__ import annotations

import asyncio

from benchmarks.grpc_port import MOST_MEMORY_MIB, Findings, Phase, measure


def test_puts_beside_clients_without_a_token() -> None:
    found = asyncio.run(measure(connections=40, seconds=1))
    assert [len(phase.latencies_s) for phase in found.phases] == [50, 50, 50]
    assert found.ratio(0.5) > 0
    assert [phase.failures for phase in found.phases] == [0, 0, 0]
    assert 0 < max(phase.memory_mib for phase in found.phases) < MOST_MEMORY_MIB
    assert "UNAUTHENTICATED" in found.told


def test_goals_that_are_missed_are_named() -> None:
    quiet, loaded = Phase("quiet", [0.001] * 100), Phase("2 more", [0.002] * 100, memory_mib=100.0)
    assert Findings([quiet, loaded], "").missed() == []
    slow = Phase("2 more", [0.004] * 100, failures=2, memory_mib=500.0)
    assert Findings([quiet, slow], "").missed() == [
        "2 puts failed",
        "p99 is 4.00 times that of the quiet phases: at most 3 is the goal",
        "the service took 500 MiB: at most 381 is the goal",
    ]
