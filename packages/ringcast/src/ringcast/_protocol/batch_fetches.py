"""The fetches of named rows that batches wait for: fetch, answered, split, tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ringcast_wire import Backoff, ErrorCode, PartitionRows, RandomSource

from ringcast._common.stats import Stats
from ringcast._protocol.actions import FetchBatch, GiveUpFetch
from ringcast._protocol.batches import Batch, MissingRow
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.partition import Partition

STALE_REPLIES: Final = 3
"""Failures of a fetch after which an answer older than the event counts as true, and the event as false."""


@dataclass(slots=True)
class _Request:
    batch: Batch
    wanted: list[MissingRow]
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
        self._under_way: dict[int, _Request] = {}
        self._retries: list[_Request] = []

    def __bool__(self) -> bool:
        return bool(self._under_way or self._retries)

    def __contains__(self, request: int) -> bool:
        return request in self._under_way

    def ask(self, batch: Batch, wanted: list[MissingRow]) -> None:
        """Fetches rows that a batch waits for; its ``pending`` counts this."""
        self._ask(_Request(batch, wanted, Backoff(self._random)))

    def reply(self, request: int, reply: Sequence[PartitionRows], now: float) -> None:
        """Adds the rows to their batch, or tries again if they are older than the events."""
        fetch = self._under_way.pop(request)
        fetch.wanted = [want for want in fetch.wanted if not want.partition.dead]
        if fetch.batch.take(fetch.wanted, reply):
            fetch.batch.pending -= 1
            return
        if fetch.backoff.failures >= STALE_REPLIES:
            for partition in fetch.batch.stale:
                self._reload(partition)
        self._retry(fetch, now)

    def failed(self, request: int, code: ErrorCode, now: float) -> None:
        """Fetches half as much if it was too much for one reply, else the same again later."""
        fetch = self._under_way.pop(request)
        if code is ErrorCode.LIMIT_EXCEEDED and len(fetch.wanted) > 1:
            middle = len(fetch.wanted) // 2
            fetch.batch.pending += 1
            self.ask(fetch.batch, fetch.wanted[:middle])
            self.ask(fetch.batch, fetch.wanted[middle:])
        else:
            self._retry(fetch, now)

    def ask_due(self, now: float) -> None:
        """Sends what has waited for another try, where the delay is over."""
        due = [fetch for fetch in self._retries if fetch.due <= now]
        self._retries = [fetch for fetch in self._retries if fetch.due > now]
        for fetch in due:
            self._ask(fetch)

    def retry_now(self, now: float) -> None:
        """Ends all delays."""
        for fetch in self._retries:
            fetch.due = now

    def drop_satisfied(self) -> None:
        """Drops rows that are not needed any more, so that the batches behind them need not wait for the next try.

        Their partition was lost, or a fetch of it has brought everything up to the events that named them.
        """
        if self._retries:
            self._retries = [fetch for fetch in self._retries if self._is_needed(fetch)]
        for request, fetch in list(self._under_way.items()):
            if not any(want.is_needed for want in fetch.wanted):
                del self._under_way[request]
                fetch.batch.pending -= 1
                self._outbox.put(GiveUpFetch(request))

    @property
    def wake_at(self) -> float | None:
        """When the next delay ends."""
        return min((fetch.due for fetch in self._retries), default=None)

    def _retry(self, fetch: _Request, now: float) -> None:
        fetch.due = now + fetch.backoff.next_s()
        if self._is_needed(fetch):
            self._retries.append(fetch)

    def _is_needed(self, fetch: _Request) -> bool:
        fetch.wanted = [want for want in fetch.wanted if want.is_needed]
        if not fetch.wanted:
            fetch.batch.pending -= 1
        return bool(fetch.wanted)

    def _ask(self, fetch: _Request) -> None:
        if not self._is_needed(fetch):
            return
        request = self._outbox.number()
        self._under_way[request] = fetch
        self._stats.batch_fetches += 1
        self._outbox.put(FetchBatch(request, [want.row_id for want in fetch.wanted], fetch.batch))
