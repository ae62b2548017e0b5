"""Published records leave the outbox, also when the database fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from ringcast_config_service.nats import published
from ringcast_config_service.nats.published import PublishedRecords
from ringcast_testkit import PATIENCE_S
from ringcast_wire import UnavailableError


class Outbox:
    """Deletes records, but not in its first ``failures`` calls."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.deleted: list[list[int]] = []

    async def delete_events(self, ids: Sequence[int]) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("the database is away")
        self.deleted.append(list(ids))


def made(outbox: Any, in_memory: set[int]) -> PublishedRecords:
    return PublishedRecords(outbox, in_memory, 2)


async def test_they_are_deleted_in_batches_and_leave_the_memory() -> None:
    outbox, in_memory = Outbox(), {1, 2, 3, 4}
    records = made(outbox, in_memory)
    for record_id in (1, 2, 3):
        records.add(record_id)
    await records.delete()
    assert outbox.deleted == [[1, 2], [3]]
    assert in_memory == {4}


async def test_a_failure_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Less and less often while it lasts, and logged once: the database may be away for hours."""
    monkeypatch.setattr(published, "_DELETE_EVERY_S", 0.0)
    monkeypatch.setattr(published, "_RETRY_MOST_S", 0.0)
    outbox, in_memory = Outbox(failures=2), {1}
    records = made(outbox, in_memory)
    records.add(1)
    task = asyncio.create_task(records.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while in_memory:  # noqa: ASYNC110
                await asyncio.sleep(0)
    finally:
        task.cancel()
    assert outbox.deleted == [[1]]
    assert caplog.text.count("event=relay.outbox_unwritable") == 1
    outbox.failures = 1
    records.add(2)
    await records.delete()
    assert caplog.text.count("event=relay.outbox_unwritable") == 2, "another outage"
