"""A store or a key that is deleted under running workers: they end, and no row is handed over as deleted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ringcast import Change, KeyDeletedError, Mode, StoreDeletedError, Worker
from ringcast_testkit import PATIENCE_S, until
from ringcast_wire import Strategy

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store


@pytest.fixture(params=[Strategy.JUMP, Strategy.STICKY])
def strategy(request: pytest.FixtureRequest) -> Strategy:
    """Of stores whose workers share their partitions out, with one owner at every moment or not."""
    found: Strategy = request.param
    return found


class Seen:
    """What a worker's application was told."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.assigned: set[tuple[str, int]] = set()
        self.revoked: list[tuple[str, int]] = []

    def handle(self, change: Change) -> None:
        self.changes.append(change)

    def on_assigned(self, key: str, partitions: frozenset[int]) -> None:
        self.assigned |= {(key, partition) for partition in partitions}

    def on_revoked(self, key: str, partitions: frozenset[int]) -> None:
        self.revoked += [(key, partition) for partition in partitions]

    @property
    def settings(self) -> dict[str, Any]:
        callbacks = {"handler": self.handle, "on_assigned": self.on_assigned, "on_revoked": self.on_revoked}
        return {**callbacks, "heads_s": 0.2}

    async def all_assigned(self, key: str) -> None:
        """A worker may be ready before its application is told of the last partitions."""
        await until(lambda: {(key, partition) for partition in range(8)} <= self.assigned)

    def revoked_of(self, key: str) -> list[int]:
        return sorted(partition for name, partition in self.revoked if name == key)


async def _whole_life(worker: Worker) -> None:
    """The start may return before it is known."""
    await worker.start()
    await worker.wait_closed()


@pytest.mark.parametrize(
    ("mode", "shares"),
    [(Mode.PARTITIONED, Strategy.JUMP), (Mode.PARTITIONED, Strategy.STICKY), (Mode.FULL, Strategy.JUMP)],
)
async def test_a_deleted_store_ends_its_workers(store: Store, mode: Mode, shares: Strategy) -> None:
    await store.create(mode=mode, strategy=shares)
    for number in range(20):
        await store.put(f"row{number}", "1")
    seen = Seen()
    worker = store.worker(**seen.settings)
    await worker.start()
    await worker.wait_ready(timeout_s=PATIENCE_S)
    await seen.all_assigned("list")
    await store.client.delete_store(store.name)
    with pytest.raises(StoreDeletedError, match=r"was deleted at .* UTC, it can be restored until"):
        await worker.wait_closed()
    assert [change.deleted for change in seen.changes] == [False] * 20
    assert seen.revoked_of("list") == list(range(8))

    with pytest.raises(StoreDeletedError, match="was deleted at"):
        await store.worker("late").start()
    await store.client.restore_store(store.name)
    again = Seen()
    async with store.worker(**again.settings) as worker:
        await worker.wait_until("list", lambda: len(again.changes) == 20, timeout_s=PATIENCE_S)


async def test_a_deleted_key_of_several_is_given_up_and_the_others_go_on(store: Store, strategy: Strategy) -> None:
    await store.create(strategy=strategy)
    for number in range(20):
        await store.put(f"row{number}", "1")
        await store.put(f"row{number}", "1", key="other")
    seen = Seen()
    async with store.worker(keys=("list", "other"), **seen.settings) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await seen.all_assigned("list")
        await store.client.delete_key(store.name, "list")
        with pytest.raises(KeyDeletedError, match="config key 'list' of store"):
            await worker.wait_until("list", lambda: False, timeout_s=PATIENCE_S)
        assert worker.owned("list") == frozenset()
        with pytest.raises(KeyDeletedError):
            await worker.wait_for("list", 0, 1)
        health = {key.key: key.deleted_because for key in worker.health().keys}
        assert ("was deleted at" in health["list"], health["other"]) == (True, "")
        await store.put("row0", "2", key="other")
        await worker.wait_until("other", lambda: seen.changes[-1].value == "2", timeout_s=PATIENCE_S)
        assert seen.revoked_of("list") == list(range(8))
        assert seen.revoked_of("other") == []

        # It counts no more: another worker has all partitions once the key is back.
        await store.client.restore_key(store.name, "list")
        other = Seen()
        async with store.worker("second", **other.settings) as second:
            await second.wait_until("list", lambda: len(second.owned("list")) == 8, timeout_s=PATIENCE_S)
            await second.wait_until("list", lambda: len(other.changes) == 20, timeout_s=PATIENCE_S)
    assert not any(change.deleted for change in seen.changes)


async def test_the_last_key_ends_the_worker(store: Store, strategy: Strategy) -> None:
    await store.create(strategy=strategy)
    await store.put("a", "1")
    seen = Seen()
    worker = store.worker(**seen.settings)
    await worker.start()
    await worker.wait_ready(timeout_s=PATIENCE_S)
    await seen.all_assigned("list")
    await store.client.delete_key(store.name, "list")
    with pytest.raises(KeyDeletedError, match="config key 'list' of store"):
        await worker.wait_closed()
    assert [change.deleted for change in seen.changes] == [False]
    assert seen.revoked_of("list") == list(range(8))
    with pytest.raises(KeyDeletedError):
        await _whole_life(store.worker("late"))


async def test_rows_in_the_cache_don_t_hide_a_deletion(store: Store, tmp_path: Path, strategy: Strategy) -> None:
    await store.create(strategy=strategy)
    await store.put("a", "1")
    async with store.worker(cache_dir=tmp_path) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
    await store.client.delete_store(store.name)
    seen = Seen()
    with pytest.raises(StoreDeletedError):
        await _whole_life(store.worker(cache_dir=tmp_path, **seen.settings))
    assert not any(change.deleted for change in seen.changes)
