"""Puts with a token beside clients without one."""

from __future__ import annotations

import asyncio

from benchmarks.grpc_port import measure


def test_puts_beside_clients_without_a_token() -> None:
    found = asyncio.run(measure(connections=40, seconds=1))
    assert [len(phase.latencies_s) for phase in found.phases] == [50, 50, 50]
    assert found.ratio(0.5) > 0
    assert "UNAUTHENTICATED" in found.told
