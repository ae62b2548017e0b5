"""One agent: everything is started, watched and stopped here, under one task group."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from nats.aio.client import Client
from ringcast.hosting import KeyReader, WorkerClient
from ringcast.metrics import PrometheusMetrics
from ringcast_meta.cluster import Drain, MemberKind, MemberReport, MemberState, Presence
from ringcast_service import ConfigError, Lifetime, bounded, end_tasks, ready_file, serving_metrics
from ringcast_wire import EventLog, names, without_passwords
from ringcast_wire.prometheus import OFF, TableCollector, process_registry

from ringcast_heartbeat_agent.clients import Here
from ringcast_heartbeat_agent.config import VERSION, Config
from ringcast_heartbeat_agent.dapr.callbacks import CallbackSender
from ringcast_heartbeat_agent.dapr.handlers import Handlers
from ringcast_heartbeat_agent.dapr.observers import Observers
from ringcast_heartbeat_agent.dapr.transport_grpc import GrpcServer
from ringcast_heartbeat_agent.dapr.transport_http import HttpServer
from ringcast_heartbeat_agent.dispatch.dead_letters import GroupDeadLetters
from ringcast_heartbeat_agent.dispatch.group import LOSSY, RELIABLE
from ringcast_heartbeat_agent.dispatch.groups import Dispatch
from ringcast_heartbeat_agent.dispatch.key_follower import KeyFollowers
from ringcast_heartbeat_agent.dispatch.positions import Positions
from ringcast_heartbeat_agent.dispatch.progress import History
from ringcast_heartbeat_agent.dispatch.seal_service import SealService
from ringcast_heartbeat_agent.dispatch.transport import DispatchServicer
from ringcast_heartbeat_agent.draining import DrainableAgent, Load
from ringcast_heartbeat_agent.followers import Followers
from ringcast_heartbeat_agent.leases.host import HostLeases
from ringcast_heartbeat_agent.leases.state import SocketPlace
from ringcast_heartbeat_agent.leases.transport import lease_service
from ringcast_heartbeat_agent.opening import Opener
from ringcast_heartbeat_agent.status import Status
from ringcast_heartbeat_agent.telemetry import AGENT, Measures
from ringcast_heartbeat_agent.token_file import with_token

log = EventLog(logging.getLogger(__name__))


_API_TIMEOUT_S = 3.0


class App(Lifetime):
    """One agent. :meth:`run` serves until :meth:`stop` is called."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config
        self._opener = Opener(config.key_ring)
        self._measures = Measures()
        collector = TableCollector(AGENT)
        collector.add(self._measures.samples)
        self._metrics = PrometheusMetrics(process_registry(collector))
        self.addresses: dict[str, str] = {}

    async def _run(self) -> None:
        async with (
            self._socket_place() as place,  # first: an agent that is just ending has the ports, too
            self._metrics_server(),
            self._nats() as nc,
            self._reader() as reader,
            lease_service(self._config, place) as leases,
        ):
            await self._serve(nc, reader, leases)

    async def _serve(self, nc: Client, reader: KeyReader, leases: HostLeases | None) -> None:
        config, measures = with_token(self._config), self._measures
        async with asyncio.TaskGroup() as tasks:
            followers = Followers(config, tasks)
            key_followers = KeyFollowers(config, followers, self._metrics, self._opener)
            js = nc.jetstream(prefix=config.jetstream_api, timeout=_API_TIMEOUT_S)
            dead_letters = GroupDeadLetters(nc, js)
            positions = positions_of(config)
            seals = SealService(config, tasks.create_task)
            dispatch = Dispatch(config, key_followers, tasks, dead_letters, History(reader, positions), seals)
            observers = Observers(config, followers, reader, self._metrics, self._opener)
            handlers = Handlers(config, js, reader, self._opener, observers, dispatch, tasks, measures)
            callbacks = CallbackSender(config, tasks, handlers, measures)
            here = Here(config.grpc_listen.rpartition(":")[0], 0)
            grpc_server = GrpcServer(config, handlers, DispatchServicer(dispatch, measures, here), measures, here)
            drain = Drain(DrainableAgent(handlers, dispatch, seals, followers, leases))
            presence = self._presence(Load(handlers, dispatch, leases), drain)
            status = Status(
                config, followers, dispatch, leases, connected=lambda: nc.is_connected, state=lambda: drain.state
            )
            http_server = HttpServer(
                config,
                handlers,
                callbacks,
                measures,
                status,
                dispatch,
                unhealthy_because=lambda: _unhealthy_because(drain, nc, followers, handlers, leases),
            )
            self._measure(nc, handlers, dispatch, dead_letters)
            self._measure_seals(seals)
            self._measure_keys(handlers, followers)
            self._measure_leases(leases)
            background = [
                tasks.create_task(followers.run(), name="followers"),
                tasks.create_task(handlers.run(), name="new-keys"),
                tasks.create_task(positions.run(), name="positions"),
                tasks.create_task(seals.run(), name="seals"),
            ]
            draining = [tasks.create_task(drain.run(), name="drain")]
            if presence is not None:
                background.append(tasks.create_task(presence.run(self.ready), name="presence"))
            try:
                callbacks.start()
                await self._start(grpc_server, http_server)
                with ready_file(self._config.ready_file, self._facts()):
                    self.ready.set()
                    await self._stopping.wait()
            finally:
                await end_tasks(draining)
                if presence is not None:
                    await bounded("registration", presence.stop(), config.stop_timeout_s)
                await self._shut(grpc_server, http_server, handlers, callbacks, dispatch, seals, followers)
                await bounded("positions of groups", positions.flush(), config.stop_timeout_s)
                for task in background:
                    task.cancel()

    async def _start(self, grpc_server: GrpcServer, http_server: HttpServer) -> None:
        try:
            await grpc_server.start()
            await http_server.start()
        except OSError as error:
            raise ConfigError(str(error)) from error
        for name, listen, port in (
            ("grpc", self._config.grpc_listen, grpc_server.port),
            ("http", self._config.http_listen, http_server.port),
        ):
            self.addresses[name] = f"{listen.rpartition(':')[0]}:{port}"
        log.info(
            "agent.serving",
            **self.addresses,
            nats=without_passwords(self._config.nats),
            agent_id=self._config.agent_id,
            pid=os.getpid(),
        )
        if self._config.api_token:
            log.info("agent.token_required", source="api_token")
        elif self._config.token_file == OFF:
            log.warning("agent.open_to_all", token_file=OFF)
        else:
            log.info("agent.token_required", source=self._config.token_file)

    async def _shut(
        self,
        grpc_server: GrpcServer,
        http_server: HttpServer,
        handlers: Handlers,
        callbacks: CallbackSender,
        dispatch: Dispatch,
        seals: SealService,
        followers: Followers,
    ) -> None:
        """Intake first, then what is in flight, then the streams, which end with an error, then the partitions.

        Each phase has a bound.
        """
        log.info("agent.stopping")
        bound_s = self._config.stop_timeout_s
        http_server.set_stopping()
        handlers.stop()
        await bounded("deliveries", dispatch.drain(), self._config.drain_timeout_s + 1)
        dispatch.stop()
        await bounded("gRPC calls", grpc_server.stop(bound_s), bound_s + 1)
        await bounded("HTTP requests", http_server.stop(), bound_s)
        await bounded("callbacks", callbacks.stop(), bound_s)
        await bounded("seals of groups", seals.flush(), bound_s)
        seals.stop()
        await bounded("partitions", followers.stop(), bound_s)
        log.info("agent.stopped")

    def _presence(self, load: Load, drain: Drain) -> Presence | None:
        """What says in the cluster that this agent is there, if that is wanted."""
        config = self._config
        if not config.cluster.on:
            return None
        report = MemberReport(
            MemberKind.AGENT,
            config.agent_id,
            VERSION,
            addresses=lambda: self.addresses | {"grpc": config.cluster.reached_at(self.addresses["grpc"])},
            state=lambda: drain.state,
            load=load,
        )
        presence = Presence(
            lambda: config.cluster.open(
                config.nats_login,
                inbox_prefix=names.inbox_prefix(config.agent_id),
                jetstream_api=config.jetstream_api,
            ),
            MemberKind.AGENT,
            config.agent_id,
            report=report,
            on_wish=drain.want,
            one_life=not config.is_named,
        )
        drain.changed = presence.changed
        return presence

    def _measure(self, nc: Client, handlers: Handlers, dispatch: Dispatch, dead_letters: GroupDeadLetters) -> None:
        """Says where the gauges are read: by the thread that serves them, so each takes a copy first."""

        def count(api: str) -> float:
            return sum(each.api == api for each in list(handlers.subscriptions.values()))

        self._measures.gauges = {
            ("subscriptions", ("grpc",)): lambda: count("grpc"),
            ("subscriptions", ("http",)): lambda: count("http"),
            ("updates_waiting", ()): lambda: sum(each.waiting for each in list(handlers.subscriptions.values())),
            ("connected", ()): lambda: nc.is_connected,
            ("login_refused", ()): lambda: self.login_refused,
            ("groups", ()): lambda: sum(1 for _ in dispatch.groups()),
            ("dead_letter_failures_total", ()): lambda: dead_letters.failures,
            ("unopened_values_total", ()): lambda: self._opener.failures,
        }
        for mode in (RELIABLE, LOSSY):
            for what in ("consumers", "in_flight", "lag", "blocked_rows"):
                self._measures.gauges[what, (mode,)] = partial(dispatch.sum_of, mode, what)
        self._measures.events = dispatch.counts
        self._measures.groups = dispatch.groups

    def _measure_keys(self, handlers: Handlers, followers: Followers) -> None:
        self._measures.gauges |= {
            ("keys_followed", ()): lambda: len(followers.keys),
            ("subscriptions_behind", ()): lambda: sum(
                each.behind > 0 for each in list(handlers.subscriptions.values())
            ),
            ("staleness_seconds", ()): lambda: max(
                (followers.staleness_s, *handlers.unread_s.values(), *handlers.groups_unread_s.values())
            ),
        }

    def _measure_seals(self, seals: SealService) -> None:
        self._measures.gauges |= {
            ("groups_not_durable", ()): lambda: seals.not_durable,
            ("partitions_awaited", ()): lambda: seals.waiting,
            ("seals_written_total", ()): lambda: seals.counts.written,
            ("seals_refused_total", ()): lambda: seals.counts.refused,
            ("seals_failed_total", ()): lambda: seals.counts.failed,
        }

    def _measure_leases(self, leases: HostLeases | None) -> None:
        measures = self._measures
        measures.gauges |= {
            ("leases_registered", ()): lambda: len(leases.registry) if leases is not None else 0,
            ("lease_held", ()): lambda: leases is not None and leases.lease.held,
            ("lease_losses_total", ()): lambda: leases.lease.losses if leases is not None else 0,
            ("lease_records_deleted_total", ()): lambda: leases.deleted if leases is not None else 0,
        }
        if leases is not None:
            measures.given_up, measures.refused = leases.registry.given_up, leases.refused

    @asynccontextmanager
    async def _socket_place(self) -> AsyncIterator[SocketPlace | None]:
        """Keeps other agents off the lease socket until everything else has ended."""
        config = self._config
        if not config.lease_socket:
            yield None
            return
        place = SocketPlace(Path(config.lease_socket), mode=int(config.lease_mode, 8), group=config.lease_group)
        try:
            await self._unless_stopped(place.lock(config.start_timeout_s))
            yield place
        finally:
            place.unlock()

    @asynccontextmanager
    async def _metrics_server(self) -> AsyncIterator[None]:
        async with serving_metrics(self._config.metrics_listen, self._metrics.registry) as address:
            if address:
                self.addresses["metrics"] = address
            yield

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[KeyReader]:
        """What reads go through."""
        config = self._config
        reader = KeyReader(config.nats, worker_id=config.agent_id, login=config.nats_login, key_ring="")
        try:
            yield reader
        finally:
            await reader.close()

    @asynccontextmanager
    async def _nats(self) -> AsyncIterator[Client]:
        config = self._config
        async with self._nats_connection(
            WorkerClient(),
            config.nats,
            config.nats_login,
            name="ringcast-heartbeat-agent",
            inbox_prefix=names.inbox_prefix(config.agent_id),
            timeout_s=config.start_timeout_s,
        ) as nc:
            yield nc

    def _facts(self) -> dict[str, str]:
        """What the ready file says."""
        facts = {**self.addresses, "agent_id": self._config.agent_id}
        if not self._config.api_token and self._config.token_file != OFF:
            facts["token_file"] = self._config.token_file
        return facts


def positions_of(config: Config) -> Positions:
    """Where groups remember how far they have come.

    Raises:
        ConfigError: the directory can't be made or read.
    """
    if not config.cache_dir:
        return Positions()
    try:
        return Positions(Path(config.cache_dir) / f"groups-{config.agent_id}")
    except OSError as error:
        raise ConfigError(f"cache_dir {config.cache_dir} can't be used: {error}") from error


def _unhealthy_because(
    drain: Drain, nc: Client, followers: Followers, handlers: Handlers, leases: HostLeases | None
) -> str:
    """Why changes may be missed now, or nothing new is begun; or nothing."""
    if drain.state is not MemberState.ACTIVE:
        return f"the agent is {drain.state}"
    if not nc.is_connected:
        return "NATS can't be reached"
    stale = sorted(
        ((each.staleness_s, f"{each.store}/{each.key}") for each in followers if each.staleness_s),
        reverse=True,
    )
    if stale:
        more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
        return f"no word of {stale[0][1]}{more} from NATS or the config service for {stale[0][0]:.0f} s"
    for who, unread in (("subscribers", handlers.unread_s), ("groups", handlers.groups_unread_s)):
        if unread:
            place, seconds = max(unread.items(), key=lambda each: each[1])
            more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
            return f"{who} of {place}{more} are behind, and reads have failed for {seconds:.0f} s"
    return "the host's lease is not held" if leases is not None and not leases.lease.held else ""
