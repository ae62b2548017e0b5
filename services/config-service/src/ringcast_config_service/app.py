"""One instance: everything is started, watched and stopped here, under one task group."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from ringcast_wire import InvalidInputError, RingcastError, UnavailableError, names, without_passwords
from ringcast_wire.metrics import SERVICE
from ringcast_wire.prometheus import OFF, MetricsServer, TableCollector, process_registry
from ringcast_wire.tracing import make_tracing

from ringcast_config_service.config import Config
from ringcast_config_service.errors import ConfigError
from ringcast_config_service.grpc.dead_letter_calls import DeadLetterCalls
from ringcast_config_service.grpc.transport import GrpcServer
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.histories import Histories
from ringcast_config_service.lifecycle import Lifecycle
from ringcast_config_service.nats.bus_client import BusClient
from ringcast_config_service.nats.dead_letters import DeadLetterBox
from ringcast_config_service.nats.fetch_server import FetchServer
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.nats.relay import Relay
from ringcast_config_service.nats.replays import Replays
from ringcast_config_service.readiness import Readiness
from ringcast_config_service.repository import Repository, make_repository
from ringcast_config_service.telemetry import Telemetry
from ringcast_config_service.writes.group_writer import GroupWriter

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log = logging.getLogger(__name__)

T = TypeVar("T")

_OUTBOX_LOOK_S = 2.0
_RETRY_S = 0.2
_CANCEL_AGAIN_S = 1.0
_FORGET_MARKS = 5_000


class _StoppedError(Exception):
    """A stop was asked for before everything had started."""


class App:
    """One instance of the config service. :meth:`run` serves until :meth:`stop` is called.

    Its spans go to ``tracer_provider``, by default to the one that the process has configured, if any.
    """

    def __init__(self, config: Config, tracer_provider: TracerProvider | None = None) -> None:
        self._config = config
        self._telemetry = Telemetry(make_tracing("ringcast.config_service", tracer_provider))
        self._stopping = asyncio.Event()
        self._lost = False
        self._relay: Relay | None = None
        self._provisioner: Provisioner | None = None
        self._readiness: Readiness | None = None
        self.writer: GroupWriter | None = None
        self.ready = asyncio.Event()
        self.grpc_address = ""
        self.metrics_address = ""

    def stop(self) -> None:
        """Asks for an orderly end. Calling it again is harmless."""
        self._stopping.set()

    async def run(self) -> None:
        """Starts, serves, and stops in phases.

        Raises:
            ConfigError: the settings, the database or NATS don't let it start.
        """
        deadline = time.monotonic() + self._config.start_timeout_s
        with contextlib.suppress(_StoppedError):
            async with self._repository(deadline) as repository, self._nats(deadline) as nc:
                await self._serve(repository, nc)
        if self._lost:
            raise ConfigError("the NATS server closed the connection for good: see the log before this line")

    async def _serve(self, repository: Repository, nc: Client) -> None:
        config = self._config
        js = nc.jetstream()
        telemetry = self._telemetry
        provisioner = Provisioner(
            js,
            repository,
            replicas=config.nats_replicas,
            interval_s=config.provision_interval_s,
            sizes=config.streams,
            telemetry=telemetry,
        )
        self._provisioner = provisioner
        histories = Histories(js, repository, provisioner, telemetry)
        self._relay = relay = Relay(
            repository,
            nc,
            provisioner,
            batch=config.relay_batch,
            poll_s=config.relay_poll_s,
            duplicate=histories.duplicate,
            telemetry=telemetry,
        )
        provisioner.on_made = relay.reconnected
        provisioner.before_events = histories.before_events
        self.writer = writer = GroupWriter(repository, relay.committed, telemetry, transactions=repository.write_lanes)
        handlers = Handlers(repository, writer, provisioner, histories, telemetry)

        def forget(store: str) -> None:
            handlers.forget(store)
            histories.forget(store)

        lifecycle = Lifecycle(repository, provisioner, retention_ms=config.deletion_retention_ms, forget=forget)
        box = DeadLetterBox(nc, js)
        replays = Replays(nc, repository, box, telemetry)
        dead_letters = DeadLetterCalls(repository, box, replays, telemetry)
        fetches = FetchServer(nc, handlers, at_once=config.fetches, waiting=config.waiting_fetches, telemetry=telemetry)
        server = GrpcServer(
            handlers,
            lifecycle,
            dead_letters,
            writer,
            config.listen,
            telemetry,
            config.security,
            change_stream_s=config.change_stream_s,
            list_snapshot_s=config.list_snapshot_s,
            connections=config.connections,
        )
        readiness = Readiness(repository, lambda: nc.is_connected, server.health, telemetry.measures)
        self._readiness = readiness
        self._measure(repository, nc, writer, fetches, provisioner)
        async with self._metrics_server(), asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(work, name=name)
                for name, work in (
                    ("writer", writer.run()),
                    ("relay", relay.run()),
                    ("histories", histories.run()),
                    ("provision", provisioner.run()),
                    ("fetches", fetches.run()),
                    ("readiness", self._follow(readiness)),
                    ("compaction", self._compact(repository)),
                    ("purge", lifecycle.run(config.compaction_interval_s)),
                    ("outbox", self._look_at_outbox(repository)),
                )
            ]
            try:
                await replays.start()
                await self._start(fetches, server, readiness)
                with self._ready_file():
                    self.ready.set()
                    await self._stopping.wait()
            finally:
                await self._shut(fetches, server, writer, relay, nc)
                await _end(running)

    async def _start(self, fetches: FetchServer, server: GrpcServer, readiness: Readiness) -> None:
        try:
            await server.start()
        except OSError as error:
            raise ConfigError(str(error)) from error
        await fetches.start()
        await readiness.look()
        host = self._config.listen.rpartition(":")[0]
        self.grpc_address = f"{host}:{server.port}"
        log.info(
            "serving grpc=%s metrics=%s nats=%s pid=%d",
            self.grpc_address,
            self.metrics_address or OFF,
            without_passwords(self._config.nats),
            os.getpid(),
        )

    async def _shut(
        self, fetches: FetchServer, server: GrpcServer, writer: GroupWriter, relay: Relay, nc: Client
    ) -> None:
        """Intake first, then what is in flight, then the outbox; each phase has a bound."""
        log.info("stopping")
        bound_s = self._config.stop_timeout_s
        if self._readiness is not None:
            self._readiness.stop()
        if nc.is_connected:
            await _bounded("intake of fetches", fetches.stop(), bound_s)
        await _bounded("gRPC calls", server.stop(bound_s), bound_s + 1)
        await _bounded("writes", writer.drain(), bound_s)
        if nc.is_connected:
            await _bounded("fetches", fetches.drain(), bound_s)
            await _bounded("outbox", relay.flush(), bound_s)
        await _bounded("claims on the outbox", relay.withdraw(), bound_s)
        log.info("stopped")

    def _measure(
        self,
        repository: Repository,
        nc: Client,
        writer: GroupWriter,
        fetches: FetchServer,
        provisioner: Provisioner,
    ) -> None:
        """Says where the gauges are read."""
        measures = self._telemetry.measures
        measures.retries = lambda: repository.retries
        measures.pools = repository.pools
        measures.gauges = {
            "writes_waiting": lambda: writer.waiting,
            "write_bytes_waiting": lambda: writer.waiting_bytes,
            "fetches_waiting": lambda: fetches.waiting,
            "stores_not_provisioned": lambda: provisioner.failing,
            "connected:nats": lambda: nc.is_connected,
        }

    @asynccontextmanager
    async def _metrics_server(self) -> AsyncIterator[None]:
        """Serves the metrics from before the start until after the end, so that a slow stop can be watched."""
        if self._config.metrics_listen == OFF:
            yield
            return
        collector = TableCollector(SERVICE)
        collector.add(self._telemetry.measures.samples)
        try:
            server = MetricsServer(self._config.metrics_listen, process_registry(collector))
        except UnavailableError as error:
            raise ConfigError(str(error)) from error
        self.metrics_address = server.address
        try:
            yield
        finally:
            await asyncio.to_thread(server.close)

    async def _look_at_outbox(self, repository: Repository) -> None:
        """Keeps the depth and age of the outbox for whoever scrapes; while the database is away they stay, and age."""
        if self._config.metrics_listen == OFF:
            return
        while True:
            with contextlib.suppress(RingcastError):
                self._telemetry.measures.outbox = await repository.outbox_state()
            await asyncio.sleep(_OUTBOX_LOOK_S)

    async def _follow(self, readiness: Readiness) -> None:
        await self.ready.wait()
        await readiness.run()

    async def _compact(self, repository: Repository) -> None:
        """Removes what is past its retention, now and then."""
        config = self._config
        every_ms = int(config.compaction_interval_s * 1000)
        while True:
            try:
                await _forget_marks(repository, config.idempotency_retention_ms)
                done = await repository.compact(config.tombstone_retention_ms, config.history_retention_ms, every_ms)
            except RingcastError as error:
                log.warning("compaction was put off: %s", error)
            else:
                if done.tombstones or done.revisions:
                    log.info("compaction removed tombstones=%d revisions=%d", done.tombstones, done.revisions)
            await asyncio.sleep(config.compaction_interval_s)

    @asynccontextmanager
    async def _repository(self, deadline: float) -> AsyncIterator[Repository]:
        while True:
            repository = make_repository(
                self._config.database,
                lock_timeout_ms=self._config.lock_timeout_ms,
                write_connections=self._config.write_connections,
            )
            try:
                await repository.open()
                break
            except UnavailableError as error:
                await repository.close()
                if time.monotonic() + _RETRY_S > deadline:
                    raise ConfigError(f"{error} (tried for {self._config.start_timeout_s:g} s)") from error
                await self._unless_stopped(asyncio.sleep(_RETRY_S))
            except BaseException:
                await repository.close()
                raise
        try:
            yield repository
        finally:
            await repository.close()

    @asynccontextmanager
    async def _nats(self, deadline: float) -> AsyncIterator[Client]:
        try:
            login = self._config.nats_login.connect_options(self._config.nats)
        except InvalidInputError as error:
            raise ConfigError(f"nats: {error}") from error
        nc = BusClient()
        nc.on_protocol_error = self._on_protocol_error
        last: list[str] = []

        async def on_error(error: Exception) -> None:
            text = str(error) or type(error).__name__
            if last != [text]:  # it comes again with each attempt
                log.warning("nats: %s", text)
            last[:] = [text]

        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                await self._unless_stopped(
                    nc.connect(
                        servers=list(self._config.nats),
                        name="ringcast-config-service",
                        inbox_prefix=names.SERVICE_INBOX_PREFIX,
                        **login,
                        max_reconnect_attempts=-1,
                        reconnect_time_wait=0.5,  # type: ignore[arg-type]
                        connect_timeout=2,
                        error_cb=on_error,
                        disconnected_cb=self._on_disconnect,
                        reconnected_cb=self._on_reconnect,
                        closed_cb=self._on_closed,
                    )
                )
        except TimeoutError as error:
            reason = f": {last[0]}" if last else ""
            raise ConfigError(f"NATS at {without_passwords(self._config.nats)} can't be reached{reason}") from error
        except (nats.errors.Error, OSError, ValueError) as error:
            raise ConfigError(f"NATS at {without_passwords(self._config.nats)} can't be used: {error}") from error
        try:
            await self._unless_stopped(_check_jetstream(nc, without_passwords(self._config.nats), deadline))
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

    async def _on_disconnect(self) -> None:
        if self._readiness is not None:
            self._readiness.bus_changed()
        if self._relay is not None:
            self._relay.disconnected()

    async def _on_reconnect(self) -> None:
        if self._readiness is not None:
            self._readiness.bus_changed()
        if self._relay is not None and self._provisioner is not None:
            self._relay.reconnected()
            self._provisioner.look_again()  # the server may have come back without its disk

    def _on_protocol_error(self, text: str) -> None:
        if self._relay is not None:
            self._relay.protocol_error(text)

    async def _on_closed(self) -> None:
        """The client gave up (a broken rule of the protocol): without NATS there is nothing to do here."""
        if not self._stopping.is_set():
            log.critical("the NATS connection was closed for good")
            self._lost = True
            self._stopping.set()

    @contextlib.contextmanager
    def _ready_file(self) -> Iterator[None]:
        """Says where this instance listens, for as long as it serves; never a half-written file."""
        path = self._config.ready_file
        if path is None:
            yield
            return
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        facts: dict[str, object] = {"grpc": self.grpc_address, "pid": os.getpid()}
        if self.metrics_address:
            facts["metrics"] = self.metrics_address
        temporary.write_text(json.dumps(facts))
        temporary.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


async def _forget_marks(repository: Repository, older_than_ms: int) -> None:
    """Removes old idempotency keys, a bounded number in a transaction."""
    while await repository.forget_marks(older_than_ms, _FORGET_MARKS) == _FORGET_MARKS:
        pass


async def _check_jetstream(nc: Client, servers: str, deadline: float) -> None:
    """Waits for a cluster that elects its leader; a server without JetStream is refused at once."""
    while True:
        try:
            await nc.jetstream(timeout=max(0.1, min(2.0, deadline - time.monotonic()))).account_info()
            return
        except TimeoutError as error:
            if time.monotonic() + _RETRY_S > deadline:
                raise ConfigError(
                    f"NATS at {servers} does not answer for JetStream: its servers have no leader, or we may not ask"
                ) from error
            await asyncio.sleep(_RETRY_S)
        except nats.errors.Error as error:
            raise ConfigError(f"NATS at {servers} has no JetStream: start the server with it enabled") from error


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancels tasks until they have ended.

    Once is not enough: the NATS client uses ``asyncio.wait_for``, which before Python 3.12 loses a cancellation that
    comes in the same turn of the event loop as an answer.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)


async def _bounded(what: str, work: Awaitable[object], bound_s: float) -> None:
    """One phase of the shutdown: what hangs or fails must not keep the next from running."""
    try:
        async with asyncio.timeout(bound_s):
            await work
    except TimeoutError:
        log.warning("stopping: the %s did not end within %g s", what, bound_s)
    except (nats.errors.Error, RingcastError) as error:
        log.warning("stopping: the %s failed: %s", what, error)
