"""The life of a running worker: every task belongs to one group, and it ends in phases."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from ringcast_wire import (
    ErrorCode,
    EventLog,
    InUseError,
    LeaseRecord,
    MismatchError,
    Mode,
    RingcastError,
    StoreSettings,
    UnavailableError,
)
from ringcast_wire.tracing import Tracing

from ringcast._bus.bus import TRANSIENT, Bus, OpenBus
from ringcast._bus.consumers import Consumers
from ringcast._bus.nats_bus import NatsBus
from ringcast._bus.requests import FetchClient
from ringcast._cache.cache import Cache
from ringcast._cache.file import Identity
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import first_error, lasting
from ringcast._common.measures import KeyMeasures, Metrics, NoMetrics
from ringcast._common.process import Process, this_process
from ringcast._common.stats import Stats
from ringcast._coordination.agent_lease import AgentLease
from ringcast._coordination.lease import LeaseHolder, LeaseSource
from ringcast._coordination.observer import NoLease
from ringcast._coordination.peer import Coordinator, PeerCoordinator
from ringcast._coordination.store_settings import find_store
from ringcast._delivery.handler import Handler, Listener
from ringcast._protocol.backlog import share_out
from ringcast._worker.demand import Demand
from ringcast._worker.metrics_endpoint import endpoint
from ringcast._worker.participation import Participation
from ringcast._worker.progress import report_progress
from ringcast._worker.replays import Replays, ReplayTaker
from ringcast._worker.routes import Routes
from ringcast._worker.samples import CacheSamples, WorkerSamples
from ringcast._worker.session import KeySession

_RELEASE_TIMEOUT_S: Final = 5.0


class Runtime:
    """What a worker consists of while it runs. One use: ``run`` it once."""

    def __init__(
        self,
        config: WorkerConfig,
        log: EventLog,
        *,
        handler: Handler | None,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
        open_bus: OpenBus = NatsBus.prepared,
        process: Process = this_process,
    ) -> None:
        self.settings: StoreSettings | None = None
        self.bus: Bus | None = None
        self.cache: Cache | None = None
        self.lease: LeaseSource | None = None
        self.routes: Routes | None = None
        self.sessions: dict[str, KeySession] = {}
        self.participation: Participation | None = None
        self.replay_taker: ReplayTaker | None = None
        self.started = asyncio.Event()
        self.stopping = asyncio.Event()
        self._config = config
        self._log = log
        self._handler = handler
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self.metrics_address = ""
        self._given_metrics = metrics
        self._metrics: Metrics = NoMetrics()
        self._tracing = tracing
        self._open_bus = open_bus
        self._process = process
        self.stats = Stats()
        """What is no single key's."""
        self._demand = Demand(lambda: self.sessions.values())
        self._consumers: Consumers | None = None
        self._group: asyncio.TaskGroup | None = None
        self._handing_over: set[asyncio.Task[None]] = set()
        self._joined = False
        self._ending = False
        self._coordinator: Coordinator | None = None
        self._deletion: RingcastError | None = None
        self._cache_samples: CacheSamples | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until ``stopping`` is set; raises the error that makes going on impossible."""
        error: BaseException | None = None
        try:
            async with (
                endpoint(self._config.metrics_listen, self._given_metrics) as (self._metrics, self.metrics_address),
                Cache.open(self._config, self._log) as self.cache,
                self._open_bus(self._config, self._log) as self.bus,
                asyncio.TaskGroup() as self._handlers,
            ):
                self._measure_cache(self.bus)
                if self.cache is not None and self.cache.identity is not None:
                    self._serve_cached(self.cache, self.cache.identity)
                await self._until_stopped(self._handlers.create_task(self._participate(self.bus)))
        except BaseExceptionGroup as group:
            error = first_error(group)
            raise error from None
        except BaseException as caught:
            error = caught
            raise
        finally:
            if self._cache_samples is not None:
                self._metrics.remove(self._cache_samples)
            for session in self.sessions.values():
                session.close(error)

    def _measure_cache(self, bus: Bus) -> None:
        if self.cache is not None:
            self._cache_samples = CacheSamples(
                self._config, bus, self.cache, lambda: self.sessions, lambda: self._joined
            )
            self._metrics.add(self._cache_samples)

    def _serve_cached(self, cache: Cache, identity: Identity) -> None:
        """Begins with what the last life had: the application has it before there is a connection."""
        if not cache.found:
            return
        self.settings = identity.settings
        self._begin(identity.settings)
        for key, found in cache.found.items():
            self.sessions[key].restore(found)
        cache.found = {}
        self.started.set()

    async def _until_stopped(self, taking_part: asyncio.Task[None]) -> None:
        """Waits for the end. A worker that is stopped before it could join has nothing to give back."""
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({taking_part, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not taking_part.done() and not self._joined:
                await self._drain()
                taking_part.cancel()
            await asyncio.wait({taking_part})
        finally:
            stopping.cancel()
            await self._end_handlers()
            if not self._joined:
                await self._revoke_all()

    async def _participate(self, bus: Bus) -> None:
        """Connects, joins, and takes part until ``stopping`` is set."""
        try:
            settings = await find_store(bus, self._config, patient=bool(self.sessions), log=self._log)
            self._check(settings)
            await self._adopt(settings)
            async with FetchClient.open(bus, self._config.fetch_timeout_s) as fetches:
                await self._take_part(bus, fetches, settings)
        finally:
            self._begin_to_end_handlers()  # before their tasks are cancelled for a failure in here

    async def _adopt(self, settings: StoreSettings) -> None:
        """Goes on with what was restored, if it is of this store, or without it."""
        self.settings = settings
        if self.cache is not None:
            identity = Identity(self._config.store, self._config.worker_id, settings)
            reason = self.cache.difference(identity)
            if reason is not None:
                for session in self.sessions.values():
                    session.start_over(settings)
                await self.cache.abandon(reason)
        if not self.sessions:
            self._begin(settings)
        if self.cache is not None:
            await self.cache.follow(identity, self.sessions)

    def _begin(self, settings: StoreSettings) -> None:
        """Makes the sessions, and starts what hands changes over."""
        self.sessions = {key: self._session(key, settings) for key in self._config.keys}
        share_out(self._config.max_ack_pending, [session.machine.backlog for session in self.sessions.values()])
        for session in self.sessions.values():
            self._handing_over.add(self._handlers.create_task(self._hand_over(session)))

    async def _hand_over(self, session: KeySession) -> None:
        """Hands the changes of a key over until the worker stops; a worker that hands nothing over must not go on."""
        try:
            await session.run_jobs()
        finally:
            self._begin_to_end_handlers()  # of the other keys too: one that fails ends the worker

    def _check(self, settings: StoreSettings) -> None:
        """Refuses to join a store that is not what was asked for."""
        try:
            settings.require(mode=self._config.mode, partition_count=self._config.partition_count)
        except MismatchError as error:
            what = "mode mismatch" if error.field == "mode" else "partition count mismatch"
            self._log.error(what, error=str(error))
            raise

    async def _take_part(self, bus: Bus, fetches: FetchClient, settings: StoreSettings) -> None:
        lease = self.lease = self._make_lease(bus, settings)
        name = (*self._config.servers, self._config.store, self._config.worker_id)
        if name in self._process.running:
            raise InUseError(
                f"worker id {self._config.worker_id!r} is in use by another worker of this process for the same store",
                field="worker_id",
            )
        self._process.running.add(name)
        try:
            await lease.take()
            await self._hold(bus, fetches, settings, lease)
        finally:
            self._process.running.discard(name)

    def _make_lease(self, bus: Bus, settings: StoreSettings) -> LeaseSource:
        """The worker's own lease, or its host's. In mode FULL only its own keeps other processes off its id."""
        if self._config.observe:
            return NoLease()
        own = LeaseHolder(
            bus,
            self._config.worker_id,
            LeaseRecord(
                incarnation=self._process.incarnation,
                host=socket.gethostname(),
                pid=os.getpid(),
                started_at_ms=int(time.time() * 1000),
            ),
            refresh_s=self._config.lease_refresh_s,
            servers=self._config.servers,
            retaken=self._verify,
            stats=self.stats,
            log=self._log,
        )
        if not self._config.agent or settings.mode is not Mode.PARTITIONED:
            return own
        return AgentLease(self._config, own, incarnation=self._process.incarnation, retaken=self._verify, log=self._log)

    async def _hold(self, bus: Bus, fetches: FetchClient, settings: StoreSettings, lease: LeaseSource) -> None:
        count = settings.partition_count
        participation = self.participation = Participation(self._config.worker_id, self.sessions, self._log)
        routes = self.routes = Routes(bus, self._config, self.sessions, count, self.stats, self._log)
        consumers = self._consumers = Consumers(
            bus,
            self._config,
            deliver=routes.deliver,
            demand=self._demand,
            holds=lambda: lease.held,
            confirmed=self._confirmed,
            failing=participation.unheard,
            log=self._log,
        )
        coordinator = None
        if settings.mode is Mode.PARTITIONED and not self._config.observe:
            coordinator = PeerCoordinator(
                bus,
                self._config,
                settings,
                incarnation=self._process.incarnation,
                participant=participation,
                lease=lease,
                stats=self.stats,
                log=self._log,
            )
        self._coordinator = participation.coordinator = coordinator
        self._joined = True  # so this gives back whatever it has taken
        try:
            for session in self.sessions.values():
                session.join(fetches)
            samples = WorkerSamples(self._config, bus, consumers, lease, self.sessions, self.all_stats)
            self._metrics.add(samples)
            try:
                await self._run_tasks(bus, settings, lease, consumers, coordinator)
            finally:
                self._metrics.remove(samples)
        finally:
            await self._end_handlers()
            if lease.held:  # else all that goes by our id may be somebody else's by now
                if coordinator is not None:
                    await self._release(bus, coordinator.leave)
                await self._release(bus, lease.release)
                await self._release(bus, consumers.release)
            lease.let_go()
            await self._revoke_all()

    def _session(self, key: str, settings: StoreSettings) -> KeySession:
        assert self.bus is not None
        session = KeySession(
            key,
            self._config,
            settings,
            bus=self.bus,
            host=self,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            cache=self.cache,
            measures=KeyMeasures(self._metrics, settings.partition_count),
            tracing=self._tracing,
            log=self._log,
        )
        session.attach(self._handler)
        return session

    async def _run_tasks(
        self,
        bus: Bus,
        settings: StoreSettings,
        lease: LeaseSource,
        consumers: Consumers,
        coordinator: PeerCoordinator | None,
    ) -> None:
        async with asyncio.TaskGroup() as self._group:
            self.spawn(_until_closed(bus))
            self._keep("refreshes the lease", lease.run)
            self._keep("acknowledges events", bus.run_acks)
            self._keep("reports progress", lambda: report_progress(bus, self.sessions, self._config.ack_wait_s))
            self._keep("updates the consumers", consumers.run)
            replays = Replays(bus, self._config, self.sessions, settings.mode, self.replay_taker, self._log)
            self._keep("replays dead letters", replays.run)
            for session in self.sessions.values():
                self._keep(f"compares the heads of key {session.key}", session.run_heads)
            if coordinator is not None:
                self._keep("takes part in the coordination", coordinator.run)
            else:
                for session in self.sessions.values():
                    session.assign(frozenset(range(settings.partition_count)))
            self.spawn(self._say_started())
            await self.stopping.wait()
            if coordinator is not None and self._deletion is None:
                await coordinator.give_notice()
            await self._wind_down(bus, consumers)
        if self._deletion is not None:
            raise self._deletion

    def deleted(self, key: str, error: RingcastError) -> None:
        """The service says that the store, or this key of it, is deleted.

        A worker of other keys goes on with them. Nothing is handed over as a deletion of rows: partitions are revoked.
        """
        session = self.sessions[key]
        if self.stopping.is_set() or session.deletion is not None:
            return
        if error.code is ErrorCode.KEY_DELETED:
            self._log.error("key is deleted: it is given up", key=key, error=str(error))
            session.give_up(error)
            if self._coordinator is not None:
                self._coordinator.give_up(key)
            if any(each.deletion is None for each in self.sessions.values()):
                return
        else:
            self._log.error("store is deleted: the worker ends", error=str(error))
        self._deletion = error
        self.stopping.set()

    async def _say_started(self) -> None:
        """The worker has started once each key is assigned, waits, or fails: one that is refused holds up no other."""
        sessions = list(self.sessions.values())
        for session in sessions:
            await session.wait_until(lambda session=session: session.known or session.vitals.failing_because)  # type: ignore[misc]
        if not any(session.known for session in sessions):
            raise UnavailableError(f"no key can be registered: {self.failing_because}")
        self.started.set()

    @property
    def refused_consumers(self) -> tuple[str, ...]:
        """The consumers that NATS does not let the worker pull from."""
        return self._consumers.refused if self._consumers is not None else ()

    @property
    def failing_because(self) -> str:
        """What keeps the worker from its work, as far as that is known, or nothing."""
        told = self.participation.troubles() if self.participation is not None else []
        if self.bus is not None and (refused := self.bus.refusals.subjects()):
            told.append(f"NATS refuses {', '.join(refused)}")
        return "; ".join(told)

    async def _wind_down(self, bus: Bus, consumers: Consumers) -> None:
        """Takes no more in, waits for the handlers that run, and ends all tasks."""
        consumers.stop_pulling()
        await self._drain()
        await self._end_handlers()
        await bus.flush_acks()
        self._ending = True
        for task in list(self._tasks):
            task.cancel()

    async def _drain(self) -> None:
        """Waits for the handlers that run, for a while."""
        try:
            async with asyncio.timeout(self._config.drain_timeout_s):
                for session in self.sessions.values():
                    await session.drained()
        except TimeoutError:
            self._log.warning("a handler is still running: its changes will be handed over again")

    async def _end_handlers(self) -> None:
        """Hands nothing over any more."""
        self._begin_to_end_handlers()
        for task in self._handing_over:
            task.cancel()
        if self._handing_over:
            await asyncio.wait(self._handing_over)

    def _begin_to_end_handlers(self) -> None:
        for session in self.sessions.values():
            session.applier.stopping.begin()

    async def _release(self, bus: Bus, step: Callable[[], Awaitable[None]]) -> None:
        """Gives up something that others wait for; if that fails, it ends by itself later."""
        try:
            if not bus.is_connected:
                raise UnavailableError("there is no connection to NATS")
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                await step()
        except (RingcastError, *TRANSIENT) as error:
            self._log.warning("giving up was not confirmed: it ends with the lease", error=str(error))

    async def _revoke_all(self) -> None:
        for session in self.sessions.values():
            await session.revoke_all()

    def all_stats(self) -> Stats:
        """The counters of all keys, and what is no single key's."""
        return sum((session.machine.stats for session in self.sessions.values()), self.stats + Stats())

    # ---- between the parts

    def want(self, key: str, subjects: frozenset[str]) -> None:
        """Asks for the events of exactly these subjects of a key from now on."""
        if self._consumers is not None:
            self._consumers.want(key, subjects)

    def pressure_changed(self) -> None:
        """A key has room for more events now, or none any more."""
        self._demand.look()

    def doubt(self, subject: str) -> None:
        """Events of this subject do not come: its consumer is looked after."""
        if self._consumers is not None:
            self._consumers.doubt(subject)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task; while all of them end, for this or that reason, what is asked for is not begun."""
        assert self._group is not None
        if self._ending:
            work.close()
            return
        try:
            task = self._group.create_task(work)
        except RuntimeError:  # one of them has failed, so the group takes no more
            work.close()
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        self.spawn(lasting(what, run))

    def _confirmed(self, subjects: frozenset[str]) -> None:
        for session in self.sessions.values():
            session.filters_confirmed(subjects)

    def recovered(self, key: str) -> None:
        """The events of a key that was left to others can be had again."""
        if self.participation is not None:
            self.participation.come_back(key)

    def _verify(self) -> None:
        if self._consumers is not None:
            self._consumers.hurry()
        if self._coordinator is not None:
            self._coordinator.announce()
        for session in self.sessions.values():
            session.verify()


async def _until_closed(bus: Bus) -> None:
    await asyncio.shield(bus.closed)
