"""Records that no broker takes."""

from __future__ import annotations

import logging
from collections import deque

from ringcast_wire import EventLog, RingcastError

from ringcast_config_service.repository import OutboxRecord, OutboxRepository
from ringcast_config_service.telemetry import Measures

log = EventLog(logging.getLogger(__name__))


class RefusedRecords:
    """Takes them out of the outbox, with the reason; workers get their rows by fetches.

    A record leaves ``in_memory`` and ``bare`` once that is written.
    """

    def __init__(
        self, store: str, repository: OutboxRepository, in_memory: set[int], bare: set[int], measures: Measures
    ) -> None:
        self._store = store
        self._repository = repository
        self._in_memory = in_memory
        self._bare = bare
        self._measures = measures
        self._waiting: deque[tuple[OutboxRecord, str]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, record: OutboxRecord, reason: str) -> None:
        """Queues a record for :meth:`write`."""
        self._waiting.append((record, reason))

    async def write(self) -> None:
        """Writes all that are queued; what the database does not take stays queued."""
        while self._waiting:
            record, reason = self._waiting[0]
            try:
                await self._repository.refuse_event(record.id, reason)
            except RingcastError as error:
                log.warning("relay.outbox_unwritable", store=self._store, error=error)
                return
            self._waiting.popleft()
            self._bare.discard(record.id)
            self._in_memory.discard(record.id)
            self._measures.events_refused += 1
            log.error(
                "relay.event_refused",
                store=self._store,
                subject=record.subject,
                id=record.id,
                msg_id=record.msg_id,
                reason=reason,
            )
