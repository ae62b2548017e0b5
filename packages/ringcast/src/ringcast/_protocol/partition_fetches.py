"""The fetches of single partitions that are under way."""

from __future__ import annotations

from typing import Final

from ringcast._common.stats import Stats
from ringcast._protocol.actions import FetchPartition, GiveUpFetch
from ringcast._protocol.deliveries import PartitionRequest
from ringcast._protocol.fetch_queue import FetchQueue
from ringcast._protocol.key_history import KeyHistory
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.partition import Partition

MAX_INCOMPLETE_FETCHES: Final = 5
"""Fetches in a row that did not reach the revision of an event; then the service counts, and not the event."""


class PartitionFetches:
    """Requests by their number. One whose partition was lost is given up."""

    def __init__(self, queue: FetchQueue, history: KeyHistory, stats: Stats, outbox: Outbox) -> None:
        self._queue = queue
        self._history = history
        self._stats = stats
        self._outbox = outbox
        self._under_way: dict[int, PartitionRequest] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._under_way

    def ask_due(self, now: float) -> None:
        """Sends the fetches whose turn it is."""
        for partition in self._queue.take(now):
            if partition.replace and self._history.refusal is not None:
                self._queue.done(partition)
                continue
            request = self._outbox.number()
            partition.unread = False
            since = partition.applied if (partition.live or partition.cached) and not partition.replace else None
            self._under_way[request] = PartitionRequest(partition, since, partition.goal, _unconfirmed(partition))
            self._stats.fetches += 1
            self._stats.fetches_since += since is not None
            history = "" if since is None else partition.history
            self._outbox.put(FetchPartition(request, partition.number, since, history))

    def ended(self, request: int) -> PartitionRequest | None:
        """The request was answered, or has failed; ``None`` if it had been given up."""
        return self._under_way.pop(request, None)

    def retry(self, partition: Partition, now: float) -> None:
        """Fetches a partition again, after a while."""
        self._queue.done(partition)
        self._queue.want(partition, at=now + partition.backoff.next_s())

    def give_up_lost(self) -> None:
        """Lets go of the requests for partitions that were lost."""
        for request, asked in list(self._under_way.items()):
            if asked.partition.dead:
                del self._under_way[request]
                self._queue.done(asked.partition)
                self._outbox.put(GiveUpFetch(request))


def _unconfirmed(partition: Partition) -> frozenset[int]:
    if partition.incomplete_fetches.failures < MAX_INCOMPLETE_FETCHES:
        return frozenset()
    return frozenset(partition.tokens) | {partition.highest}
