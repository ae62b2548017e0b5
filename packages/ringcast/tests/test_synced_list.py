"""A key that is made equal to another list, as its worker sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringcast import Change
from ringcast_client import RowWrite
from ringcast_testkit import PATIENCE_S

if TYPE_CHECKING:
    from packages.ringcast.tests.conftest import Store


async def test_workers_hear_of_the_difference_only(store: Store) -> None:
    await store.create()
    rows = [RowWrite(f"row{number}", "v") for number in range(500)]
    await store.client.sync(store.name, "list", rows)
    changes: list[Change] = []
    async with store.worker(handler=changes.append) as worker:
        await worker.wait_until("list", lambda: len(changes) == 500, timeout_s=PATIENCE_S)
        changes.clear()
        await store.client.sync(store.name, "list", [*rows[1:], RowWrite("row5", "other")])
        await worker.wait_until("list", lambda: len(changes) == 2, timeout_s=PATIENCE_S)
    assert {(change.row_id, change.deleted) for change in changes} == {("row0", True), ("row5", False)}
