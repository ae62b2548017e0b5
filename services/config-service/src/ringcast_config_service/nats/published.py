"""Records that the broker has and the outbox still has too."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import Final

from ringcast_wire import Backoff, EventLog

from ringcast_config_service.repository import OutboxRepository

log = EventLog(logging.getLogger(__name__))

_DELETE_EVERY_S: Final = 0.1
"""Well below the time between two polls of the outbox, so that published records are seldom seen there."""
_RETRY_MOST_S: Final = 5.0


class PublishedRecords:
    """Deletes published records from the outbox, many at a time. A record leaves ``in_memory`` once it is deleted."""

    def __init__(self, repository: OutboxRepository, in_memory: set[int], batch: int) -> None:
        self._repository = repository
        self._in_memory = in_memory
        self._batch = batch
        self._ids: deque[int] = deque()
        self._added = asyncio.Event()
        self._deleting = asyncio.Lock()
        self._backoff = Backoff(random.random, first_s=_DELETE_EVERY_S, most_s=_RETRY_MOST_S)
        self._wait_s = _DELETE_EVERY_S

    def add(self, record_id: int) -> None:
        """The broker has this record."""
        self._ids.append(record_id)
        self._added.set()

    async def run(self) -> None:
        """Deletes now and then, for as long as it is not cancelled."""
        while True:
            await self._added.wait()
            await asyncio.sleep(self._wait_s)
            self._added.clear()
            await self.delete()

    async def delete(self) -> None:
        """Deletes all; after a failure the rest is left to :meth:`run`. Only the first of several is logged."""
        async with self._deleting:
            while self._ids:
                ids = [self._ids[number] for number in range(min(len(self._ids), self._batch))]
                try:
                    await self._repository.delete_events(ids)
                except Exception as error:  # noqa: BLE001  # whatever it was, it is tried again
                    if not self._backoff.failures:
                        log.warning("relay.outbox_unwritable", error=error)
                    self._wait_s = self._backoff.next_s()
                    self._added.set()
                    return
                self._backoff.reset()
                self._wait_s = _DELETE_EVERY_S
                for _ in ids:
                    self._ids.popleft()
                self._in_memory.difference_update(ids)
