"""What becomes of an event that comes: it is dropped, taken in, kept for later, or put off to a fetch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringcast_wire import Event

from ringcast._common.stats import Stats
from ringcast._protocol.actions import Ack, Action
from ringcast._protocol.batches import Collector
from ringcast._protocol.comparison import Comparison
from ringcast._protocol.fetches import FetchQueue
from ringcast._protocol.partition import Fetching, Heard, Partition, Token
from ringcast._protocol.room import Room, Share


class Hearing:
    """Takes the events of one config key in. ``emit`` takes what is to be done."""

    def __init__(
        self,
        comparison: Comparison,
        collector: Collector,
        queue: FetchQueue,
        stats: Stats,
        emit: Callable[[Action], None],
    ) -> None:
        self._comparison = comparison
        self._collector = collector
        self._queue = queue
        self._stats = stats
        self._emit = emit
        self.share: Share | None = None
        """What the key may hold, where the worker has other keys too."""

    @property
    def is_full(self) -> bool:
        """Whether the key may take no more events in, lest those of other keys wait for its handler."""
        return self.share is not None and (self.share.is_full or self._collector.paused)

    def hear(self, partition: Partition, event: Event, token: Token, now: float) -> None:
        """Takes in an event of a partition that is owned."""
        if event.history != partition.history or partition.replace:
            if not self._comparison.is_first(partition, event):
                self._set_apart(partition, event, token)
                return
            partition.history = event.history
        heard = partition.hear(event)
        if heard is Heard.DUPLICATE:
            self._stats.duplicates += 1
            self._ack([token])
        elif heard is Heard.REPEAT:
            self._stats.duplicates += 1
            partition.tokens[event.rev] = token
        elif self.is_full:
            self._put_off(partition, event, token)
        elif not partition.live or partition.fetching is not Fetching.IDLE:
            partition.park(event, token)
        elif heard is Heard.NEXT and self._collector.add(partition, event, now):
            partition.tokens[event.rev] = token
            partition.expected = event.rev
        else:
            self._stats.gaps += 1
            partition.park(event, token)
            self._queue.want(partition, at=partition.retry_at)

    def unreadable(self, partition: Partition | None, token: Token) -> None:
        """An event came that can't be read: a fetch brings what it would have said.

        It is acknowledged at once, as it would come again and again and never be any better.
        """
        self._stats.unreadable += 1
        self._ack([token])
        if partition is None or partition.fetching is Fetching.WANTED:
            return
        if partition.live and partition.fetching is Fetching.IDLE:
            self._queue.want(partition)
        else:
            partition.unread = True  # the fetch under way may have been answered before

    def _set_apart(self, partition: Partition, event: Event, token: Token) -> None:
        """Keeps an event of another history, or, past the key's share, only that its history was heard of."""
        if not self.is_full:
            self._ack(self._comparison.set_apart(partition, event, token))
            return
        partition.foreign.pop((event.history, event.rev), None)
        self._comparison.note(partition, event)
        self._stats.put_off += 1
        self._emit(Ack([token], put_off=True))

    def _put_off(self, partition: Partition, event: Event, token: Token) -> None:
        """Remembers only how far the partition has to be fetched; the event itself is not needed any more.

        It is acknowledged although its rows are not applied: while the worker lives it knows that they are missing, and
        the next owner fetches them anyway.
        """
        self._stats.put_off += 1
        partition.highest = max(partition.highest, event.rev)
        partition.tokens.pop(event.rev, None)
        self._emit(Ack([token], put_off=True))
        if partition.live:
            self._queue.want(partition, at=partition.retry_at)

    def _ack(self, tokens: list[Token]) -> None:
        if tokens:
            self._emit(Ack(tokens))


def share_out(most: int, keys: Sequence[Hearing]) -> None:
    """Gives each of the config keys of a worker its share of ``most`` deliveries; a single key has them all."""
    if len(keys) > 1:
        room = Room(most, len(keys))
        for key in keys:
            key.share = room.share()
