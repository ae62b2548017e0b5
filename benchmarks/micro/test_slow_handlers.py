"""Slow handlers of a worker, beside a consumer whose pulls are fixed."""

from __future__ import annotations

from pathlib import Path

import pytest
from ringcast_testkit import ConfigServiceProcess, NatsServer

from benchmarks.slow_handlers import measure, prepare

EVENTS = 40


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "async"])
def test_slow_handlers(tmp_path: Path, blocks: bool) -> None:
    with NatsServer(tmp_path / "nats") as server:
        database = f"sqlite:{tmp_path / 'ringcast.db'}"
        with ConfigServiceProcess(tmp_path, nats_url=server.url, database=database) as service:
            prepare(service.address)
            ours, fixed = measure(server.url, service.address, "key", EVENTS, blocks=blocks, call_s=(0.001, 0.002))
    assert ours.delivered >= EVENTS
    assert fixed.delivered >= EVENTS
    assert ours.took_s > 0
