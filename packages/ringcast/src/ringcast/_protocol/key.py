"""The machine of one config key: events, fetches and assignments in; acknowledgements, fetches and changes out.

The rules that keep it correct, whatever is lost, repeated, reordered or late:

- A row is taken in only if it is newer than what is known of it, so no row goes back and no deleted row returns.
- ``applied`` rises only when the handler has seen everything up to it, and an event is acknowledged only then.
- An event that does not continue what was taken in leads to a fetch of what changed since ``applied``.
- Changes are handed to the application one job at a time, so the order of the jobs is the order of the rows. No job has
  changes of a partition before the application knows that it has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringcast_wire import ErrorCode, Event, PartitionRows, RandomSource, names
from ringcast_wire.metrics import Histogram

from ringcast._common.change import Change
from ringcast._common.stats import Stats
from ringcast._protocol.actions import (
    Ack,
    Action,
    Apply,
    FetchBatch,
    FetchFull,
    GiveUpFetch,
    Restored,
)
from ringcast._protocol.announcements import Announcements
from ringcast._protocol.anti_entropy import HeadsAsked
from ringcast._protocol.batch_fetches import BatchFetches
from ringcast._protocol.batches import Batch, Collector
from ringcast._protocol.comparison import Comparison
from ringcast._protocol.deliveries import CachedJob, ChangeMaker, Job, Jobs, PartitionJob, PartitionRequest, events_of
from ringcast._protocol.fetches import FetchQueue
from ringcast._protocol.full_fetch import FullFetch
from ringcast._protocol.hearing import Hearing
from ringcast._protocol.key_history import KeyHistory
from ringcast._protocol.pace import Pace
from ringcast._protocol.partition import Fetching, Partition, PartitionInput, Token
from ringcast._protocol.partition_fetches import PartitionFetches
from ringcast._protocol.snapshots import CachedPartition, Saving


class KeyMachine:
    """Everything that a worker decides about one config key. Not for use by several threads.

    Inputs are methods; each takes ``now``. After any of them, :meth:`poll` gives what is to be done and
    :attr:`wake_at` the time at which to poll again without input.
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
    ) -> None:
        self.store = store
        self.key = key
        self.partitions: dict[int, Partition] = {}
        self.history = KeyHistory(max_delete_share)
        self.stats = Stats()
        self.batch_sizes = Histogram.of("config_notification_batch_size")
        self.saving: Saving | None = None
        """What a cache on the disk lacks, if there is one."""
        self._full = full
        self.partition_count = partition_count
        self._random = random
        self._window_s = window_s
        self._actions: list[Action] = []
        self._numbers = 0
        self.pace = pace or Pace()
        self._queue = FetchQueue()
        self._comparison = Comparison(self.history, self.partitions, self._queue, self.stats, self._emit)
        self._fetches = PartitionFetches(self._queue, self.history, self.stats, self._number, self._emit)
        self._full_fetch = FullFetch(random)
        self._collector = Collector()
        self.hearing = Hearing(self._comparison, self._collector, self._queue, self.stats, self._emit)
        self._batch_fetches = BatchFetches(random, self._number, self._emit_batch_fetch, self._doubt)
        self._jobs = Jobs()
        self.announcements = Announcements(self._number, self._emit)
        self._make = ChangeMaker(store, key, self.stats)

    # ---- assignment

    def assign(self, partitions: frozenset[int]) -> None:
        """Takes the partitions to own from now on. What is kept goes on undisturbed."""
        owned = self.partitions.keys()
        gained, lost = partitions - owned, frozenset(owned - partitions)
        for number in lost:
            partition = self.partitions.pop(number)
            self._ack(partition.give_up())
            self._count(partition)
            if self.saving is not None:
                self.saving.lost(number)
        for number in sorted(gained):
            self._gain(number)
        if lost:
            self._give_up_fetches()
            self.announcements.add(False, lost)
        if gained:
            self.announcements.add(True, frozenset(gained))

    def _give_up_fetches(self) -> None:
        """Ends those of what was lost, and those that nobody waits for any more."""
        self._fetches.give_up_lost()
        self._batch_fetches.outrun()
        if not self.partitions and (request := self._full_fetch.give_up()) is not None:
            self._emit(GiveUpFetch(request))

    def restore(self, found: Iterable[CachedPartition], *, hand_over: bool) -> None:
        """Begins with partitions as they were in the last life. To be called before anything else.

        They are served, and handed to the application if ``hand_over``. Once assigned, only what has changed since is
        fetched; those that are not assigned are lost like any other.
        """
        for cached in found:
            partition = self._gain(cached.number, saved=True)
            partition.applied = partition.expected = cached.applied
            partition.rows, partition.tombstones = cached.rows, cached.tombstones
            partition.history, partition.as_of = cached.history, cached.as_of
            partition.on(PartitionInput.RESTORED)
            self.history.begin(self.history.current or cached.history)
            if cached.history != self.history.current:  # it was written in the middle of a change of histories
                partition.on(PartitionInput.INVALIDATED)
        if self.partitions:
            self.announcements.add(True, frozenset(self.partitions))
        if hand_over:
            for partition in self.partitions.values():
                self._jobs.add(CachedJob(partition))

    def start_over(self, *, full: bool, partition_count: int) -> None:
        """Gives up all that was restored: the store is another."""
        self.assign(frozenset())
        self.history.begin("")
        self._full, self.partition_count = full, partition_count

    def _gain(self, number: int, *, saved: bool = False) -> Partition:
        partition = self.partitions[number] = Partition(number, self._random)
        if self.saving is not None:
            self.saving.follow(partition, saved=saved)
        return partition

    def filters_ready(self, partitions: Iterable[int], now: float) -> None:
        """The server has confirmed that it delivers the events of these partitions: now they can be fetched."""
        new = [p for n in partitions if (p := self.partitions.get(n)) is not None and not p.filtered]
        for partition in new:
            partition.filtered = True
        if self._full and len(new) == self.partition_count and not any(partition.cached for partition in new):
            self._full_fetch.due = now
            return
        for partition in new:
            self._queue.want(partition)

    # ---- events

    def event(self, number: int, event: Event, token: Token, now: float) -> None:
        """Takes an event of a partition in. ``token`` is acknowledged once it is applied."""
        self.stats.events += 1
        partition = self.partitions.get(number)
        if partition is None:
            self._ack([token])  # not ours any more: whoever owns it starts with a fetch
        else:
            self.hearing.hear(partition, event, token, now)
            self._count(partition)

    def unreadable(self, number: int, token: Token) -> None:
        """An event of a partition came that can't be read."""
        self.hearing.unreadable(self.partitions.get(number), token)

    # ---- fetches

    def partition_reply(self, request: int, reply: PartitionRows, now: float, history: str = "") -> None:
        """The answer to a :class:`FetchPartition`; what was given up is not listened to."""
        asked = self._fetches.ended(request)
        if asked is not None:
            self._take_partition(asked, reply, now, history)

    def _take_partition(self, asked: PartitionRequest, reply: PartitionRows, now: float, history: str) -> None:
        partition = asked.partition
        if partition.dead:
            self._queue.done(partition)
            return
        if reply.partition != partition.number or not self._comparison.is_current(history):
            self._fetches.retry(partition, now)
            return
        if asked.since is not None and reply.whole and reply.revision < asked.since:
            partition.on(PartitionInput.INVALIDATED)
        if partition.replace and not self._comparison.may_replace(partition, reply):
            self._queue.done(partition)
            return
        partition.fetching = Fetching.APPLYING
        partition.backoff.reset()
        self._jobs.add(PartitionJob(partition, reply, asked, history))

    def full_reply(self, request: int, reply: Iterable[PartitionRows], now: float = 0.0, history: str = "") -> None:
        """The answer to a :class:`FetchFull`; a partition that it does not name is empty."""
        if request != self._full_fetch.asked:
            return
        if not self._comparison.is_current(history):
            self._full_fetch.failed(now)
            return
        self._full_fetch.answered()
        given = {part.partition: part for part in reply}
        for number, partition in self.partitions.items():
            if partition.fetching is Fetching.IDLE and not partition.live:
                partition.fetching = Fetching.APPLYING
                rows = given.get(number) or PartitionRows(number, 0, True, [])
                self._jobs.add(PartitionJob(partition, rows, PartitionRequest(partition), history))

    def batch_reply(self, request: int, reply: Sequence[PartitionRows], now: float, history: str = "") -> None:
        """The answer to a :class:`FetchBatch`; what was given up is not listened to."""
        if request not in self._batch_fetches:
            return
        if self._comparison.is_current(history):
            self._batch_fetches.reply(request, reply, now)
        else:
            self._batch_fetches.failed(request, ErrorCode.UNAVAILABLE, now)

    def fetch_failed(self, request: int, code: ErrorCode, now: float, *, unfinished: bool = False) -> None:
        """A fetch was refused, or is ``unfinished``; it is tried again later. A key that nobody wrote to is empty."""
        self.stats.fetch_failures += 1
        self.stats.bad_replies += code is ErrorCode.PROTOCOL
        if request == self._full_fetch.asked:
            self._full_failed(request, code, now, unfinished)
        elif (asked := self._fetches.ended(request)) is not None:
            if code is ErrorCode.UNKNOWN_KEY:
                self._take_partition(asked, PartitionRows(asked.partition.number, 0, True, []), now, "")
            else:
                self._fetches.retry(asked.partition, now)
        elif request in self._batch_fetches:
            self._batch_fetches.failed(request, code, now)

    def _full_failed(self, request: int, code: ErrorCode, now: float, unfinished: bool) -> None:
        if code is ErrorCode.UNKNOWN_KEY:
            self.full_reply(request, [], now)
        elif unfinished or code is ErrorCode.LIMIT_EXCEEDED:
            self._full_fetch.split()
            for partition in self.partitions.values():
                self._queue.want(partition)
        else:
            self._full_fetch.failed(now)

    def _emit_batch_fetch(self, action: FetchBatch | GiveUpFetch) -> None:
        self.stats.batch_fetches += isinstance(action, FetchBatch)
        self._actions.append(action)

    def wants(self, what: int | str) -> bool:
        """Whether a fetch of a partition, or of something else (``batch``, ``full``), is under way or to be tried."""
        if isinstance(what, int):
            partition = self.partitions.get(what)
            return partition is not None and partition.fetching is not Fetching.IDLE
        return bool(self._batch_fetches) if what == names.FETCH_BATCH else self._full_fetch.is_wanted

    def awaits(self, request: int) -> bool:
        """Whether the answer to a fetch is waited for still."""
        return request in self._fetches or request in self._batch_fetches or request == self._full_fetch.asked

    # ---- heads

    def heads_asked(self) -> HeadsAsked:
        """Remembers how far each partition is; to be called before the heads are asked for."""
        return self._comparison.ask()

    def heads_reply(
        self, asked: HeadsAsked, heads: Sequence[int], now: float, history: str = "", rows: Sequence[int] | None = None
    ) -> None:
        """Compares the partitions with the service's heads, which are as new as the request or newer.

        ``rows``: how many live rows each partition has there; ``None`` where that is not known.
        """
        self._ack(self._comparison.compare(asked, heads, now, history, rows))
        for partition in self.partitions.values():
            self._count(partition)

    def reconnected(self, now: float) -> None:
        """The connection is back: what waits for another try goes at once."""
        self._queue.hurry()
        self._full_fetch.hurry(now)
        self._batch_fetches.hurry(now)

    # ---- what to do

    def poll(self, now: float) -> list[Action]:
        """What is to be done now; each action is given once."""
        self.pace.look(now)
        self._ask_due(now)
        self.announcements.start()
        while True:
            self._close_batch(now)
            if self._jobs.active is not None or not self._start_job(now):
                break
        busy = self._jobs.active is not None and self.pace.is_pressed
        self._comparison.check_suspects(now, held_back=busy)
        self._fetches.ask_due(now)
        actions, self._actions = self._actions, []
        return actions

    @property
    def wake_at(self) -> float | None:
        """When to poll again if nothing comes in before, or ``None``."""
        times = [self._queue.wake_at, self._full_fetch.due, self._batch_fetches.wake_at, self._comparison.wake_at]
        if self._collector.since is not None and not self._jobs.full:
            times.append(self._collector.since + self._window_s)
        return min((time for time in times if time is not None), default=None)

    def held_changes(self, partition: Partition, now: float) -> list[Change]:
        """The live rows of a partition, as changes."""
        if partition.cached:
            return self._make.of_cache(partition, now)
        return self._make.of_rows(partition, [*partition.rows.values()])

    @property
    def room(self) -> int:
        """How many more events should be pulled at most for now."""
        return 0 if self._collector.paused else self.pace.room(busy=self._jobs.active is not None)

    @property
    def paused(self) -> bool:
        """Whether so much waits for the handler that no more events should be pulled for now."""
        return self.room == 0

    @property
    def last_number(self) -> int:
        """The number of the newest request or job; a later one has a higher number."""
        return self._numbers

    @property
    def ready(self) -> bool:
        """Whether every owned partition has been fetched and applied."""
        if self.history.refusal is not None:
            return False
        return all(partition.live and not partition.replace for partition in self.partitions.values())

    def job_done(self, job: int, now: float) -> None:
        """The application has taken what an :class:`Apply` or :class:`Announce` gave it."""
        if self.announcements.done(job):
            return
        assert self._jobs.active is not None
        number, done = self._jobs.active
        assert number == job
        self._jobs.active = None
        self._finish(done, now)

    def partly_done(self, job: int, partitions: Iterable[int]) -> None:
        """The application has taken all that an :class:`Apply` of a batch has of these partitions."""
        assert self._jobs.active is not None
        number, batch = self._jobs.active
        assert number == job
        if isinstance(batch, Batch):
            self._finish_batch(batch.revs[number] for number in partitions)

    def _ask_due(self, now: float) -> None:
        if self._full_fetch.take(now):
            self._full_fetch.asked = self._number()
            self.stats.fetches += 1
            self._actions.append(FetchFull(self._full_fetch.asked))
        self._batch_fetches.ask_due(now)

    def _doubt(self, partition: Partition) -> None:
        """The service denies what an event said: the partition is taken anew, as after a restored database."""
        if not partition.dead:
            partition.on(PartitionInput.INVALIDATED)
            self._queue.want(partition)

    def _close_batch(self, now: float) -> None:
        """Sends what has gathered on: at once if nothing is under way, else at the end of the window."""
        if self._collector.since is None or self._jobs.full:
            return
        if not self._jobs or now >= self._collector.since + self._window_s:
            batch, requests = self._collector.close()
            self.stats.batches += 1
            self.batch_sizes.observe(batch.size)
            self._jobs.batches.append(batch)
            for wanted in requests:
                self._batch_fetches.ask(batch, wanted)

    # ---- jobs, one at a time

    def _start_job(self, now: float) -> bool:
        """Starts the next job, if there is one that can be."""
        job = self._jobs.take(self.announcements.told)
        if job is None:
            return False
        number = self._number()
        if changes := self._changes(job, now):
            self._jobs.active = (number, job)
            self.stats.changes += len(changes)
            self._actions.append(Apply(number, changes, job if isinstance(job, Batch) else None, events_of(job)))
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
        if job.history != self.history.current:
            return []  # another history has begun: the partition is fetched again
        if job.rows.whole and job.partition.replace:
            return self._restore(job)
        job.partition.history = job.history  # from now on it holds rows, which events are compared with
        return self._make.of_fetch(job.partition, job.rows)

    def _restore(self, job: PartitionJob) -> list[Change]:
        """Puts a new partition in the place of one whose database went back in time."""
        before = job.partition
        self._queue.done(before)
        after, news = before.successor(job.rows.rows, job.rows.revision, self._random, job.history)
        if before.history == job.history:
            self._actions.append(Restored(before.number, before.applied, job.rows.revision))
        self._ack(before.give_up())
        self.partitions[before.number] = job.partition = after
        self._count(before)
        self._count(after)
        self._batch_fetches.outrun()
        after.fetching = Fetching.APPLYING
        return self._make.of_rows(after, news)

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
        self.pace.applied(len(tokens))
        self._ack(tokens)

    def _finish_fetch(self, job: PartitionJob, now: float) -> None:
        """The rows of a fetch are applied: the partition is live, and hears the events that came meanwhile."""
        partition = job.partition
        self._queue.done(partition)
        if partition.dead:
            return
        if job.history != self.history.current:
            self._queue.want(partition)
            return
        partition.on(PartitionInput.LOADED)
        self._ack(self._advance(partition, job.rows.revision))
        if partition.foreign:
            self._ack(partition.settled(self.history.is_past))
        self._batch_fetches.outrun()
        if partition.applied < job.asked.goal and job.asked.doubted:
            false = partition.disbelieve(job.asked.doubted)
            self.stats.unreadable += len(false)
            self._ack(false)
        partition.fell_short(partition.applied < job.asked.goal and partition.goal > 0, now)
        waiting, partition.waiting = partition.waiting, []
        for event, token in waiting:
            self.hearing.hear(partition, event, token, now)
        if partition.highest > partition.expected:
            self._queue.want(partition, at=partition.retry_at)
        else:
            partition.highest = 0
            if partition.unread:
                self._queue.want(partition)
        self._count(partition)

    # ---- helpers

    def _advance(self, partition: Partition, revision: int) -> list[Token]:
        """Everything up to ``revision`` is applied; returns what is to be acknowledged."""
        if self.saving is not None:
            self.saving.changed(partition)
        tokens = partition.advance(revision)
        self._count(partition)
        return tokens

    def _count(self, partition: Partition) -> None:
        self.pace.count(partition)
        if self.hearing.share is not None:
            self.hearing.share.count(partition)

    def _ack(self, tokens: list[Token]) -> None:
        if tokens:
            self._actions.append(Ack(tokens))

    def _emit(self, action: Action) -> None:
        self._actions.append(action)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
