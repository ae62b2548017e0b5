"""The machine of one config key: events, fetches and assignments in; acknowledgements, fetches and changes out.

The rules that keep it correct, whatever is lost, repeated, reordered or late:

- A row is taken in only if it is newer than what is known of it, so no row goes back and no deleted row returns.
- ``applied`` rises only when the handler has seen everything up to it, and an event is acknowledged only then.
- An event that does not continue what was taken in leads to a fetch of what changed since ``applied``.
- Changes are handed to the application one job at a time, so the order of the jobs is the order of the rows. No job has
  changes of a partition before the application knows that it has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ringcast_wire import Event, RandomSource, Row

from ringcast._common.change import Change
from ringcast._common.stats import Stats
from ringcast._protocol.actions import Action
from ringcast._protocol.announcements import Announcements
from ringcast._protocol.anti_entropy import KnownRevisions
from ringcast._protocol.backlog import Backlog
from ringcast._protocol.batches import Collector
from ringcast._protocol.comparison import Comparison
from ringcast._protocol.deliveries import CachedDelivery, ChangeMaker, DeliveryQueue
from ringcast._protocol.fetch_queue import FetchQueue
from ringcast._protocol.fetches import Fetches
from ringcast._protocol.handover import Handover
from ringcast._protocol.intake import EventIntake
from ringcast._protocol.key_context import KeyContext
from ringcast._protocol.key_history import KeyHistory
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.pace import Pace
from ringcast._protocol.partition import Partition, PartitionInput, Token
from ringcast._protocol.silent import SilentPartitions
from ringcast._protocol.snapshots import CachedPartition, Saving


class KeyMachine:
    """Everything that a worker decides about one config key. Not for use by several threads.

    Inputs are methods; each takes ``now``. After any of them, :meth:`poll` gives what is to be done and
    :attr:`wake_at` the time at which to poll again without input. Answers to fetches go to ``fetches``, and what the
    application has taken to ``handover``.

    Args:
        full: the worker owns every partition, and may fetch the key as a whole.
        window_s: how long changes gather while the application is busy.
        max_delete_share: the share of the rows that a new history may lack.
        saving: collects what a cache on disk lacks, where there is one.
        exclusive: partitions are silent until ``silent`` hands them over: the application gets nothing of them.
    """

    def __init__(
        self,
        store: str,
        key: str,
        *,
        full: bool,
        partition_count: int,
        random: RandomSource,
        window_s: float = 0.1,
        max_delete_share: float = 0.5,
        pace: Pace | None = None,
        saving: Saving | None = None,
        exclusive: bool = False,
    ) -> None:
        self.exclusive = exclusive
        self.store = store
        self.key = key
        self.partition_count = partition_count
        self.partitions: dict[int, Partition] = {}
        self.stats = stats = Stats()
        self.history = history = KeyHistory(max_delete_share)
        self.saving = saving
        self.backlog = backlog = Backlog(pace or Pace())
        self._full = full
        self._random = random
        self._outbox = outbox = Outbox()
        self._queue = queue = FetchQueue()
        self._deliveries = deliveries = DeliveryQueue()
        self._make = ChangeMaker(store, key, stats)
        self.announcements = Announcements(outbox)
        self._comparison = comparison = Comparison(history, self.partitions, queue, stats, outbox)
        collector = Collector()
        self.intake = EventIntake(comparison, collector, queue, backlog, stats, outbox)
        context = KeyContext(
            self.partitions,
            history,
            queue,
            deliveries,
            self.announcements,
            backlog,
            saving,
            stats,
            outbox,
            random,
        )
        self.fetches = Fetches(context, comparison)
        self.handover = Handover(
            context,
            collector=collector,
            intake=self.intake,
            fetches=self.fetches,
            make=self._make,
            window_s=window_s,
        )
        self.silent = SilentPartitions(context, self.fetches)

    # ---- assignment

    def assign(self, partitions: frozenset[int]) -> None:
        """Takes the partitions to own from now on, or to hold if they are ``exclusive``.

        What is kept goes on undisturbed.
        """
        before = self.partitions.keys()
        gained, lost = partitions - before, frozenset(before - partitions)
        revoked = frozenset(number for number in lost if self.partitions[number].owned)
        for number in lost:
            partition = self.partitions.pop(number)
            self._outbox.ack(partition.give_up())
            self.backlog.count(partition)
            if self.saving is not None:
                self.saving.lost(number)
        for number in sorted(gained):
            self._gain(number)
        if lost:
            self.fetches.give_up_lost()
        if revoked:
            self.announcements.add(False, revoked)
        if gained and not self.exclusive:
            self.announcements.add(True, frozenset(gained))

    def restore(self, found: Iterable[CachedPartition], *, hand_over: bool) -> None:
        """Begins with partitions as they were in the last life. To be called before anything else.

        They are served, and handed to the application if ``hand_over``; if they are ``exclusive``, only once they are
        owned. Once assigned, only what has changed since is fetched; those that are not assigned are lost like any
        other.
        """
        for cached in found:
            partition = self._gain(cached.number, saved=True)
            partition.applied = partition.expected = cached.applied
            partition.take_rows(cached.rows)
            partition.tombstones = cached.tombstones
            partition.history, partition.as_of = cached.history, cached.as_of
            partition.on(PartitionInput.RESTORED)
            self.history.begin(self.history.current or cached.history)
            if cached.history != self.history.current:  # it was written in the middle of a change of histories
                partition.on(PartitionInput.INVALIDATED)
        if self.exclusive:
            return
        if self.partitions:
            self.announcements.add(True, frozenset(self.partitions))
        if hand_over:
            for partition in self.partitions.values():
                self._deliveries.add(CachedDelivery(partition))

    def start_over(self, *, full: bool, partition_count: int, exclusive: bool = False) -> None:
        """Gives up all that was restored: the store is another."""
        self.assign(frozenset())
        self.history.begin("")
        self._full, self.partition_count, self.exclusive = full, partition_count, exclusive

    def become_exclusive(self, tokens: Mapping[int, int], now: float) -> None:
        """From now on partitions are silent until they are handed over, but for owned ones that have a token."""
        self.exclusive = True
        self.silent.adopt({number: token for number, token in tokens.items() if self.owns(number)}, now)

    def become_shared(self, partitions: frozenset[int]) -> None:
        """From now on these are owned by the peer rule. What is not silent goes on, the rest starts over."""
        self.assign(partitions & self.silent.undisturbed())
        self.silent.drop_tokens()
        self.exclusive = False
        self.assign(partitions)

    def _gain(self, number: int, *, saved: bool = False) -> Partition:
        partition = self.partitions[number] = Partition(number, self._random)
        if self.exclusive:
            partition.silence()
        if self.saving is not None:
            self.saving.follow(partition, saved=saved)
        return partition

    def filters_ready(self, partitions: Iterable[int], now: float) -> None:
        """The server has confirmed that it delivers the events of these partitions: now they can be fetched."""
        new = [p for n in partitions if (p := self.partitions.get(n)) is not None and not p.filtered]
        for partition in new:
            partition.confirm_filter()
        whole_key = self._full and len(new) == self.partition_count and not any(partition.cached for partition in new)
        self.fetches.begin(new, now, whole_key=whole_key)

    # ---- events

    def event(self, number: int, event: Event, token: Token, now: float) -> None:
        """Takes an event of a partition in. ``token`` is acknowledged once it is applied."""
        self.stats.events += 1
        partition = self.partitions.get(number)
        if partition is None:
            self._outbox.ack([token])  # not ours any more: its owner starts with a fetch
        else:
            self.intake.take(partition, event, token, now)
            self.backlog.count(partition)

    def unreadable(self, number: int, token: Token) -> None:
        """An event of a partition came that can't be read."""
        self.intake.unreadable(self.partitions.get(number), token)

    # ---- head revisions

    def known_revisions(self) -> KnownRevisions:
        """How far each partition is; to be remembered before the service is asked for its head revisions."""
        return self._comparison.known()

    def compare_heads(
        self,
        known: KnownRevisions,
        heads: Sequence[int],
        now: float,
        history: str = "",
        rows: Sequence[int] | None = None,
    ) -> None:
        """Compares the partitions with the service's head revisions, which are as new as ``known`` or newer.

        ``rows``: how many live rows each partition has there; ``None`` where that is not known.
        """
        self._outbox.ack(self._comparison.compare(known, heads, now, history, rows))
        for partition in self.partitions.values():
            self.backlog.count(partition)

    # ---- what to do

    def poll(self, now: float) -> list[Action]:
        """What is to be done now; each action is given once."""
        pace, handover = self.backlog.pace, self.handover
        pace.look(now)
        self.fetches.ask_due(now)
        self.announcements.start()
        handover.start_due(now)
        self._comparison.check_lagging(now, held_back=handover.is_busy and pace.is_pressed)
        self.fetches.ask_partitions(now)
        return self._outbox.drain()

    @property
    def wake_at(self) -> float | None:
        """When to poll again if nothing comes in before, or ``None``."""
        times = (self.fetches.wake_at, self._comparison.wake_at, self.handover.wake_at)
        return min((time for time in times if time is not None), default=None)

    @property
    def paused(self) -> bool:
        """Whether so much waits for the handler that no more events should be pulled for now."""
        return self.handover.room == 0

    @property
    def last_number(self) -> int:
        """The number of the newest request or job; a later one has a higher number."""
        return self._outbox.last_number

    # ---- what it has

    @property
    def ready(self) -> bool:
        """Whether every owned partition has been fetched and applied."""
        if self.history.refusal is not None:
            return False
        return all(part.live and part.served and not part.replace for part in self.partitions.values() if part.owned)

    def owned(self) -> frozenset[int]:
        """The partitions that are owned."""
        return frozenset(number for number, partition in self.partitions.items() if partition.owned)

    def loaded(self) -> set[int]:
        """The partitions that are loaded: from then on every change of them is handed over, of whichever row.

        Of one that is still being loaded no row is known, and so it is not told which ones were deleted.
        """
        return {number for number, partition in self.partitions.items() if partition.live and partition.served}

    def owns(self, number: int) -> bool:
        """Whether a partition is owned: of exclusive ownership, others are held too."""
        partition = self.partitions.get(number)
        return partition is not None and partition.owned

    def rows(self) -> Iterator[Row]:
        """The live rows of all partitions."""
        for partition in self.partitions.values():
            yield from partition.rows.values()

    def row_changes(self, now: float) -> Iterator[Change]:
        """The live rows of all partitions, as changes."""
        for partition in self.partitions.values():
            if partition.cached:
                yield from self._make.of_cache(partition, now)
            else:
                yield from self._make.of_rows(partition, [*partition.rows.values()])
