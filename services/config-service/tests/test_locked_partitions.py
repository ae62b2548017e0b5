"""For how long a partition counts as locked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ringcast_config_service.writes.locked_partitions import LOCKED_S, LockedPartitions


def request(key: str, *partitions: int) -> Any:
    return SimpleNamespace(store=SimpleNamespace(name="s"), key=key, partitions=partitions)


def test_a_partition_counts_as_locked_for_a_while() -> None:
    locked = LockedPartitions()
    assert not locked
    locked.add(request("k", 1, 2), 10.0)
    assert locked
    assert locked.has_any_of(request("k", 0, 2), 10.0 + LOCKED_S - 0.1)
    assert not locked.has_any_of(request("k", 0, 2), 10.0 + LOCKED_S)
    assert not locked.has_any_of(request("k", 0, 3), 10.0)
    assert not locked.has_any_of(request("other", 1), 10.0)


def test_a_transaction_that_gets_its_locks_ends_that() -> None:
    locked = LockedPartitions()
    locked.add(request("k", 1, 2), 0.0)
    locked.remove(request("k", 1))
    assert not locked.has_any_of(request("k", 1), 1.0)
    assert locked.has_any_of(request("k", 2), 1.0)
    locked.remove(request("k", 2, 3))
    locked.remove(request("other", 2))
    assert not locked
