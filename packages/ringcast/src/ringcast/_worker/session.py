"""One config key of a worker: carries out what its machine decides."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from ringcast_wire import Mode, ProtocolError, RingcastError, StoreSettings

from ringcast._bus.bus import Bus
from ringcast._bus.dead_letters import DeadLetterPublisher
from ringcast._cache.cache import Cache
from ringcast._cache.file import StoredPartition
from ringcast._common.config import WorkerConfig
from ringcast._common.opening import Openings
from ringcast._common.waiters import Waiters
from ringcast._delivery.attempts import Handler
from ringcast._delivery.callbacks import Listeners
from ringcast._delivery.deliveries import Deliveries
from ringcast._delivery.handler import Applier
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
from ringcast._protocol.pace import Pace
from ringcast._protocol.provisional import ProvisionalRows
from ringcast._protocol.snapshots import CachedPartition, Saving
from ringcast._worker.anti_entropy import AntiEntropy
from ringcast._worker.fetches import KeyFetches
from ringcast._worker.host import KeyHost
from ringcast._worker.journal import KeyJournal
from ringcast._worker.ownership import KeyOwnership
from ringcast._worker.staleness import KeyStaleness
from ringcast._worker.subjects import KeySubjects
from ringcast._worker.telemetry import KeyTelemetry
from ringcast._worker.vitals import Vitals
from ringcast._worker.wake_timer import WakeTimer


class KeySession:
    """The shell around a :class:`KeyMachine`: fetches, the handler, acknowledgements, timers and waits.

    Made inside the event loop that runs it. Nothing is sent before ``fetches`` has a client. ``waits_for_step``: the
    store may have migrated, so nothing is handed over of what is restored.
    """

    def __init__(
        self,
        key: str,
        config: WorkerConfig,
        settings: StoreSettings,
        *,
        bus: Bus,
        host: KeyHost,
        listeners: Listeners,
        cache: Cache | None,
        telemetry: KeyTelemetry,
        openings: Openings,
        waits_for_step: bool = False,
    ) -> None:
        self.key = key
        self.log, self.measures, self.traces = telemetry
        self.hungry = False  # whether it wants more events: it has partitions, and room for their changes
        self.on_pumped: Callable[[], None] = _nothing
        """Called when something about the key has changed."""
        self._config = config
        self._bus = bus
        self._host = host
        self._cache = cache
        self._now = asyncio.get_running_loop().time
        self.machine = machine = KeyMachine(
            config.store,
            key,
            full=settings.mode is Mode.FULL,
            partition_count=settings.partition_count,
            random=random.random,
            window_s=config.window_s,
            max_delete_share=config.max_delete_share,
            pace=Pace.of(config.max_parallel_handlers, config.max_ack_pending, config.ack_wait_s),
            saving=Saving() if cache is not None else None,
            exclusive=waits_for_step or _is_exclusive(settings, config),
        )
        self.provisional = ProvisionalRows(config.store, key, machine.partitions)
        self._waiters = Waiters()
        self.vitals = Vitals(self._waiters.wake)
        self.subjects = KeySubjects(config.store, key, settings.partition_count, machine.partitions)
        self.journal = KeyJournal(telemetry, config.max_delete_share)
        self.applier = Applier(
            config,
            machine.stats,
            self.log,
            listeners=listeners,
            owned=machine.owns,
            dead_letters=DeadLetterPublisher(bus),
            measures=self.measures,
            opening=openings.of(config.store, key, machine.stats),
        )
        self.deliveries = Deliveries(key, self.applier, self.traces, observer=self)
        self._timer = WakeTimer(self.pump)
        self.fetches = KeyFetches(machine, telemetry, observer=self)
        self.anti_entropy = AntiEntropy(machine, self.fetches, config.heads_s, self.log, observer=self)
        self.staleness = KeyStaleness(
            bus,
            machine,
            fetches=self.fetches,
            anti_entropy=self.anti_entropy,
            applier=self.applier,
            vitals=self.vitals,
            handler_stall_s=config.handler_stall_s,
        )
        self.ownership = KeyOwnership(
            machine,
            self.subjects,
            self.vitals,
            applier=self.applier,
            anti_entropy=self.anti_entropy,
            staleness=self.staleness,
            journal=self.journal,
            host=host,
            observer=self,
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
        self.applier.lose(self.machine.partitions.keys())
        self.machine.start_over(
            full=settings.mode is Mode.FULL,
            partition_count=settings.partition_count,
            exclusive=_is_exclusive(settings, self._config),
        )
        self.subjects.partition_count = settings.partition_count
        self.pump()

    def take_in(self, partition: int, data: bytes, token: str) -> None:
        """Takes an event in; ``token`` acknowledges it. :meth:`pump` is to be called after the last of many."""
        machine = self.machine
        try:
            event = read_event(data, partition, machine.partition_count)
        except ProtocolError as error:
            self.journal.unreadable(partition, error)
            machine.unreadable(partition, token)
        else:
            machine.event(partition, event, token, self._now())

    def _reconnected(self) -> None:
        self.machine.fetches.reconnected(self._now())
        self.anti_entropy.compare_now()
        self.pump()

    # ---- the end of the key

    def check_store(self) -> None:
        """The service's answers are of another store than this one, as far as can be told."""
        self._host.check_store()

    def deleted(self, error: RingcastError) -> None:
        """The service says that the store, or this key of it, is deleted."""
        self._host.deleted(self.key, error)

    def give_up(self, deletion: RingcastError) -> None:
        """The key is deleted: its partitions are revoked, none is taken again, and all waits end with the reason."""
        self.ownership.give_up(deletion)
        self._waiters.fail(deletion)

    def close(self, error: BaseException | None) -> None:
        """Takes no more inputs; all waits, now or later, end with the error."""
        self._timer.cancel()
        if self.traces is not None:
            self.traces.close()
        self._waiters.close(error)

    # ---- what the machine wants done

    def pump(self) -> None:
        """Carries out what is due."""
        machine = self.machine
        self.fetches.forget_unwanted()
        for action in machine.poll(self._now()):
            self._do(action)
        self._timer.set(machine.wake_at)
        if self.traces is not None:
            self.traces.look_at(machine.partitions)
        self._waiters.wake()
        self.on_pumped()
        if self._cache is not None and machine.saving is not None and machine.saving.pending:
            self._cache.changed()
        if self.hungry is not (bool(machine.partitions) and not machine.paused):
            self.hungry = not self.hungry
            self._host.pressure_changed()

    def _do(self, action: Action) -> None:
        match action:
            case Ack():
                self._bus.acks.add(action.tokens)
                if self.traces is not None:
                    self.traces.acknowledged(action.tokens)
            case Apply() | Announce():
                if isinstance(action, Apply):
                    self.provisional.leave(action.changes)
                if self.measures.timed and isinstance(action, Apply):
                    tokens = action.tokens if action.batch is None else action.batch.tokens()
                    self.measures.handing_over(tokens)
                self.deliveries.take(action)
            case FetchPartition() | FetchBatch() | FetchFull():
                self._host.spawn(self.fetches.send(action))
            case GiveUpFetch():
                self.fetches.give_up(action.request)
            case MissedEvents():
                self.journal.missed(action)
                self._host.suspect_consumer(self.subjects.of(action.partition))
            case CompareRevisions():
                self.anti_entropy.compare_now()
            case HistoryChanged():
                self._host.check_store()
                self.journal.history_changed(action)
            case HistoryRefused():
                self._host.check_store()
                self.staleness.refused()
                self.journal.refused(action.refusal)
            case Restored():
                self.journal.restored(action)

    def delivered(self, job: int) -> None:
        """The application has taken a job, or an announcement."""
        self.machine.handover.done(job, self._now())
        self.pump()

    def partly_delivered(self, job: int, partitions: set[int]) -> None:
        """The application has taken what a long job has of these partitions."""
        self.machine.handover.partly_done(job, partitions)
        self.pump()

    # ---- what callers want to know

    def attach(self, handler: Handler | None, *, timed: bool = True, gated: bool = True) -> None:
        """Hands changes to ``handler`` from the next job on; the rows that are held now are not among them."""
        self.applier.attach(handler, after=self.machine.last_number, timed=timed, gated=gated)
        self.machine.backlog.pace.serve(self.applier.parallel)

    @property
    def staleness_s(self) -> float:
        """For how long changes may have been missed, or have not been handed over; 0 if nothing is known of any."""
        return self.staleness.total_s

    @property
    def ready(self) -> bool:
        """Whether an assignment was made and every owned partition is loaded."""
        return self.vitals.assigned and not self.vitals.failing_because and self.machine.ready

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition on the machine holds; cancelling leaves nothing behind."""
        await self._waiters.wait_until(condition)


def _is_exclusive(settings: StoreSettings, config: WorkerConfig) -> bool:
    """Whether each partition has one owner at every moment; a worker that only observes owns nothing."""
    return settings.is_exclusive and not config.observe


def _nothing() -> None:
    """Does nothing."""
