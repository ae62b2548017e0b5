"""What of a config key is handed to the application, in which order, and what follows once the application has it."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

from ringcast_wire import RandomSource
from ringcast_wire.metrics import Histogram

from ringcast._common.change import Change
from ringcast._common.stats import Stats
from ringcast._protocol.actions import Apply, Restored
from ringcast._protocol.announcements import Announcements
from ringcast._protocol.backlog import Backlog
from ringcast._protocol.batches import Batch, Collector
from ringcast._protocol.deliveries import CachedJob, ChangeMaker, Job, Jobs, PartitionJob, events_of
from ringcast._protocol.fetch_queue import FetchQueue
from ringcast._protocol.fetches import Fetches
from ringcast._protocol.intake import EventIntake
from ringcast._protocol.key_history import KeyHistory
from ringcast._protocol.outbox import Outbox
from ringcast._protocol.partition import Fetching, Partition, PartitionInput, Token
from ringcast._protocol.snapshots import Saving


class Handover:
    """Hands one job at a time to the application. Once it is done, its events are acknowledged.

    ``saving`` learns which partitions have changed, where there is a cache on disk.
    """

    def __init__(
        self,
        partitions: MutableMapping[int, Partition],
        *,
        jobs: Jobs,
        collector: Collector,
        intake: EventIntake,
        fetches: Fetches,
        queue: FetchQueue,
        history: KeyHistory,
        announcements: Announcements,
        backlog: Backlog,
        make: ChangeMaker,
        saving: Saving | None,
        stats: Stats,
        outbox: Outbox,
        random: RandomSource,
        window_s: float,
    ) -> None:
        self.batch_sizes = Histogram.of("config_notification_batch_size")
        self._partitions = partitions
        self._jobs = jobs
        self._collector = collector
        self._intake = intake
        self._fetches = fetches
        self._queue = queue
        self._history = history
        self._announcements = announcements
        self._backlog = backlog
        self._make = make
        self._saving = saving
        self._stats = stats
        self._outbox = outbox
        self._random = random
        self._window_s = window_s

    # ---- the next job

    def start_due(self, now: float) -> None:
        """Gives the application its next job, if it has none and one can be started."""
        while True:
            self._close_batch(now)
            if self._jobs.active is not None or not self._start(now):
                break

    @property
    def wake_at(self) -> float | None:
        """When the changes that gather are to go on, if any gather."""
        if self._collector.since is None or self._jobs.full:
            return None
        return self._collector.since + self._window_s

    @property
    def is_busy(self) -> bool:
        """Whether the application has a job now."""
        return self._jobs.active is not None

    @property
    def room(self) -> int:
        """How many more events should be pulled at most for now."""
        return 0 if self._collector.paused else self._backlog.pace.room(busy=self.is_busy)

    def _close_batch(self, now: float) -> None:
        """Sends what has gathered on: at once if nothing is under way, else at the end of the window."""
        if self._collector.since is None or self._jobs.full:
            return
        if not self._jobs or now >= self._collector.since + self._window_s:
            batch, requests = self._collector.close()
            self._stats.batches += 1
            self.batch_sizes.observe(batch.size)
            self._jobs.batches.append(batch)
            for wanted in requests:
                self._fetches.batches.ask(batch, wanted)

    def _start(self, now: float) -> bool:
        """Starts the next job, if there is one that can be."""
        job = self._jobs.take(self._announcements.told)
        if job is None:
            return False
        number = self._outbox.number()
        if changes := self._changes(job, now):
            self._jobs.active = (number, job)
            self._stats.changes += len(changes)
            self._outbox.put(Apply(number, changes, job if isinstance(job, Batch) else None, events_of(job)))
        else:
            self._finish(job, now)
        return True

    def _changes(self, job: PartitionJob | CachedJob | Batch, now: float) -> list[Change]:
        if isinstance(job, Batch):
            return self._make.of_batch(job)
        if job.partition.dead:
            return []
        if isinstance(job, CachedJob):
            return self._make.of_cache(job.partition, now)
        if job.history != self._history.current:
            return []  # another history has begun: the partition is fetched again
        if job.rows.whole and job.partition.replace:
            return self._replace(job)
        job.partition.history = job.history  # from now on it holds rows, which events are compared with
        return self._make.of_fetch(job.partition, job.rows)

    def _replace(self, job: PartitionJob) -> list[Change]:
        """Puts a new partition in the place of one whose database went back in time."""
        before = job.partition
        self._queue.done(before)
        after, news = before.successor(job.rows.rows, job.rows.revision, self._random, job.history)
        if before.history == job.history:
            self._outbox.put(Restored(before.number, before.applied, job.rows.revision))
        self._outbox.ack(before.give_up())
        self._partitions[before.number] = job.partition = after
        self._backlog.count(before)
        self._backlog.count(after)
        self._fetches.batches.drop_satisfied()
        after.fetching = Fetching.APPLYING
        return self._make.of_rows(after, news)

    # ---- what the application has taken

    def done(self, number: int, now: float) -> None:
        """The application has taken all changes of a job, or was told what an announcement says."""
        if self._announcements.done(number):
            return
        assert self._jobs.active is not None
        active, job = self._jobs.active
        assert active == number
        self._jobs.active = None
        self._finish(job, now)

    def partly_done(self, number: int, partitions: Iterable[int]) -> None:
        """The application has taken all that a job which still runs has of these partitions."""
        assert self._jobs.active is not None
        active, batch = self._jobs.active
        assert active == number
        if isinstance(batch, Batch):
            self._finish_batch(batch.revs[partition] for partition in partitions)

    def _finish(self, job: Job, now: float) -> None:
        if isinstance(job, PartitionJob):
            self._finish_fetch(job, now)
        elif isinstance(job, Batch):
            self._finish_batch(job.revs.values())

    def _finish_batch(self, revs: Iterable[tuple[Partition, int]]) -> None:
        tokens: list[Token] = []
        for partition, rev in revs:
            if not partition.dead:
                tokens += self._advance(partition, rev)
        self._backlog.pace.applied(len(tokens))
        self._outbox.ack(tokens)

    def _finish_fetch(self, job: PartitionJob, now: float) -> None:
        """The rows of a fetch are applied: the partition is live, and the events that came meanwhile are taken in."""
        partition, outbox = job.partition, self._outbox
        self._queue.done(partition)
        if partition.dead:
            return
        if job.history != self._history.current:
            self._queue.want(partition)
            return
        partition.on(PartitionInput.LOADED)
        outbox.ack(self._advance(partition, job.rows.revision))
        if partition.foreign:
            outbox.ack(partition.settled(self._history.is_past))
        self._fetches.batches.drop_satisfied()
        if partition.applied < job.asked.goal and job.asked.unconfirmed:
            false = partition.discard_unconfirmed(job.asked.unconfirmed)
            self._stats.unreadable += len(false)
            outbox.ack(false)
        partition.fetch_ended(incomplete=partition.applied < job.asked.goal and partition.goal > 0, now=now)
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
