"""A worker that holds its lease: consumers, coordination and the tasks that keep them, until it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ringcast_wire import EventLog, Migration, Mode, RingcastError, StoreSettings, Strategy, UnavailableError
from ringcast_wire.migrating import Step
from ringcast_wire.reports import assignment_digest

from ringcast._bus.buckets import Buckets
from ringcast._bus.bus import TRANSIENT, Bus, Delivery
from ringcast._bus.consumers import Consumers, EventDemand
from ringcast._bus.requests import FetchClient
from ringcast._cache.cache import Cache
from ringcast._common.config import WorkerConfig
from ringcast._common.process import Process
from ringcast._common.stats import Stats
from ringcast._coordination.agent_lease import AgentLease
from ringcast._coordination.full_records import FullRecords
from ringcast._coordination.lease import LeaseSource
from ringcast._coordination.migrating import MigratingStore
from ringcast._coordination.migrating_peers import MigratingPeers
from ringcast._coordination.peer import Coordinator, PeerCoordinator
from ringcast._coordination.sticky.coordinator import StickyCoordinator
from ringcast._coordination.sticky.measures import KeyReport
from ringcast._coordination.sticky.ownership import ExclusiveCoordinator
from ringcast._coordination.sticky.times import StickyTimes
from ringcast._worker.dry_waves import DryWaves, Validator
from ringcast._worker.exclusive import ExclusiveKeys
from ringcast._worker.migrating import MigratingKeys
from ringcast._worker.participation import Participation
from ringcast._worker.progress import report_progress
from ringcast._worker.provisional import ProvisionalReleases
from ringcast._worker.replays import Replays, ReplayTaker
from ringcast._worker.reports import Reports
from ringcast._worker.routes import Routes
from ringcast._worker.sessions import KeySessions
from ringcast._worker.store_check import StoreCheck
from ringcast._worker.tasks import WorkerTasks

_RELEASE_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all parts of one worker use."""

    config: WorkerConfig
    settings: StoreSettings
    step: Migration | None
    """The step of a migration that the store was at when the worker joined; ``None``: it has never migrated."""
    bus: Bus
    buckets: Buckets
    """Where its records stand, and those of the others."""
    keys: KeySessions
    process: Process
    stats: Stats
    """What is no single key's."""
    log: EventLog
    can_be_guarded: bool
    """Not where the worker serves a group of an agent, whose partitions are shared out a second time."""
    cache: Cache | None
    """What is on the disk of the worker: it has to know whether the store migrates."""


class JoinedWorker:
    """Made once the lease is held; :meth:`run` gives everything back in the end."""

    def __init__(self, context: WorkerContext, lease: LeaseSource, demand: EventDemand) -> None:
        config, bus, log = context.config, context.bus, context.log
        sessions, settings, stats = context.keys.by_key, context.settings, context.stats
        self._context = context
        self.lease = lease
        self.participation = Participation(config.worker_id, sessions, log)
        self.routes = Routes(bus, config, sessions, settings.partition_count, stats, log)
        self.consumers = Consumers(
            bus,
            config,
            observer=self,
            demand=demand,
            lease=lease,
            log=log,
        )
        self.tasks = WorkerTasks()
        self._exclusive: ExclusiveKeys | None = None
        self._sticky: ExclusiveCoordinator | None = None
        self._migrating: MigratingStore | None = None
        self.coordinator = self._coordinator()
        self.participation.coordinator = self.coordinator
        self._full_records: FullRecords | None = None
        if settings.mode is Mode.FULL and not config.observe:
            self._full_records = FullRecords(context.buckets, config, lease, context.process.incarnation, log)
        self.store_check = StoreCheck(context.buckets, config.store, settings, log, observes=config.observe)

    def _coordinator(self) -> Coordinator | None:
        """What shares the partitions out; ``None`` for a worker that takes all."""
        context = self._context
        config, settings, buckets = context.config, context.settings, context.buckets
        if config.capacity != 1 and settings.strategy is not Strategy.STICKY:
            context.log.warning("capacity.unused", capacity=config.capacity, strategy=str(settings.strategy))
        if settings.mode is not Mode.PARTITIONED or config.observe:
            return None
        if settings.strategy is Strategy.STICKY:
            times = StickyTimes.of(settings)
            self._exclusive = ExclusiveKeys(context.keys.by_key, context.log)
            self._sticky = coordinator = StickyCoordinator(
                buckets,
                config,
                settings.partition_count,
                record=context.process.record(),
                participant=self._exclusive,
                log=context.log,
                times=times,
                report_sessions=self.lease.report_sessions if isinstance(self.lease, AgentLease) else None,
                revisions=self._exclusive.revisions,
                migrated=Step.of(context.step) if context.step is not None else None,
            )
            self._exclusive.follow(coordinator, times.fence.call_s)
            if isinstance(self.lease, AgentLease):
                self.lease.on_witnessed(coordinator.witnessed_by)
            return coordinator
        peers = PeerCoordinator(
            buckets,
            config,
            settings,
            incarnation=context.process.incarnation,
            participant=self.participation,
            lease=self.lease,
            stats=context.stats,
            log=context.log,
        )
        return MigratingPeers(peers, self._migrates(), context.log)

    def _migrates(self) -> MigratingStore:
        """What follows the migration of a store of peers."""
        context, lease = self._context, self.lease
        keys = MigratingKeys(context.keys.by_key, context.log, spawn=self.tasks.spawn, cache=context.cache)
        store = MigratingStore(
            context.buckets,
            context.config,
            context.settings,
            record=context.process.record(),
            participant=keys,
            log=context.log,
            can_be_guarded=context.can_be_guarded,
            report_sessions=lease.report_sessions if isinstance(lease, AgentLease) else None,
        )
        if isinstance(lease, AgentLease):
            lease.on_witnessed(store.witnessed_by)
        self._exclusive, self._migrating = keys, store
        self.participation.migrating, self.participation.store = keys, store
        return store

    def report(self, key: str) -> KeyReport | None:
        """What there is to measure of a key, in a store of exclusive ownership, or one that migrates."""
        sticky = self._migrating.coordinator if self._migrating is not None else self._sticky
        return sticky.report(key) if sticky is not None else None

    def _assigned(self, key: str) -> str:
        """What the partitions of a key are shared out by, as a report says it."""
        if self._context.keys.by_key[key].machine.exclusive and (measured := self.report(key)) is not None:
            return f"epoch {measured.epoch}"
        made = self.participation.assignments.get(key)
        return "" if made is None else assignment_digest(made.owners)

    async def run(
        self,
        fetches: FetchClient,
        *,
        started: asyncio.Event,
        stopping: asyncio.Event,
        replay_taker: ReplayTaker | None,
        validate: Validator | None,
        is_deleted: Callable[[], bool],
    ) -> None:
        """Takes part until ``stopping`` is set. ``started`` is set once it is known what each key owns.

        Raises what makes going on impossible. A worker that ``is_deleted`` leaves without waiting for others.
        """
        for session in self._context.keys.by_key.values():
            session.fetches.client = fetches
        async with self.tasks:
            self._start_tasks(fetches, replay_taker, validate, started)
            await stopping.wait()
            if self.coordinator is not None and not is_deleted():
                await self.coordinator.give_notice()
            await self._wind_down()

    def _start_tasks(
        self,
        fetches: FetchClient,
        replay_taker: ReplayTaker | None,
        validate: Validator | None,
        started: asyncio.Event,
    ) -> None:
        context, tasks = self._context, self.tasks
        bus, config, sessions, settings = context.bus, context.config, context.keys.by_key, context.settings
        tasks.spawn(_until_closed(bus))
        tasks.keep("refreshes the lease", self.lease.keep_alive)
        tasks.keep("acknowledges events", bus.acks.run)
        tasks.keep("reports progress", lambda: report_progress(bus, sessions, config.ack_wait_s))
        tasks.keep("updates the consumers", self.consumers.run)
        replays = Replays(bus, config, sessions, settings.mode, replay_taker, context.log)
        tasks.keep("replays dead letters", replays.run)
        full = settings.mode is Mode.FULL
        provisional = ProvisionalReleases(config, sessions, fetches, full=full, spawn=tasks.spawn, log=context.log)
        reports = Reports(
            bus,
            config,
            sessions,
            incarnation=context.process.incarnation,
            assigned=self._assigned,
            judged=DryWaves(config, sessions, fetches, validate, spawn=tasks.spawn, log=context.log).report,
            laid=provisional.report,
            groups=replay_taker is not None,
            log=context.log,
        )
        tasks.keep("answers how far it is", reports.run)
        tasks.keep("checks the settings of the store", self.store_check.run)
        for session in sessions.values():
            tasks.keep(f"compares the head revisions of key {session.key}", session.anti_entropy.run)
        if self.coordinator is not None:
            tasks.keep("takes part in the coordination", self.coordinator.run)
        else:
            for session in sessions.values():
                session.ownership.assign(frozenset(range(settings.partition_count)))
        if self._full_records is not None:
            tasks.keep("is registered", self._full_records.run)
        tasks.spawn(self._report_start(started))

    async def _report_start(self, started: asyncio.Event) -> None:
        """The worker has started once each key is assigned, waits, or fails: one that is refused holds up no other."""
        sessions = list(self._context.keys.by_key.values())
        for session in sessions:
            await session.wait_until(lambda session=session: session.vitals.known or session.vitals.failing_because)  # type: ignore[misc]
        if not any(session.vitals.known for session in sessions):
            raise UnavailableError(f"no key can be registered: {self.failing_because}")
        started.set()

    @property
    def failing_because(self) -> str:
        """What keeps the worker from its work, as far as that is known, or nothing."""
        return "; ".join([*self.participation.troubles(), *self._context.bus.refusals.sentences()])

    def deliver(self, messages: Sequence[Delivery]) -> None:
        """Events have come."""
        self.routes.deliver(messages)

    def filters_confirmed(self, subjects: frozenset[str]) -> None:
        """The server delivers these subjects."""
        self._context.keys.filters_confirmed(subjects)

    def undelivered(self, subjects: frozenset[str], reason: str, *, lost: bool) -> None:
        """The events of these subjects can't be had."""
        self.participation.undelivered(subjects, reason, lost=lost)

    def verify(self) -> None:
        """The lease was lost for a while: others may have taken over, and events may have been missed."""
        self.consumers.retry_now()
        if self.coordinator is not None:
            self.coordinator.announce()

    async def _wind_down(self) -> None:
        """Takes no more in, waits for the handlers that run, and ends all tasks."""
        context = self._context
        self.consumers.stop_pulling()
        await context.keys.drain(context.config.drain_timeout_s)
        await context.keys.end_handlers()
        await context.bus.acks.flush()
        self.tasks.end()

    async def leave(self) -> None:
        """Gives the registration, the lease and the consumers back, unless another process may have them by now."""
        if self._exclusive is not None:
            await self._exclusive.give_up()
        if self.lease.held:
            if self.coordinator is not None:
                await self._release(self.coordinator.leave)
            if self._full_records is not None:
                await self._release(self._full_records.leave)
            await self._release(self.lease.revoke)
            await self._release(self.consumers.release)
        self.lease.detach()

    async def _release(self, step: Callable[[], Awaitable[None]]) -> None:
        """Gives something back that others wait for; if that fails, it ends with the lease."""
        try:
            if not self._context.bus.is_connected:
                raise UnavailableError("there is no connection to NATS")
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await step()
        except (RingcastError, *TRANSIENT) as error:
            self._context.log.warning("release.unconfirmed", error=error)


async def _until_closed(bus: Bus) -> None:
    await asyncio.shield(bus.closed)
