"""One agent: everything is started, watched and stopped here, under one task group."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from ringcast.hosting import KeyReader, WorkerClient
from ringcast.metrics import PrometheusMetrics
from ringcast_wire import InvalidInputError, UnavailableError, names, without_passwords
from ringcast_wire.prometheus import OFF, MetricsServer, TableCollector, process_registry

from ringcast_heartbeat_agent.clients import Here
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.callbacks import CallbackSender
from ringcast_heartbeat_agent.dapr.handlers import Handlers
from ringcast_heartbeat_agent.dapr.observers import Observers
from ringcast_heartbeat_agent.dapr.transport_grpc import GrpcServer
from ringcast_heartbeat_agent.dapr.transport_http import HttpServer
from ringcast_heartbeat_agent.dispatch.dead_letters import Letters
from ringcast_heartbeat_agent.dispatch.feeds import Feeds
from ringcast_heartbeat_agent.dispatch.group import LOSSY, RELIABLE
from ringcast_heartbeat_agent.dispatch.groups import Dispatch
from ringcast_heartbeat_agent.dispatch.positions import Positions
from ringcast_heartbeat_agent.dispatch.progress import History
from ringcast_heartbeat_agent.dispatch.transport import DispatchServicer
from ringcast_heartbeat_agent.errors import ConfigError
from ringcast_heartbeat_agent.followers import Followers
from ringcast_heartbeat_agent.leases.host import HostLeases
from ringcast_heartbeat_agent.leases.state import SocketPlace
from ringcast_heartbeat_agent.leases.transport import lease_service
from ringcast_heartbeat_agent.status import Status
from ringcast_heartbeat_agent.telemetry import AGENT, Measures
from ringcast_heartbeat_agent.token_file import with_token

log = logging.getLogger(__name__)

T = TypeVar("T")

_API_TIMEOUT_S = 3.0


class _StoppedError(Exception):
    """A stop was asked for before everything had started."""


class App:
    """One agent. :meth:`run` serves until :meth:`stop` is called."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._measures = Measures()
        collector = TableCollector(AGENT)
        collector.add(self._measures.samples)
        self._metrics = PrometheusMetrics(process_registry(collector))
        self._stopping = asyncio.Event()
        self._lost = False
        self.ready = asyncio.Event()
        self.addresses: dict[str, str] = {}

    def stop(self) -> None:
        """Asks for an orderly end. Calling it again is harmless."""
        self._stopping.set()

    async def run(self) -> None:
        """Starts, serves, and stops in phases.

        Raises:
            ConfigError: the settings or NATS don't let it start.
        """
        with contextlib.suppress(_StoppedError):
            async with (
                self._socket_place() as place,  # first: an agent that is just ending has the ports, too
                self._metrics_server(),
                self._nats() as nc,
                self._reader() as reader,
                lease_service(self._config, place) as leases,
            ):
                await self._serve(nc, reader, leases)
        if self._lost:
            raise ConfigError("the NATS server closed the connection for good: see the log before this line")

    async def _serve(self, nc: Client, reader: KeyReader, leases: HostLeases | None) -> None:
        config, measures = with_token(self._config), self._measures
        async with asyncio.TaskGroup() as tasks:
            followers = Followers(config, tasks)
            feeds = Feeds(config, followers, self._metrics)
            js = nc.jetstream(prefix=config.jetstream_api, timeout=_API_TIMEOUT_S)
            letters = Letters(nc, js)
            positions = positions_of(config)
            dispatch = Dispatch(config, feeds, tasks, letters, History(reader, positions))
            observers = Observers(config, followers, reader, self._metrics)
            handlers = Handlers(config, js, reader, observers, dispatch, tasks, measures)
            callbacks = CallbackSender(config, tasks, handlers, measures)
            here = Here(config.grpc_listen.rpartition(":")[0], 0)
            grpc_server = GrpcServer(config, handlers, DispatchServicer(dispatch, measures, here), measures, here)
            status = Status(config, followers, dispatch, leases, connected=lambda: nc.is_connected)
            http_server = HttpServer(
                config,
                handlers,
                callbacks,
                measures,
                status,
                dispatch,
                unhealthy_because=lambda: _unhealthy_because(nc, followers, handlers, leases),
            )
            self._measure(nc, handlers, dispatch, letters)
            self._measure_keys(handlers, followers)
            self._measure_leases(leases)
            background = [
                tasks.create_task(followers.run(), name="followers"),
                tasks.create_task(handlers.run(), name="new-keys"),
                tasks.create_task(positions.run(), name="positions"),
            ]
            try:
                callbacks.start()
                await self._start(grpc_server, http_server)
                with self._ready_file():
                    self.ready.set()
                    await self._stopping.wait()
            finally:
                await self._shut(grpc_server, http_server, handlers, callbacks, dispatch, followers)
                await _bounded("positions of groups", positions.flush(), config.stop_timeout_s)
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
            "serving %s nats=%s agent_id=%s pid=%d",
            " ".join(f"{name}={address}" for name, address in self.addresses.items()),
            without_passwords(self._config.nats),
            self._config.agent_id,
            os.getpid(),
        )
        if self._config.api_token:
            log.info("callers must send the token that the agent was given")
        elif self._config.token_file == OFF:
            log.warning("token_file is off: every process of this host may call the agent")
        else:
            log.info("callers must send the token in %s", self._config.token_file)

    async def _shut(
        self,
        grpc_server: GrpcServer,
        http_server: HttpServer,
        handlers: Handlers,
        callbacks: CallbackSender,
        dispatch: Dispatch,
        followers: Followers,
    ) -> None:
        """Intake first, then what is in flight, then the streams, told by an error, then the partitions.

        Each phase has a bound.
        """
        log.info("stopping")
        bound_s = self._config.stop_timeout_s
        http_server.set_stopping()
        handlers.stop()
        await _bounded("deliveries", dispatch.drain(), self._config.drain_timeout_s + 1)
        dispatch.stop()
        await _bounded("gRPC calls", grpc_server.stop(bound_s), bound_s + 1)
        await _bounded("HTTP requests", http_server.stop(), bound_s)
        await _bounded("callbacks", callbacks.stop(), bound_s)
        await _bounded("partitions", followers.stop(), bound_s)
        log.info("stopped")

    def _measure(self, nc: Client, handlers: Handlers, dispatch: Dispatch, letters: Letters) -> None:
        """Says where the gauges are read: by the thread that serves them, so each takes a copy first."""

        def count(api: str) -> float:
            return sum(each.api == api for each in list(handlers.subscriptions.values()))

        self._measures.gauges = {
            ("subscriptions", ("grpc",)): lambda: count("grpc"),
            ("subscriptions", ("http",)): lambda: count("http"),
            ("updates_waiting", ()): lambda: sum(each.waiting for each in list(handlers.subscriptions.values())),
            ("connected", ()): lambda: nc.is_connected,
            ("groups", ()): lambda: sum(1 for _ in dispatch.groups()),
            ("dead_letter_failures_total", ()): lambda: letters.failures,
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

    def _measure_leases(self, leases: HostLeases | None) -> None:
        measures = self._measures
        measures.gauges |= {
            ("leases_registered", ()): lambda: len(leases.roster) if leases is not None else 0,
            ("lease_held", ()): lambda: leases is not None and leases.held,
            ("lease_losses_total", ()): lambda: leases.losses if leases is not None else 0,
            ("lease_records_deleted_total", ()): lambda: leases.deleted if leases is not None else 0,
        }
        if leases is not None:
            measures.given_up, measures.refused = leases.roster.given_up, leases.refused

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
        """Serves the metrics from before the start until after the end, so that a slow stop can be watched."""
        if self._config.metrics_listen == OFF:
            yield
            return
        try:
            server = MetricsServer(self._config.metrics_listen, self._metrics.registry)
        except UnavailableError as error:
            raise ConfigError(str(error)) from error
        self.addresses["metrics"] = server.address
        try:
            yield
        finally:
            await asyncio.to_thread(server.close)

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[KeyReader]:
        """What reads go through."""
        config = self._config
        reader = KeyReader(config.nats, worker_id=config.agent_id, login=config.nats_login)
        try:
            yield reader
        finally:
            await reader.close()

    @asynccontextmanager
    async def _nats(self) -> AsyncIterator[Client]:
        config = self._config
        servers = without_passwords(config.nats)
        nc = WorkerClient()
        last: list[str] = []

        async def on_error(error: Exception) -> None:
            if (text := str(error) or type(error).__name__) not in last:  # a server that is away fails each attempt
                log.warning("nats: %s", text)
            last[:] = [text]

        try:
            login = config.nats_login.connect_options(config.nats)
            async with asyncio.timeout(config.start_timeout_s):
                await self._unless_stopped(
                    nc.connect(
                        servers=list(config.nats),
                        name="ringcast-heartbeat-agent",
                        inbox_prefix=names.inbox_prefix(config.agent_id),
                        **login,
                        max_reconnect_attempts=-1,
                        reconnect_time_wait=0.5,  # type: ignore[arg-type]
                        connect_timeout=2,
                        error_cb=on_error,
                        closed_cb=self._on_closed,
                    )
                )
        except TimeoutError as error:
            reason = f": {last[0]}" if last else ""
            raise ConfigError(f"NATS at {servers} can't be reached{reason}") from error
        except (nats.errors.Error, OSError, ValueError, InvalidInputError) as error:
            raise ConfigError(f"NATS at {servers} can't be used: {error}") from error
        try:
            yield nc
        finally:
            self._stopping.set()
            await nc.close()

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a part of the start, but not once a stop was asked for."""
        task, stop = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _StoppedError
            return await task
        finally:
            task.cancel()
            stop.cancel()

    async def _on_closed(self) -> None:
        """The client gave up (a broken rule of the protocol): without NATS there is nothing to do here."""
        if not self._stopping.is_set():
            log.critical("the NATS connection was closed for good")
            self._lost = True
            self._stopping.set()

    @contextlib.contextmanager
    def _ready_file(self) -> Iterator[None]:
        """Says where this agent listens, for as long as it serves; never a half-written file."""
        path = self._config.ready_file
        if path is None:
            yield
            return
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        told = {**self.addresses, "agent_id": self._config.agent_id, "pid": os.getpid()}
        if not self._config.api_token and self._config.token_file != OFF:
            told["token_file"] = self._config.token_file
        temporary.write_text(json.dumps(told))
        temporary.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


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


def _unhealthy_because(nc: Client, followers: Followers, handlers: Handlers, leases: HostLeases | None) -> str:
    """Why changes may be missed now, or nothing."""
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
    return "the host's lease is not held" if leases is not None and not leases.held else ""


async def _bounded(what: str, work: Awaitable[object], bound_s: float) -> None:
    """One phase of the shutdown: what hangs must not keep the next from running."""
    since = time.monotonic()
    try:
        async with asyncio.timeout(bound_s):
            await work
    except TimeoutError:
        log.warning("stopping: the %s did not end within %.1f s", what, time.monotonic() - since)
