"""The life of a running worker: every task belongs to one group, and it ends in phases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ringcast_wire import EventLog, InUseError, Migration, MismatchError, Mode, StoreSettings, Strategy
from ringcast_wire.tracing import Tracing

from ringcast._bus.buckets import Buckets
from ringcast._bus.bus import Bus, OpenBus
from ringcast._bus.kv import NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._bus.requests import FetchClient
from ringcast._cache.cache import Cache
from ringcast._cache.file import Identity
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import first_error
from ringcast._common.measures import Metrics, NoMetrics
from ringcast._common.opening import Openings
from ringcast._common.process import Process, this_process
from ringcast._common.stats import Stats
from ringcast._coordination.agent_lease import AgentLease
from ringcast._coordination.lease import LeaseHolder, LeaseSource
from ringcast._coordination.observer import NoLease
from ringcast._coordination.store_settings import find_store
from ringcast._delivery.attempts import Handler
from ringcast._delivery.callbacks import Listener, Listeners
from ringcast._worker.dry_waves import Validator
from ringcast._worker.joined import JoinedWorker, WorkerContext
from ringcast._worker.metrics_endpoint import endpoint
from ringcast._worker.replays import ReplayTaker
from ringcast._worker.samples import CacheSamples, WorkerSamples
from ringcast._worker.session import KeySession
from ringcast._worker.session_host import SessionHost
from ringcast._worker.sessions import KeySessions
from ringcast._worker.telemetry import KeyTelemetry

if TYPE_CHECKING:
    from ringcast._coordination.agent_stream import OpenAgentCall


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
        openings: Openings | None = None,
        open_bus: OpenBus = NatsBus.prepared,
        open_agent_call: OpenAgentCall | None = None,
        process: Process = this_process,
    ) -> None:
        self.settings: StoreSettings | None = None
        self.bus: Bus | None = None
        self.cache: Cache | None = None
        self.lease: LeaseSource | None = None
        self.joined: JoinedWorker | None = None
        self.replay_taker: ReplayTaker | None = None
        self.validate: Validator | None = None
        self.started = asyncio.Event()
        self.stopping = asyncio.Event()
        self._config = config
        self._log = log
        self._handler = handler
        self._listeners = Listeners(on_assigned, on_revoked)
        self.metrics_address = ""
        self._given_metrics = metrics
        self._metrics: Metrics = NoMetrics()
        self._tracing = tracing
        self._openings = openings or Openings(None)
        self._open_bus = open_bus
        self._opener = open_agent_call
        self._process = process
        self.stats = Stats()
        """What is no single key's."""
        self._keys = KeySessions(log)
        self.sessions = self._keys.by_key
        """By config key; empty until the store is known."""
        self._host = SessionHost(self.sessions, self.stopping, log)
        self._cache_samples: CacheSamples | None = None

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
            self._keys.close(error)

    def _measure_cache(self, bus: Bus) -> None:
        if self.cache is not None:
            self._cache_samples = CacheSamples(
                self._config, bus, self.cache, lambda: self.sessions, lambda: self.joined is not None
            )
            self._metrics.add(self._cache_samples)

    def _serve_cached(self, cache: Cache, identity: Identity) -> None:
        """Begins with the rows of the last life: the application has them before there is a connection."""
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
            if not taking_part.done() and self.joined is None:
                await self._keys.drain(self._config.drain_timeout_s)
                taking_part.cancel()
            await asyncio.wait({taking_part})
        finally:
            stopping.cancel()
            await self._keys.end_handlers()
            if self.joined is None:
                await self._keys.revoke_all()

    async def _participate(self, bus: Bus) -> None:
        """Connects, joins, and takes part until ``stopping`` is set."""
        buckets = NatsBuckets(bus)
        try:
            found = await find_store(bus, buckets, self._config, patient=bool(self.sessions), log=self._log)
            settings = found.settings
            self._check(settings)
            await self._adopt(settings)
            async with FetchClient.open(bus, self._config.fetch_timeout_s) as fetches:
                await self._take_part(bus, buckets, fetches, settings, found.step)
        finally:
            self._keys.stop_handlers()  # before their tasks are cancelled for a failure in here

    async def _adopt(self, settings: StoreSettings) -> None:
        """Goes on with the restored rows if they are of this store, else without them."""
        self.settings = settings
        if self.cache is not None:
            may_have_migrated = self.cache.may_have_migrated
            identity = Identity(self._config.store, self._config.worker_id, settings, migrates=may_have_migrated)
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
        sessions = [self._session(key, settings) for key in self._config.keys]
        self._keys.begin(sessions, self._handlers, self._config.max_ack_pending)

    def _check(self, settings: StoreSettings) -> None:
        """Refuses to join a store that differs from the settings, or whose strategy does not go with them."""
        try:
            settings.require(mode=self._config.mode, partition_count=self._config.partition_count)
            self._check_exclusive(settings)
        except MismatchError as error:
            self._log.error("store.mismatch", field=error.field, error=error)
            raise

    def _check_exclusive(self, settings: StoreSettings) -> None:
        if settings.strategy is not Strategy.STICKY or settings.mode is not Mode.PARTITIONED or self._config.observe:
            return
        if self.replay_taker is not None:
            raise MismatchError(
                f"store {self._config.store!r} has the strategy sticky, which no groups of an agent serve: use a "
                "worker, or subscribe without a group",
                field="strategy",
            )

    async def _take_part(
        self, bus: Bus, buckets: Buckets, fetches: FetchClient, settings: StoreSettings, step: Migration | None
    ) -> None:
        lease = self.lease = self._make_lease(buckets, settings)
        name = (*self._config.servers, self._config.store, self._config.worker_id)
        if name in self._process.running:
            raise InUseError(
                f"worker id {self._config.worker_id!r} is in use by another worker of this process for the same store",
                field="worker_id",
            )
        self._process.running.add(name)
        try:
            await lease.grant()
            await self._hold(bus, buckets, fetches, settings, step, lease)
        finally:
            self._process.running.discard(name)

    def _make_lease(self, buckets: Buckets, settings: StoreSettings) -> LeaseSource:
        """The worker's own lease, or its host's. In mode FULL only its own keeps other processes off its id."""
        if self._config.observe:
            return NoLease()
        own = LeaseHolder(
            buckets,
            self._config.worker_id,
            self._process.record(),
            refresh_s=self._config.lease_refresh_s,
            servers=self._config.servers,
            regranted=self._verify,
            stats=self.stats,
            log=self._log,
        )
        if not self._config.agent or settings.mode is not Mode.PARTITIONED:
            return own
        return AgentLease(
            self._config,
            own,
            self._opener,
            incarnation=self._process.incarnation,
            regranted=self._verify,
            log=self._log,
        )

    async def _hold(
        self,
        bus: Bus,
        buckets: Buckets,
        fetches: FetchClient,
        settings: StoreSettings,
        step: Migration | None,
        lease: LeaseSource,
    ) -> None:
        """Takes part with a lease that is held, and gives back in the end whatever it has taken."""
        config, host = self._config, self._host
        context = WorkerContext(
            config,
            settings,
            step,
            bus,
            buckets,
            self._keys,
            self._process,
            self.stats,
            self._log,
            can_be_guarded=self.replay_taker is None,
            cache=self.cache,
        )
        joined = self.joined = host.joined = JoinedWorker(context, lease, host.demand)
        try:
            samples = WorkerSamples(config, bus, joined.consumers, lease, self.sessions, self.all_stats, joined.report)
            self._metrics.add(samples)
            try:
                await joined.run(
                    fetches,
                    started=self.started,
                    stopping=self.stopping,
                    replay_taker=self.replay_taker,
                    validate=self.validate,
                    is_deleted=lambda: host.deletion is not None,
                )
                if host.deletion is not None:
                    raise host.deletion
            finally:
                self._metrics.remove(samples)
        finally:
            await self._keys.end_handlers()
            await joined.leave()
            await self._keys.revoke_all()

    def _session(self, key: str, settings: StoreSettings) -> KeySession:
        assert self.bus is not None
        session = KeySession(
            key,
            self._config,
            settings,
            bus=self.bus,
            host=self._host,
            listeners=self._listeners,
            cache=self.cache,
            telemetry=KeyTelemetry.of(key, self._config, log=self._log, metrics=self._metrics, tracing=self._tracing),
            openings=self._openings,
            # Another worker may own what the cache has: nothing of it is handed over before the step is known.
            waits_for_step=self.cache is not None and self.cache.may_have_migrated,
        )
        session.attach(self._handler)
        return session

    @property
    def refused_consumers(self) -> tuple[str, ...]:
        """The consumers that NATS does not let the worker pull from."""
        return self.joined.consumers.refused if self.joined is not None else ()

    @property
    def failing_because(self) -> str:
        """What keeps the worker from its work, as far as that is known, or nothing."""
        if self.joined is not None:
            return self.joined.failing_because
        return "; ".join(self.bus.refusals.sentences()) if self.bus is not None else ""

    def all_stats(self) -> Stats:
        """The counters of all keys, and what is no single key's."""
        return self._keys.stats() + self.stats

    def _verify(self) -> None:
        """The lease was lost for a while: what it was needed for is checked."""
        if self.joined is not None:
            self.joined.verify()
        self._keys.verify()
