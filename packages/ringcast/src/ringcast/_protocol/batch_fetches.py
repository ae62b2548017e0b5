"""The fetches of named rows that batches wait for: asked, answered, split, tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ringcast_wire import Backoff, ErrorCode, PartitionRows, RandomSource

from ringcast._common.stats import Stats
from ringcast._protocol.actions import FetchBatch, GiveUpFetch
from ringcast._protocol.batches import Batch, Wanted
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.partition import Partition

STALE_REPLIES: Final = 3
"""Failures of a fetch after which an answer that is older than the event speaks against the event."""


@dataclass(slots=True)
class _Request:
    batch: Batch
    wanted: list[Wanted]
    backoff: Backoff
    due: float = 0.0


class BatchFetches:
    """Requests by their number. Rows of partitions that were lost meanwhile are left out.

    ``reload`` is called with a partition whose event the service contradicts.
    """

    def __init__(
        self,
        random: RandomSource,
        stats: Stats,
        outbox: Outbox,
        reload: Callable[[Partition], None],
    ) -> None:
        self._random = random
        self._stats = stats
        self._outbox = outbox
        self._reload = reload
        self._asked: dict[int, _Request] = {}
        self._retries: list[_Request] = []

    def __bool__(self) -> bool:
        return bool(self._asked or self._retries)

    def __contains__(self, request: int) -> bool:
        return request in self._asked

    def ask(self, batch: Batch, wanted: list[Wanted]) -> None:
        """Asks for rows that a batch, whose ``pending`` counts this, waits for."""
        self._ask(_Request(batch, wanted, Backoff(self._random)))

    def reply(self, request: int, reply: Sequence[PartitionRows], now: float) -> None:
        """Adds the rows to their batch, or tries again if they are older than the events."""
        asked = self._asked.pop(request)
        asked.wanted = [want for want in asked.wanted if not want.partition.dead]
        if asked.batch.take(asked.wanted, reply):
            asked.batch.pending -= 1
            return
        if asked.backoff.failures >= STALE_REPLIES:
            for partition in asked.batch.stale:
                self._reload(partition)
        self._retry(asked, now)

    def failed(self, request: int, code: ErrorCode, now: float) -> None:
        """Asks for half as much if it was too much for one reply, else again later."""
        asked = self._asked.pop(request)
        if code is ErrorCode.LIMIT_EXCEEDED and len(asked.wanted) > 1:
            middle = len(asked.wanted) // 2
            asked.batch.pending += 1
            self.ask(asked.batch, asked.wanted[:middle])
            self.ask(asked.batch, asked.wanted[middle:])
        else:
            self._retry(asked, now)

    def ask_due(self, now: float) -> None:
        """Asks again where the delay is over."""
        due = [asked for asked in self._retries if asked.due <= now]
        self._retries = [asked for asked in self._retries if asked.due > now]
        for asked in due:
            self._ask(asked)

    def hurry(self, now: float) -> None:
        """Ends all delays."""
        for asked in self._retries:
            asked.due = now

    def drop_satisfied(self) -> None:
        """Drops rows that are not needed any more, so that the batches behind them need not wait for the next try.

        Their partition was lost, or a fetch of it has brought everything up to the events that named them.
        """
        if self._retries:
            self._retries = [asked for asked in self._retries if self._is_needed(asked)]
        for request, asked in list(self._asked.items()):
            if not any(want.is_needed for want in asked.wanted):
                del self._asked[request]
                asked.batch.pending -= 1
                self._outbox.put(GiveUpFetch(request))

    @property
    def wake_at(self) -> float | None:
        """When the next delay ends."""
        return min((asked.due for asked in self._retries), default=None)

    def _retry(self, asked: _Request, now: float) -> None:
        asked.due = now + asked.backoff.next_s()
        if self._is_needed(asked):
            self._retries.append(asked)

    def _is_needed(self, asked: _Request) -> bool:
        asked.wanted = [want for want in asked.wanted if want.is_needed]
        if not asked.wanted:
            asked.batch.pending -= 1
        return bool(asked.wanted)

    def _ask(self, asked: _Request) -> None:
        if not self._is_needed(asked):
            return
        request = self._outbox.number()
        self._asked[request] = asked
        self._stats.batch_fetches += 1
        self._outbox.put(FetchBatch(request, [want.row_id for want in asked.wanted], asked.batch))
