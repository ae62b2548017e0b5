"""Handlers that take a different time for each call, several at once: each row's versions rise and its last is handled.

The delays come from a seed. NATS and the config service are real, so what is written while handlers run is not the same
twice; what is promised is the same always.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest
from ringcast import Change, Worker
from ringcast_client import RowWrite
from ringcast_testkit import PATIENCE_S

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store

ROWS = 24
WRITES = 1_200
PARTITIONS = 4
LONGEST_S = 0.02


class Ledger:
    """A handler that checks what it is called with, and remembers it."""

    def __init__(self, seed: int, failing: float) -> None:
        self.begun: dict[str, int] = {}
        self.handled: dict[str, tuple[int, str | None]] = {}
        self.most = 0
        self.wrong: list[str] = []
        self.calls = 0
        self._random = Random(seed)
        self._failing = failing
        self._running: set[str] = set()

    async def __call__(self, change: Change) -> None:
        """Takes its time; now and then it raises, so that it is called with the same change again."""
        self.calls += 1
        if change.row_id in self._running:
            self.wrong.append(f"{change.row_id}: version {change.version} while another was being handled")
        if change.version < self.begun.get(change.row_id, 0):
            self.wrong.append(f"{change.row_id}: version {change.version} after {self.begun[change.row_id]}")
        self.begun[change.row_id] = change.version
        self._running.add(change.row_id)
        self.most = max(self.most, len(self._running))
        try:
            await asyncio.sleep(self._random.choice((0.0, self._random.random() * LONGEST_S)))
            if self._random.random() < self._failing:
                raise ValueError("not this time")
        finally:
            self._running.discard(change.row_id)
        self.handled[change.row_id] = (change.version, change.value)


class Writer:
    """Writes and deletes rows one by one and in bulk; rows early in the list far more often than late ones."""

    def __init__(self, store: Store, seed: int) -> None:
        self.last: dict[str, tuple[int, str | None]] = {}
        self._store = store
        self._random = Random(seed)

    async def run(self) -> None:
        """Makes all its writes."""
        number = 0
        while number < WRITES:
            count = self._random.choice((1, 1, 1, 12))
            number += count
            await (self._one(number) if count == 1 else self._many(number, count))

    async def _one(self, number: int) -> None:
        row_id = self._row_id()
        value = None if self._random.random() < 0.2 else f"v{number}"
        if value is not None:
            _, version = await self._store.put(row_id, value)
        elif self.last.get(row_id, (0, None))[1] is not None:
            version = (await self._store.client.delete(self._store.name, "list", row_id)).version
        else:
            return  # there is nothing to delete
        self.last[row_id] = (version, value)

    async def _many(self, number: int, count: int) -> None:
        values = {self._row_id(): f"v{number}.{at}" for at in range(count)}
        writes = [RowWrite(row_id, value) for row_id, value in values.items()]
        async for _ in self._store.client.bulk_write(self._store.name, "list", writes):
            pass
        async for row in self._store.client.list(self._store.name, "list"):
            if row.row_id in values:
                self.last[row.row_id] = (row.version, row.value)

    def _row_id(self) -> str:
        return f"r{int(ROWS * self._random.random() ** 2)}"


async def _until_handled(
    worker: Worker, ledger: Ledger, last: dict[str, tuple[int, str | None]], heads: dict[int, int]
) -> None:
    """Waits until the last version of each row has been handled, whatever became of those before it."""
    live = {row_id: state for row_id, state in last.items() if state[1] is not None}

    def done() -> bool:
        if worker.applied("list") != heads:
            return False
        shown = {row_id: state for row_id, state in ledger.handled.items() if state[1] is not None}
        return shown == live

    await worker.wait_until("list", done, timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("parallel", "inline", "failing"), [(1, None, 0.0), (2, 0, 0.0), (4, None, 0.05), (16, 0, 0.0), (64, None, 0.0)]
)
async def test_the_order_of_a_row_is_kept_whatever_the_handlers_take(
    store: Store, parallel: int, inline: int | None, failing: float
) -> None:
    await store.create(partition_count=PARTITIONS, inline=inline)
    ledger, writer = Ledger(parallel, failing), Writer(store, parallel)
    async with store.worker(handler=ledger, max_parallel_handlers=parallel, handler_tries=20, window_s=0.01) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        await writer.run()
        heads = dict(enumerate(await store.client.heads(store.name, "list")))
        await _until_handled(worker, ledger, writer.last, heads)
        assert worker.stats().poisoned == 0
    assert ledger.wrong == []
    assert min(parallel, 2) <= ledger.most <= parallel
    assert ledger.calls > ROWS
