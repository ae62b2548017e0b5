"""What becomes of an event that comes: it is dropped, taken in, deferred, or left to a fetch."""

from __future__ import annotations

from ringcast_wire import Event

from ringcast._common.stats import Stats
from ringcast._protocol.actions import Ack
from ringcast._protocol.backlog import Backlog
from ringcast._protocol.batches import Collector
from ringcast._protocol.comparison import Comparison
from ringcast._protocol.fetch_queue import FetchQueue
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.partition import EventKind, Fetching, Partition, Token


class EventIntake:
    """Takes in the events of one config key."""

    def __init__(
        self,
        comparison: Comparison,
        collector: Collector,
        queue: FetchQueue,
        backlog: Backlog,
        stats: Stats,
        outbox: Outbox,
    ) -> None:
        self._comparison = comparison
        self._collector = collector
        self._queue = queue
        self._backlog = backlog
        self._stats = stats
        self._outbox = outbox

    @property
    def is_full(self) -> bool:
        """Whether the key may take in no more events, so that those of other keys need not wait for its handler."""
        share = self._backlog.share
        return share is not None and (share.is_full or self._collector.paused)

    def take(self, partition: Partition, event: Event, token: Token, now: float) -> None:
        """Takes in an event of a partition that is owned."""
        if event.history != partition.history or partition.replace:
            if not self._comparison.is_first(partition, event):
                self._set_apart(partition, event, token)
                return
            partition.history = event.history
        if event.release:
            partition.note_release(event)
        kind = partition.classify(event)
        if kind is EventKind.DUPLICATE:
            self._stats.duplicates += 1
            self._outbox.ack([token])
        elif kind is EventKind.REPEAT:
            self._stats.duplicates += 1
            partition.keep(event.rev, token)
        elif self.is_full:
            self._defer(partition, event, token)
        elif not partition.live or partition.fetching is not Fetching.IDLE:
            partition.defer(event, token)
        elif kind is EventKind.NEXT and self._collector.add(partition, event, now):
            partition.tokens[event.rev] = token
            partition.expected = event.rev
        else:
            self._stats.gaps += 1
            partition.defer(event, token)
            self._queue.want(partition, at=partition.retry_at)

    def unreadable(self, partition: Partition | None, token: Token) -> None:
        """An event came that can't be read: a fetch brings its changes.

        It is acknowledged at once: each redelivery of it would be as unreadable.
        """
        self._stats.unreadable += 1
        self._outbox.ack([token])
        if partition is None or partition.fetching is Fetching.WANTED:
            return
        if partition.live and partition.fetching is Fetching.IDLE:
            self._queue.want(partition)
        else:
            partition.unread = True  # the fetch under way may have been answered before

    def _set_apart(self, partition: Partition, event: Event, token: Token) -> None:
        """Keeps an event of another history, or, past the key's share, only that there is such a history."""
        if not self.is_full:
            self._outbox.ack(self._comparison.set_apart(partition, event, token))
            return
        partition.foreign.pop((event.history, event.rev), None)
        self._comparison.note(partition, event)
        self._stats.deferred += 1
        self._outbox.put(Ack([token], deferred=True))

    def _defer(self, partition: Partition, event: Event, token: Token) -> None:
        """Remembers only how far the partition has to be fetched; the event itself is not needed any more.

        It is acknowledged although its rows are not applied: while the worker lives it knows that they are missing, and
        the next owner fetches them anyway.
        """
        self._stats.deferred += 1
        partition.highest = max(partition.highest, event.rev)
        partition.tokens.pop(event.rev, None)
        self._outbox.put(Ack([token], deferred=True))
        if partition.live:
            self._queue.want(partition, at=partition.retry_at)
