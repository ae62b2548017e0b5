"""What is left of a store in the outbox, a page at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import Final, Protocol

from ringcast_wire import Backoff, EventLog, RingcastError, limits

from ringcast_config_service.nats.claims import Claims
from ringcast_config_service.repository import OutboxRecord, OutboxRepository

log = EventLog(logging.getLogger(__name__))

PAGE_BYTES: Final = limits.MIB


class SweepHost(Protocol):
    """What a sweep needs of its relay."""

    in_memory: set[int]
    """Records that no sweep needs to read: queued, on their way, or with the broker and not deleted yet."""
    claims: Claims
    """The stores whose outbox this instance sweeps."""


class Sweep:
    """Reads the records of one store that are not in memory, by rising ids, into :attr:`page`.

    Only one instance sweeps a store at a time. After a failure the next sweep waits for a back-off.
    """

    def __init__(self, store: str, host: SweepHost, repository: OutboxRepository) -> None:
        self.page: deque[OutboxRecord] = deque()
        self._store = store
        self._host = host
        self._repository = repository
        self._after = 0
        self._upto: int | None = None
        """Where it ends; None while there is no sweep."""
        self._failed = False
        # Full jitter: instances that lost the same broker don't return to it together.
        self._backoff = Backoff(random.random, first_s=0.05, most_s=5.0, least=0.0)
        self._at = 0.0

    @property
    def active(self) -> bool:
        """Whether there may be more to read."""
        return self._upto is not None

    def begin(self, upto: int) -> bool:
        """Begins a sweep up to an id, unless a back-off is left, or extends the one under way; whether it began."""
        if self._upto is not None:
            self._upto = max(self._upto, upto)
            return False
        if _now() < self._at:
            return False
        if not self._failed:
            self._backoff.reset()
        self._failed = False
        self._after, self._upto = 0, upto
        return True

    def end(self) -> None:
        """Reads no more; the page stays."""
        self._upto = None

    def delay(self) -> None:
        """A record failed: the next sweep would meet it again, and begins later."""
        if not self._failed:
            self._failed = True
            self._at = _now() + self._backoff.next_s()

    def retry_now(self) -> None:
        """Ends the back-off."""
        self._at = 0.0

    async def read_page(self, limit: int) -> bool:
        """Adds at most ``limit`` records to the page, and ends the sweep where no more come.

        Returns:
            Whether the outbox could be read; if not, the sweep has ended before its end.
        """
        assert self._upto is not None
        try:
            if not await self._host.claims.claim(self._store):
                self.end()  # another instance sweeps this store
                return True
            # Those as well that the read still finds, and that are stored and deleted before it ends.
            in_memory = frozenset(self._host.in_memory)
            records = await self._repository.outbox(self._store, self._after, limit, PAGE_BYTES)
        except RingcastError as error:
            log.warning("relay.outbox_unreadable", store=self._store, error=error)
            self.end()
            self.delay()
            return False
        in_memory |= self._host.in_memory
        page = [record for record in records if record.id <= self._upto and record.id not in in_memory]
        self._host.in_memory.update(record.id for record in page)
        self.page.extend(page)
        if not records or records[-1].id >= self._upto:
            self.end()
        else:
            self._after = records[-1].id
        return True


def _now() -> float:
    return asyncio.get_running_loop().time()
