"""The fetches of one config key: which are sent, and what becomes of their answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringcast_wire import ErrorCode, PartitionRows, names

from ringcast._protocol.actions import FetchFull, GiveUpFetch
from ringcast._protocol.batch_fetches import BatchFetches
from ringcast._protocol.comparison import Comparison
from ringcast._protocol.deliveries import PartitionDelivery, PartitionRequest
from ringcast._protocol.full_fetch import FullFetch
from ringcast._protocol.key_context import KeyContext
from ringcast._protocol.partition import Fetching, Partition, PartitionInput
from ringcast._protocol.partition_fetches import PartitionFetches


class Fetches:
    """Fetches of partitions, of the whole key and of named rows. Rows that come go into ``jobs``.

    An answer to a request that was given up, or was answered before, is ignored.
    """

    def __init__(self, context: KeyContext, comparison: Comparison) -> None:
        self._partitions = context.partitions
        self._comparison = comparison
        self._queue = context.queue
        self._deliveries = context.deliveries
        self._stats = context.stats
        self._outbox = context.outbox
        self._single = PartitionFetches(context.queue, context.history, context.stats, context.outbox)
        self._full = FullFetch(context.random)
        self.batches = BatchFetches(context.random, context.stats, context.outbox, self._reload)

    # ---- requests

    def begin(self, partitions: Sequence[Partition], now: float, *, whole_key: bool) -> None:
        """Fetches partitions for the first time: ``whole_key`` in one fetch, or each by itself."""
        if whole_key:
            self._full.due = now
            return
        for partition in partitions:
            self._queue.want(partition)

    def ask_due(self, now: float) -> None:
        """Sends the fetches of the whole key and of named rows whose time has come."""
        if self._full.take(now):
            self._full.request = self._outbox.number()
            self._stats.fetches += 1
            self._outbox.put(FetchFull(self._full.request))
        self.batches.ask_due(now)

    def ask_partitions(self, now: float) -> None:
        """Sends the fetches of partitions whose time has come, as many as may be under way at once."""
        self._single.ask_due(now)

    def reconnected(self, now: float) -> None:
        """The connection is back: what waits for another try goes at once."""
        self._queue.retry_now()
        self._full.retry_now(now)
        self.batches.retry_now(now)

    def give_up_lost(self) -> None:
        """Ends the fetches of partitions that were lost, and of rows that a fetch of their partition has brought."""
        self._single.give_up_lost()
        self.batches.drop_satisfied()
        if not self._partitions and (request := self._full.give_up()) is not None:
            self._outbox.put(GiveUpFetch(request))

    @property
    def wake_at(self) -> float | None:
        """When the next fetch is due, if one waits for its time."""
        times = (self._queue.wake_at, self._full.due, self.batches.wake_at)
        return min((time for time in times if time is not None), default=None)

    def wants(self, what: int | str) -> bool:
        """Whether a fetch of a partition, or of something else (``batch``, ``full``), is under way or to be tried."""
        if isinstance(what, int):
            partition = self._partitions.get(what)
            return partition is not None and partition.fetching is not Fetching.IDLE
        return bool(self.batches) if what == names.FETCH_BATCH else self._full.is_wanted

    def awaits(self, request: int) -> bool:
        """Whether the answer to a fetch is still needed."""
        return request in self._single or request in self.batches or request == self._full.request

    # ---- answers

    def partition_reply(self, request: int, reply: PartitionRows, now: float, history: str = "") -> None:
        """The answer to a :class:`FetchPartition`."""
        sent = self._single.ended(request)
        if sent is not None:
            self._partition_fetched(sent, reply, now, history)

    def full_reply(self, request: int, reply: Iterable[PartitionRows], now: float = 0.0, history: str = "") -> None:
        """The answer to a :class:`FetchFull`; a partition that it does not name is empty."""
        if request != self._full.request:
            return
        if not self._comparison.is_current(history):
            self._full.failed(now)
            return
        self._full.answered()
        given = {part.partition: part for part in reply}
        for number, partition in self._partitions.items():
            if partition.fetching is Fetching.IDLE and not partition.live:
                partition.fetching = Fetching.APPLYING
                rows = given.get(number) or PartitionRows(number, 0, True, [])
                self._deliveries.add(PartitionDelivery(partition, rows, PartitionRequest(partition), history))

    def batch_reply(self, request: int, reply: Sequence[PartitionRows], now: float, history: str = "") -> None:
        """The answer to a :class:`FetchBatch`."""
        if request not in self.batches:
            return
        if self._comparison.is_current(history):
            self.batches.reply(request, reply, now)
        else:
            self.batches.failed(request, ErrorCode.UNAVAILABLE, now)

    def failed(self, request: int, code: ErrorCode, now: float, *, unfinished: bool = False) -> None:
        """A fetch was refused, or is ``unfinished``; it is tried again later. An unknown key is empty."""
        self._stats.fetch_failures += 1
        self._stats.bad_replies += code is ErrorCode.PROTOCOL
        if request == self._full.request:
            self._full_failed(request, code, now, unfinished)
        elif (sent := self._single.ended(request)) is not None:
            if code is ErrorCode.UNKNOWN_KEY:
                self._partition_fetched(sent, PartitionRows(sent.partition.number, 0, True, []), now, "")
            else:
                self._single.retry(sent.partition, now)
        elif request in self.batches:
            self.batches.failed(request, code, now)

    def _partition_fetched(self, request: PartitionRequest, reply: PartitionRows, now: float, history: str) -> None:
        partition = request.partition
        if partition.dead:
            self._queue.done(partition)
            return
        if reply.partition != partition.number or not self._comparison.is_current(history):
            self._single.retry(partition, now)
            return
        if request.since is not None and reply.whole and reply.revision < request.since:
            partition.on(PartitionInput.INVALIDATED)
        if partition.replace and not self._comparison.may_replace(partition, reply):
            self._queue.done(partition)
            return
        partition.fetching = Fetching.APPLYING
        partition.backoff.reset()
        self._deliveries.add(PartitionDelivery(partition, reply, request, history))

    def _full_failed(self, request: int, code: ErrorCode, now: float, unfinished: bool) -> None:
        if code is ErrorCode.UNKNOWN_KEY:
            self.full_reply(request, [], now)
        elif unfinished or code is ErrorCode.LIMIT_EXCEEDED:
            self._full.split()
            for partition in self._partitions.values():
                self._queue.want(partition)
        else:
            self._full.failed(now)

    def _reload(self, partition: Partition) -> None:
        """Fetches a partition whole: the service contradicts an event, as it does after its database was restored."""
        if not partition.dead:
            partition.on(PartitionInput.INVALIDATED)
            self._queue.want(partition)
