"""What of a config key is handed to the application, in which order, and what follows once the application has it."""

from __future__ import annotations

from collections.abc import Iterable

from ringcast_wire.metrics import Histogram

from ringcast._common.change import Change
from ringcast._protocol.actions import Apply, Restored
from ringcast._protocol.batches import Batch, Collector
from ringcast._protocol.deliveries import (
    CachedDelivery,
    ChangeMaker,
    FirstDelivery,
    PartitionDelivery,
    PartitionsDelivery,
    QueuedDelivery,
    events_of,
)
from ringcast._protocol.fetches import Fetches
from ringcast._protocol.intake import EventIntake
from ringcast._protocol.key_context import KeyContext
from ringcast._protocol.partition import Fetching, Partition, PartitionInput, Token


class Handover:
    """Hands one delivery at a time to the application. Once it is done, its events are acknowledged."""

    def __init__(
        self,
        context: KeyContext,
        *,
        collector: Collector,
        intake: EventIntake,
        fetches: Fetches,
        make: ChangeMaker,
        window_s: float,
    ) -> None:
        self.batch_sizes = Histogram.of("config_notification_batch_size")
        self._partitions = context.partitions
        self._deliveries = context.deliveries
        self._collector = collector
        self._intake = intake
        self._fetches = fetches
        self._queue = context.queue
        self._history = context.history
        self._announcements = context.announcements
        self._backlog = context.backlog
        self._make = make
        self._saving = context.saving
        self._stats = context.stats
        self._outbox = context.outbox
        self._random = context.random
        self._window_s = window_s

    # ---- the next delivery

    def start_due(self, now: float) -> None:
        """Gives the application its next delivery, if it has none and one can be started."""
        while True:
            self._close_batch(now)
            if self._deliveries.active is not None or not self._start(now):
                break

    @property
    def wake_at(self) -> float | None:
        """When the changes that are gathering are to be delivered, if any are."""
        if self._collector.since is None or self._deliveries.full:
            return None
        return self._collector.since + self._window_s

    @property
    def is_busy(self) -> bool:
        """Whether a delivery is under way."""
        return self._deliveries.active is not None

    @property
    def room(self) -> int:
        """How many more events should be pulled at most for now."""
        return 0 if self._collector.paused else self._backlog.pace.room(busy=self.is_busy)

    def _close_batch(self, now: float) -> None:
        """Closes the batch that is gathering: at once if nothing is under way, else at the end of the window."""
        if self._collector.since is None or self._deliveries.full:
            return
        if not self._deliveries or now >= self._collector.since + self._window_s:
            batch, requests = self._collector.close()
            self._stats.batches += 1
            self.batch_sizes.observe(batch.size)
            self._deliveries.batches.append(batch)
            for wanted in requests:
                self._fetches.batches.ask(batch, wanted)

    def _start(self, now: float) -> bool:
        """Starts the next delivery; returns whether there was one."""
        delivery = self._deliveries.take(self._announcements.is_announced)
        if delivery is None:
            return False
        number = self._outbox.number()
        if changes := self._changes(delivery, now):
            self._deliveries.active = (number, delivery)
            self._stats.changes += len(changes)
            self._outbox.put(
                Apply(number, changes, delivery if isinstance(delivery, Batch) else None, events_of(delivery))
            )
        else:
            self._finish(delivery, now)
        return True

    def _changes(self, delivery: PartitionsDelivery | Batch, now: float) -> list[Change]:
        if isinstance(delivery, Batch):
            return self._make.of_batch(delivery)
        if delivery.partition.dead:
            return []
        if isinstance(delivery, FirstDelivery):
            return self._make.of_first(delivery.partition)
        if isinstance(delivery, CachedDelivery):
            return self._make.of_cache(delivery.partition, now)
        if delivery.history != self._history.current:
            return []  # another history has begun: the partition is fetched again
        if delivery.rows.whole and delivery.partition.replace:
            return self._replace(delivery)
        delivery.partition.history = delivery.history  # from now on it holds rows, which events are compared with
        return self._make.of_fetch(delivery.partition, delivery.rows)

    def _replace(self, delivery: PartitionDelivery) -> list[Change]:
        """Puts a new partition in the place of one whose database went back in time."""
        before = delivery.partition
        self._queue.done(before)
        after, news = before.successor(delivery.rows.rows, delivery.rows.revision, self._random, delivery.history)
        if before.history == delivery.history:
            self._outbox.put(Restored(before.number, before.applied, delivery.rows.revision))
        self._outbox.ack(before.give_up())
        self._partitions[before.number] = delivery.partition = after
        self._backlog.count(before)
        self._backlog.count(after)
        self._fetches.batches.drop_satisfied()
        after.fetching = Fetching.APPLYING
        if after.silent:
            if after.grant:
                self._deliveries.add(FirstDelivery(after))
            return []
        return self._make.of_rows(after, news)

    # ---- what the application has taken

    def done(self, number: int, now: float) -> None:
        """The application has taken all changes of a delivery, or has got an announcement."""
        if self._announcements.done(number):
            return
        assert self._deliveries.active is not None
        active, delivery = self._deliveries.active
        assert active == number
        self._deliveries.active = None
        self._finish(delivery, now)

    def partly_done(self, number: int, partitions: Iterable[int]) -> None:
        """The application has taken all that a delivery which still runs has of these partitions."""
        assert self._deliveries.active is not None
        active, batch = self._deliveries.active
        assert active == number
        if isinstance(batch, Batch):
            self._finish_batch(batch.revs[partition] for partition in partitions)

    def _finish(self, delivery: QueuedDelivery, now: float) -> None:
        if isinstance(delivery, PartitionDelivery):
            self._finish_fetch(delivery, now)
        elif isinstance(delivery, FirstDelivery):
            delivery.partition.mark_served()
        elif isinstance(delivery, Batch):
            self._finish_batch(delivery.revs.values())

    def _finish_batch(self, revs: Iterable[tuple[Partition, int]]) -> None:
        tokens: list[Token] = []
        for partition, rev in revs:
            if not partition.dead:
                tokens += self._advance(partition, rev)
        self._backlog.pace.applied(len(tokens))
        self._outbox.ack(tokens)

    def _finish_fetch(self, delivery: PartitionDelivery, now: float) -> None:
        """The rows of a fetch are applied: the partition is live, and the events that came meanwhile are taken in."""
        partition, outbox = delivery.partition, self._outbox
        self._queue.done(partition)
        if partition.dead:
            return
        if delivery.history != self._history.current:
            self._queue.want(partition)
            return
        partition.on(PartitionInput.LOADED)
        outbox.ack(self._advance(partition, delivery.rows.revision))
        if partition.foreign:
            outbox.ack(partition.settled(self._history.is_past))
        self._fetches.batches.drop_satisfied()
        if partition.applied < delivery.request.goal and delivery.request.unconfirmed:
            false = partition.discard_unconfirmed(delivery.request.unconfirmed)
            self._stats.unreadable += len(false)
            outbox.ack(false)
        partition.fetch_ended(incomplete=partition.applied < delivery.request.goal and partition.goal > 0, now=now)
        waiting, partition.waiting = partition.waiting, []
        for event, token in waiting:
            self._intake.take(partition, event, token, now)
        if partition.highest > partition.expected:
            self._queue.want(partition, at=partition.retry_at)
        else:
            partition.highest = 0
            if partition.unread:
                self._queue.want(partition)
        self._backlog.count(partition)

    def _advance(self, partition: Partition, revision: int) -> list[Token]:
        """Everything up to ``revision`` is applied; returns what is to be acknowledged."""
        if self._saving is not None:
            self._saving.changed(partition)
        tokens = partition.advance(revision)
        self._backlog.count(partition)
        return tokens
