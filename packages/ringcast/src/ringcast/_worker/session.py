"""One config key of a worker: carries out what its machine decides."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ringcast_wire import EventLog, Mode, ProtocolError, RingcastError, Row, StoreSettings, names
from ringcast_wire.tracing import Tracing

from ringcast._bus.bus import Bus
from ringcast._bus.dead_letters import DeadLetterPublisher
from ringcast._bus.requests import FetchClient
from ringcast._cache.cache import Cache
from ringcast._cache.file import StoredPartition
from ringcast._common.change import Change
from ringcast._common.config import WorkerConfig
from ringcast._common.measures import KeyMeasures
from ringcast._common.stats import Trigger
from ringcast._common.waiters import Waiters
from ringcast._delivery.deliveries import Deliveries
from ringcast._delivery.handler import Applier, Handler, Listener
from ringcast._delivery.traces import KeyTraces
from ringcast._protocol.actions import (
    Ack,
    Action,
    Announce,
    Apply,
    CompareRevisions,
    FetchBatch,
    FetchFull,
    FetchPartition,
    GiveUpFetch,
    HistoryChanged,
    HistoryRefused,
    MissedEvents,
    Restored,
)
from ringcast._protocol.decode import read_event
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.key_history import Refusal
from ringcast._protocol.pace import Pace
from ringcast._protocol.snapshots import CachedPartition, Saving
from ringcast._worker.fetches import KeyFetches
from ringcast._worker.heads_check import HeadsCheck
from ringcast._worker.host import KeyHost
from ringcast._worker.vitals import Vitals


class KeySession:
    """The shell around a :class:`KeyMachine`: fetches, the handler, acknowledgements, timers, those who wait."""

    def __init__(
        self,
        key: str,
        config: WorkerConfig,
        settings: StoreSettings,
        *,
        bus: Bus,
        host: KeyHost,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
        cache: Cache | None,
        measures: KeyMeasures,
        tracing: Tracing | None,
        log: EventLog,
    ) -> None:
        self.key = key
        self.measures = measures
        facts = {"store": config.store, "key": key, "worker_id": config.worker_id}
        self.traces = None if tracing is None else KeyTraces(tracing, **facts)
        self.log = log.bind(key=key)
        self.assigned = False
        self.hungry = False  # whether it wants more events: it has partitions, and room for their changes
        self.deletion: RingcastError | None = None
        """Why the key was given up: it is deleted."""
        self._config = config
        self._full = settings.mode is Mode.FULL
        self._bus = bus
        self._host = host
        self._wanted: frozenset[str] = frozenset()
        self._gained_at: dict[int, float] = {}
        self._unheard: frozenset[int] = frozenset()
        self._cache = cache
        self.machine = KeyMachine(
            config.store,
            key,
            full=self._full,
            partition_count=settings.partition_count,
            random=random.random,
            window_s=config.window_s,
            max_delete_share=config.max_delete_share,
            pace=Pace.of(config.max_parallel_handlers, config.max_ack_pending, config.ack_wait_s),
            saving=Saving() if cache is not None else None,
        )
        self._waiters = Waiters()
        self.vitals = Vitals(self._waiters.wake)
        self.applier = Applier(
            config,
            self.machine.stats,
            self.log,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            owned=self.machine.partitions.__contains__,
            letters=DeadLetterPublisher(bus),
            measures=measures,
        )
        self._subject_head = names.notify_subject(config.store, key, 0)[:-1]
        self._all_subjects = names.notify_key_subjects(config.store, key)
        self._wide = self._compared_wide = False
        self._deliveries = Deliveries(
            key, self.applier, self.traces, done=self._job_done, partly_done=self._job_partly_done
        )
        self._refused_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        tell = partial(host.deleted, key)
        self._heads = HeadsCheck(self.machine, config.heads_s, self.log, self.pump, tell)
        self.fetches = KeyFetches(
            self.machine, measures=measures, traces=self.traces, log=self.log, answered=self.pump, deleted=tell
        )
        bus.on_back(self._reconnected)

    # ---- inputs

    def restore(self, found: Sequence[StoredPartition]) -> None:
        """Begins with what the disk had; to be called before anything else."""
        now, now_ms = self._now(), time.time() * 1000
        cached = [
            CachedPartition(
                part.number,
                part.applied,
                part.rows,
                part.tombstones,
                as_of=now - max(0.0, now_ms - part.as_of_ms) / 1000,
                history=part.history,
            )
            for part in found
        ]
        self.machine.restore(cached, hand_over=self.applier.attached)
        self.pump()

    def start_over(self, settings: StoreSettings) -> None:
        """Gives up what was restored: the store is another."""
        self._full = settings.mode is Mode.FULL
        self.applier.lose(self.machine.partitions.keys())
        self.machine.start_over(full=self._full, partition_count=settings.partition_count)
        self.pump()

    def join(self, fetches: FetchClient) -> None:
        """The worker takes part from now on: fetches can be sent."""
        self.fetches.client = fetches

    def assign(self, partitions: frozenset[int], trigger: Trigger | None = None) -> None:
        """Takes the partitions to own from now on; without a trigger there was no rebalance (mode FULL)."""
        if self.deletion is not None or self.vitals.aside:
            return
        before = frozenset(self.machine.partitions)
        self._take(partitions)
        self.assigned, self.vitals.joining = True, False
        if trigger is not None:
            self._rebalanced(trigger, partitions - before, before - partitions)
        self._wide = len(partitions) == self.machine.partition_count
        self._compared_wide = self._compared_wide and self._wide
        self._wanted = frozenset({self._subject(number) for number in partitions})
        self._host.want(self.key, self._wanted)
        self.pump()

    def _take(self, partitions: frozenset[int]) -> None:
        now = self._now()
        self._gained_at = {number: self._gained_at.get(number, now) for number in partitions}
        self._unheard &= partitions
        self.applier.lose(self.machine.partitions.keys() - partitions)
        self.machine.assign(partitions)

    def stand_aside(self, unheard: frozenset[str]) -> None:
        """Gives all partitions up, since events of these subjects can't be had; only they are still asked for."""
        lost = frozenset(self.machine.partitions)
        self.vitals.aside = True
        self._take(frozenset())
        self._wanted &= unheard
        self._host.want(self.key, self._wanted)
        self._rebalanced(Trigger.LEAVE, frozenset(), lost)
        self.pump()

    def lacks(self, subjects: frozenset[str]) -> bool:
        """Whether a partition waits for the events of one of these subjects, or did when it was given up."""
        if self.vitals.aside:
            return not subjects.isdisjoint(self._wanted)
        return any(
            self._subject(number) in subjects and (number in self._unheard or not partition.filtered)
            for number, partition in self.machine.partitions.items()
        )

    def do_without(self, unheard: frozenset[str]) -> bool:
        """Loads partitions though events of these subjects can't be had: the service's heads show what changes.

        Returns whether there is one more of them.
        """
        waiting = [number for number, partition in self.machine.partitions.items() if not partition.filtered]
        late = [number for number in waiting if self._subject(number) in unheard]
        self._unheard |= frozenset(late)
        self.machine.filters_ready(late, self._now())
        self.pump()
        return bool(late)

    def give_up(self, deletion: RingcastError) -> None:
        """The key is deleted: its partitions are revoked, none is taken again, and those who wait are told why."""
        self.deletion = deletion
        self.assigned = True
        self._take(frozenset())
        self._wanted = frozenset()
        self._host.want(self.key, frozenset())
        self.pump()
        self._waiters.fail(deletion)

    async def revoke_all(self) -> None:
        """The worker ends: the application is told of the loss of all that it knows to have."""
        known = self.machine.announcements.known
        if known:
            await self.applier.announce(self.key, False, known, at_end=True)

    def check_there(self) -> None:
        """Raises why the key was given up, if it was."""
        if self.deletion is not None:
            raise type(self.deletion)(str(self.deletion), field=self.deletion.field)

    def _subject(self, partition: int) -> str:
        """Where the events of a partition are asked for: with one filter if all are ours, as many cost the broker."""
        return self._all_subjects if self._wide else f"{self._subject_head}{partition}"

    def _rebalanced(self, trigger: Trigger, gained: frozenset[int], lost: frozenset[int]) -> None:
        self.measures.rebalances[trigger] += 1
        if self.traces is not None:
            self.traces.assigned(trigger, gained, lost)
        owned = len(self.machine.partitions)
        self.log.info("rebalance", trigger=str(trigger), gained=len(gained), lost=len(lost), owned=owned)
        for number in sorted(lost):
            self.log.info("partition released", partition=number)
        for number in sorted(gained):
            self.log.info("partition acquired", partition=number)

    def filters_confirmed(self, subjects: frozenset[str]) -> None:
        """The server delivers these subjects, of any key."""
        if self._wanted <= subjects:
            self.vitals.works("events")
            if self.vitals.aside:
                self._host.recovered(self.key)
                return
        waiting = [number for number, partition in self.machine.partitions.items() if not partition.filtered]
        ready = [number for number in waiting if self._subject(number) in subjects]
        if self._wide and not self._compared_wide and self._all_subjects in subjects:
            self._compared_wide = True
            self._heads.hurry()  # what went from several consumers to one may have been missed on the way
        if heard := {number for number in self._unheard if self._subject(number) in subjects}:
            self._unheard -= heard
            self._heads.hurry()  # what came before the filters has been missed
        self.machine.filters_ready(ready, self._now())
        self.pump()

    def take_in(self, partition: int, data: bytes, token: str) -> None:
        """Takes an event in; ``token`` acknowledges it. :meth:`pump` is to be called after the last of many."""
        try:
            event = read_event(data, partition, self.machine.partition_count)
        except ProtocolError as error:
            self.log.error("event can't be read: its partition is fetched", partition=partition, error=str(error))
            self.machine.unreadable(partition, token)
        else:
            self.machine.event(partition, event, token, self._now())

    def verify(self) -> None:
        """Compares all partitions with the service's heads soon: the lease was lost for a while."""
        self._heads.hurry()

    # ---- what the machine wants done

    def pump(self) -> None:
        """Carries out what is due."""
        self.fetches.forget_unwanted()
        for action in self.machine.poll(self._now()):
            self._do(action)
        self._set_timer()
        if self.traces is not None:
            self.traces.look_at(self.machine.partitions)
        self._waiters.wake()
        if self._cache is not None and self.machine.saving is not None and self.machine.saving.pending:
            self._cache.changed()
        if self.hungry is not (bool(self.machine.partitions) and not self.machine.paused):
            self.hungry = not self.hungry
            self._host.pressure_changed()

    def _do(self, action: Action) -> None:
        match action:
            case Ack():
                self._bus.ack(action.tokens)
                if self.traces is not None:
                    self.traces.acknowledged(action.tokens)
            case Apply() | Announce():
                if self.measures.timed and isinstance(action, Apply):
                    tokens = action.tokens if action.batch is None else action.batch.tokens()
                    self.measures.handing_over(tokens)
                self._deliveries.take(action)
            case FetchPartition() | FetchBatch() | FetchFull():
                self._host.spawn(self.fetches.send(action))
            case GiveUpFetch():
                self.fetches.give_up(action.request)
            case MissedEvents():
                self.log.warning("events were missed: the consumer is looked after", partition=action.partition)
                self._host.doubt(self._subject(action.partition))
            case CompareRevisions():
                self._heads.hurry()
            case HistoryChanged():
                said = "the store has a new history: every partition is fetched whole"
                self.log.warning(said, before=action.before, after=action.after)
            case HistoryRefused():
                self._refused(action.refusal)
            case Restored():
                facts = {"partition": action.partition, "applied": action.applied, "head": action.head}
                said = "revision went back: the database was restored, the partition is fetched whole"
                self.log.error(said, **facts)

    def _refused(self, refusal: Refusal) -> None:
        self._refused_at = self._now()
        self.log.error(
            "too many rows are missing in the service's new history: the worker keeps what it has",
            history=refusal.history,
            missing=refusal.gone,
            held=refusal.held,
            max_delete_share=self._config.max_delete_share,
        )

    @property
    def refused_because(self) -> str:
        """Why the service's history of the key is not taken, or nothing."""
        refusal = self.machine.history.refusal
        if refusal is None:
            return ""
        return (
            f"{refusal.gone} of {refusal.held} rows are missing in the service's new history, "
            f"max_delete_share is {self._config.max_delete_share}"
        )

    async def run_jobs(self) -> None:
        """Hands changes to the application until cancelled."""
        await self._deliveries.run()

    def _job_done(self, job: int) -> None:
        self.machine.handover.done(job, self._now())
        self.pump()

    def _job_partly_done(self, job: int, partitions: set[int]) -> None:
        self.machine.handover.partly_done(job, partitions)
        self.pump()

    async def run_heads(self) -> None:
        """Compares revisions with the service now and then until cancelled."""
        await self._heads.run(self.fetches.heads)

    @property
    def handler_running_s(self) -> float:
        """For how long the oldest call of the handler has been running, its further tries included; 0 when none is."""
        return self.applier.calls.oldest_s

    @property
    def stalled_for_s(self) -> float:
        """The same, or of a callback, if it is so long that it counts as one that does not return; else 0."""
        running_s = max(self.handler_running_s, self.applier.callback_running_s)
        return running_s if running_s > self._config.handler_stall_s else 0.0

    @property
    def unanswered_for_s(self) -> float:
        """How long the service has not answered what the revisions are; 0 when it answered the last time."""
        since = self._heads.unanswered_since  # once, for another thread may ask
        return 0.0 if since is None else self._bus.closed.get_loop().time() - since

    @property
    def unfetched_for_s(self) -> float:
        """For how long changes that were heard of can't be fetched; 0 if none is."""
        since = self.fetches.failing_since
        return 0.0 if since is None else self._bus.closed.get_loop().time() - since

    @property
    def staleness_s(self) -> float:
        """For how long changes may have been missed, or have not been handed over; 0 if nothing is known of any."""
        return max(
            self._bus.lost_for_s,
            self.unanswered_for_s,
            self.unfetched_for_s,
            self.cached_age_s,
            self.refused_for_s,
            self.unloaded_for_s,
            self.stalled_for_s,
            self.vitals.failing_for_s,
        )

    @property
    def refused_for_s(self) -> float:
        """For how long the service's history of the key has been refused; 0 if it is not."""
        if self.machine.history.refusal is None:
            return 0.0
        return self._bus.closed.get_loop().time() - self._refused_at

    @property
    def cached_age_s(self) -> float:
        """How old the oldest of the partitions is that are still as the disk had them; 0 if none is."""
        as_of = [partition.as_of for partition in list(self.machine.partitions.values()) if partition.cached]
        return self._bus.closed.get_loop().time() - min(as_of) if as_of else 0.0

    @property
    def unloaded_for_s(self) -> float:
        """How long the longest-owned partition is without rows; 0 if none is."""
        partitions = list(self.machine.partitions.items())
        waiting = [number for number, partition in partitions if not partition.live and not partition.cached]
        since = [at for number in waiting if (at := self._gained_at.get(number)) is not None]
        return self._bus.closed.get_loop().time() - min(since) if since else 0.0

    # ---- what callers want to know

    def rows(self) -> Iterator[Row]:
        """All live rows held."""
        for partition in self.machine.partitions.values():
            yield from partition.rows.values()

    def attach(self, handler: Handler | None, *, timed: bool = True) -> None:
        """Hands changes to ``handler`` from the next job on; what is held now, it has been told otherwise."""
        self.applier.attach(handler, after=self.machine.last_number, timed=timed)
        self.machine.backlog.pace.serve(self.applier.parallel)

    def held_changes(self) -> Iterator[Change]:
        """All live rows held, as changes."""
        return self.machine.row_changes(self._now())

    @property
    def known(self) -> bool:
        """Whether it is known what is owned: what was assigned, or nothing until several changes are made together."""
        return self.assigned or self.vitals.joining

    @property
    def ready(self) -> bool:
        """Whether an assignment was made and every owned partition is loaded."""
        return self.assigned and not self.vitals.failing_because and self.machine.ready

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition on the machine holds; cancelling leaves nothing behind."""
        await self._waiters.wait_until(condition)

    async def drained(self) -> None:
        """Waits until no handler is running, nor about to."""
        await self.wait_until(lambda: not self.busy)

    @property
    def busy(self) -> bool:
        """Whether a handler is running, or about to."""
        return self._deliveries.busy

    def close(self, error: BaseException | None) -> None:
        """Takes no more inputs; whoever waits, now or later, gets the error."""
        if self._timer is not None:
            self._timer.cancel()
        if self.traces is not None:
            self.traces.close()
        self._waiters.close(error)

    def _set_timer(self) -> None:
        wake_at = self.machine.wake_at
        if self._timer is not None:
            if self._timer.when() == wake_at and not self._timer.cancelled():
                return
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_at(wake_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def _reconnected(self) -> None:
        self.machine.fetches.reconnected(self._now())
        self._heads.hurry()
        self.pump()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
