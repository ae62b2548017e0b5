"""Which stores' records an agent watches, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from ringcast import LimitExceededError
from ringcast_heartbeat_agent.leases import records
from ringcast_heartbeat_agent.leases.records import UNUSED_S, StoreRecords
from ringcast_heartbeat_agent.leases.registry import Registration, WorkerRegistry
from ringcast_wire import limits


class Records:
    """The records of one store: counts how often they were compared with the registrations."""

    def __init__(self, bus: object, store: str, lease: str, living: Callable[[], object]) -> None:
        self.store, self.lease, self.living = store, lease, living
        self.deleted = 2
        self.looks = 0
        self.ends: list[tuple[str, str]] = []

    def ended(self, worker_id: str, incarnation: str) -> None:
        self.ends.append((worker_id, incarnation))

    def look(self) -> None:
        self.looks += 1

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_records_are_watched_until_their_store_was_without_a_worker_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "HostRecords", Records)
    registry = WorkerRegistry(10)
    worker = registry.register(Registration("a", "i", 1, "s", ("k",), 0), 1)
    async with asyncio.TaskGroup() as tasks:
        watched = StoreRecords(cast(Any, None), registry, tasks)
        found = cast(Any, watched.of("s", "lease"))
        assert cast(Any, watched.of("s", "lease")) is found
        watched.ended("s", "a", "i")
        watched.ended("other", "a", "i")
        assert found.ends == [("a", "i")]
        watched.look()
        assert (found.looks, found.lease, found.living()) == (1, "lease", frozenset({("k", "a")}))
        watched.end_unused(0.0)
        registry.left(worker)
        watched.end_unused(1.0)
        watched.end_unused(UNUSED_S)
        assert "s" in watched
        watched.end_unused(1.0 + UNUSED_S)
        assert "s" not in watched
        assert watched.deleted == 2, "what was counted is not forgotten"
        for number in range(limits.MAX_STORES):
            watched.of(f"s{number}", "lease")
        with pytest.raises(LimitExceededError):
            watched.of("one-more", "lease")
        watched.stop()
