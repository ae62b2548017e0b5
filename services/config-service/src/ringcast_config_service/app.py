"""One instance: everything is started, watched and stopped here, under one task group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from nats.aio.client import Client
from ringcast_meta import MetadataStore
from ringcast_meta.cluster import Drain, MemberKind, MemberReport, Presence
from ringcast_service import ConfigError, Lifetime, bounded, end_tasks, ready_file, serving_metrics
from ringcast_wire import EventLog, RingcastError, UnavailableError, names, without_passwords
from ringcast_wire.metrics import SERVICE
from ringcast_wire.permissions import CALLOUT_INBOX_PREFIX
from ringcast_wire.prometheus import OFF, TableCollector, process_registry
from ringcast_wire.tracing import make_tracing

from ringcast_config_service.config import Config
from ringcast_config_service.core import Core
from ringcast_config_service.draining import DrainableInstance, audit_written
from ringcast_config_service.grpc.dead_letter_calls import DeadLetterCalls
from ringcast_config_service.grpc.handshakes import Handshakes
from ringcast_config_service.grpc.status_calls import StatusCalls
from ringcast_config_service.grpc.transport import GrpcServer, Services
from ringcast_config_service.logins import Logins
from ringcast_config_service.member import InstanceLoad, new_instance_id
from ringcast_config_service.nats.bus_client import BusClient
from ringcast_config_service.nats.dead_letters import DeadLetterBox
from ringcast_config_service.nats.fetch_server import FetchServer
from ringcast_config_service.nats.replays import Replays
from ringcast_config_service.readiness import READS, WRITES, Readiness
from ringcast_config_service.repository import OutboxRepository, Repository, make_repository
from ringcast_config_service.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

log = EventLog(logging.getLogger(__name__))


_OUTBOX_MEASURED_EVERY_S = 2.0
_RETRY_S = 0.2
_JETSTREAM_OFF: Final = (10_039, 10_076)
"""What NATS says (``err_code``) where JetStream is not enabled for this account, or on this server."""


class App(Lifetime):
    """One instance of the config service. :meth:`run` serves until :meth:`stop` is called.

    Its spans go to ``tracer_provider``, by default to the one that the process has configured, if any. ``handshakes``
    tells of those that fail; without it they are not counted.
    """

    def __init__(
        self, config: Config, tracer_provider: TracerProvider | None = None, *, handshakes: Handshakes | None = None
    ) -> None:
        super().__init__()
        self._config = config
        self._handshakes = handshakes
        self._telemetry = Telemetry(make_tracing("ringcast.config_service", tracer_provider))
        self.core: Core | None = None
        self._readiness: Readiness | None = None
        self.grpc_address = ""
        self.metrics_address = ""

    async def _run(self) -> None:
        deadline = time.monotonic() + self._config.start_timeout_s
        async with self._repository(deadline) as repository, self._nats(deadline) as nc:
            await self._serve(repository, nc, deadline)

    async def _serve(self, repository: Repository, nc: Client, deadline: float) -> None:
        config, telemetry = self._config, self._telemetry
        js = nc.jetstream()
        instance_id = new_instance_id()
        open_cluster = self._open_cluster if config.cluster.on else None
        self.core = core = Core(config, repository, nc, js, telemetry, instance_id, open_cluster)
        box = DeadLetterBox(nc, js)
        replays = Replays(nc, repository.reader, box, telemetry)
        dead_letters = DeadLetterCalls(repository.stores, box, replays, telemetry, core.audit)
        status = StatusCalls(
            instance_id, core.provisioner, core.account, telemetry.measures, replicas=config.nats_replicas
        )
        logins = Logins.of(config.security, config.oidc)
        services = Services(
            handlers=core.handlers,
            lifecycle=core.lifecycle,
            policies=core.policies,
            schemas=core.schemas,
            releases=core.releases,
            proofs=core.proofs,
            access=core.access,
            dead_letters=dead_letters,
            status=status,
            writer=core.writer,
            telemetry=telemetry,
            audit=core.audit,
        )
        server = GrpcServer(
            services,
            config.listen,
            config.security,
            logins,
            change_stream_s=config.change_stream_s,
            list_snapshot_s=config.list_snapshot_s,
            connections=config.connections,
        )
        readiness = Readiness(repository, lambda: nc.is_connected, server.health, telemetry.measures)
        self._readiness = readiness
        self._measure(repository, nc, core, logins)
        await core.access.load()
        if core.access.unrestricted and (logins.needed or config.security.client_ca_file):
            log.warning("roles.none")
        drain = Drain(DrainableInstance(core, server, readiness, config))
        presence = self._presence(instance_id, core, server, drain)
        async with self._metrics_server(), self._callout(core, deadline) as callout, asyncio.TaskGroup() as tasks:
            work = (
                callout
                | core.work()
                | {
                    "readiness": self._after_ready(readiness.run()),
                    "outbox": self._measure_outbox(repository.events),
                    "roles": core.access.run(),
                }
            )
            if logins.verifier is not None:
                await logins.verifier.start()
                work["issuer_keys"] = logins.verifier.run()
            if presence is not None:
                work |= {"presence": presence.run(self.ready), "drain": self._after_ready(drain.run())}
            running = [tasks.create_task(each, name=name) for name, each in work.items()]
            self._count_handshakes()
            try:
                await replays.start()
                await self._start(core.fetches, server, readiness)
                with ready_file(self._config.ready_file, self._addresses()):
                    self.ready.set()
                    await self._stopping.wait()
            finally:
                await self._shut(core, server, nc, presence)
                await end_tasks(running)

    async def _start(self, fetches: FetchServer, server: GrpcServer, readiness: Readiness) -> None:
        try:
            await server.start()
        except OSError as error:
            raise ConfigError(str(error)) from error
        await fetches.start()
        await readiness.check()
        host = self._config.listen.rpartition(":")[0]
        self.grpc_address = f"{host}:{server.port}"
        log.info(
            "service.serving",
            grpc=self.grpc_address,
            metrics=self.metrics_address or OFF,
            nats=without_passwords(self._config.nats),
            pid=os.getpid(),
        )

    async def _shut(self, core: Core, server: GrpcServer, nc: Client, presence: Presence | None) -> None:
        """The registration and the intake first, then what is in flight, then the outbox; each phase has a bound."""
        log.info("service.stopping")
        server.drain()  # who still calls is told that another instance may answer
        bound_s = self._config.stop_timeout_s
        if self._readiness is not None:
            self._readiness.stop()
        if presence is not None:
            await bounded("registration", presence.stop(), bound_s)
        if nc.is_connected:
            await bounded("intake of fetches", core.fetches.stop(), bound_s)
        await bounded("lead of maintenance", core.maintenance.withdraw(), bound_s)
        await bounded("gRPC calls", server.stop(bound_s), bound_s + 1)
        await bounded("proofs", core.proofs.stop(), bound_s)
        await bounded("writes", core.writer.drain(), bound_s)
        await bounded("audit log", audit_written(core.audit), bound_s)
        if nc.is_connected:
            await bounded("fetches", core.fetches.drain(), bound_s)
            await bounded("outbox", core.relay.flush(), bound_s)
        await bounded("claims on the outbox", core.relay.withdraw(), bound_s)
        log.info("service.stopped")

    def _count_handshakes(self) -> None:
        """Counts those that fail from now on; they are told on a thread of their own."""
        handshakes, loop, refusals = self._handshakes, asyncio.get_running_loop(), self._telemetry.measures.refusals
        if handshakes is None or not self._config.security.uses_tls:
            return
        if handshakes.hidden_by:
            log.warning("handshakes.not_counted", hidden_by=handshakes.hidden_by)

        def failed(reason: str, error: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(refusals.handshake, reason, error)

        handshakes.on_failed = failed

    def _open_cluster(self) -> AbstractAsyncContextManager[MetadataStore]:
        """Opens what processes register in; only where :attr:`ClusterSettings.on`."""
        config = self._config
        return config.cluster.open(
            config.nats_login, inbox_prefix=names.SERVICE_INBOX_PREFIX, replicas=config.nats_replicas
        )

    def _presence(self, instance_id: str, core: Core, server: GrpcServer, drain: Drain) -> Presence | None:
        """What says in the cluster that this instance is there, if that is wanted."""
        config = self._config
        if not config.cluster.on:
            return None
        report = MemberReport(
            MemberKind.SERVICE,
            instance_id,
            version("ringcast-config-service"),
            addresses=self._registered_addresses,
            state=lambda: drain.state,
            leads=lambda: core.maintenance.leads,
            load=InstanceLoad(self._telemetry.measures, lambda: server.open_calls),
        )
        presence = Presence(
            self._open_cluster,
            MemberKind.SERVICE,
            instance_id,
            report=report,
            on_wish=drain.want,
            one_life=True,
        )
        drain.changed = core.maintenance.changed = presence.changed
        return presence

    def _measure(self, repository: Repository, nc: Client, core: Core, logins: Logins) -> None:
        """Says where the gauges are read."""
        measures = self._telemetry.measures
        measures.unusable_files |= logins.unusable_files
        measures.retries = lambda: repository.retries
        measures.pools = repository.pools
        measures.streams, measures.account = core.provisioner.states, lambda: core.account.state
        measures.gauges = {
            "writes_waiting": lambda: core.writer.waiting,
            "write_bytes_waiting": lambda: core.writer.waiting_bytes,
            "fetches_waiting": lambda: core.fetches.waiting,
            "audit_behind_seconds": lambda: core.audit.behind_s,
            "stores_not_provisioned": lambda: core.provisioner.failing,
            "jetstream_age_seconds": lambda: core.account.age_s,
            "maintenance_leader": lambda: core.maintenance.leads,
            "issuer_keys_age_seconds": lambda: 0.0 if logins.verifier is None else logins.verifier.keys_age_s,
            "connected:nats": lambda: nc.is_connected,
            "login_refused": lambda: self.login_refused,
        }

    @asynccontextmanager
    async def _metrics_server(self) -> AsyncIterator[None]:
        collector = TableCollector(SERVICE)
        collector.add(self._telemetry.measures.samples)
        serving, registry = self._telemetry.measures.serving, process_registry(collector)

        def ready() -> bool:
            return serving[READS] and serving[WRITES]  # as the health of the whole service

        async with serving_metrics(self._config.metrics_listen, registry, ready) as self.metrics_address:
            yield

    async def _measure_outbox(self, events: OutboxRepository) -> None:
        """Keeps the depth and age of the outbox for scrapes and reports; without the database they stay, and age."""
        if self._config.metrics_listen == OFF and not self._config.cluster.on:
            return
        while True:
            with contextlib.suppress(RingcastError):
                self._telemetry.measures.outbox = await events.outbox_state()
            await asyncio.sleep(_OUTBOX_MEASURED_EVERY_S)

    async def _after_ready(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await self.ready.wait()
        except BaseException:
            work.close()
            raise
        await work

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
        client = BusClient()
        client.on_protocol_error = self._on_protocol_error
        async with self._nats_connection(
            client,
            self._config.nats,
            self._config.nats_login,
            name="ringcast-config-service",
            inbox_prefix=names.SERVICE_INBOX_PREFIX,
            timeout_s=max(0.1, deadline - time.monotonic()),
            on_lost=self._on_disconnect,
            on_back=self._on_reconnect,
        ) as nc:
            await self._unless_stopped(_check_jetstream(nc, without_passwords(self._config.nats), deadline))
            yield nc

    @asynccontextmanager
    async def _callout(self, core: Core, deadline: float) -> AsyncIterator[dict[str, Coroutine[Any, Any, None]]]:
        """What is to run for the auth callout, over a connection of its own; nothing where it is off."""
        settings = self._config.callout
        if not settings.on:
            yield {}
            return
        from ringcast_config_service.callout.parts import callout_login, callout_work  # its cryptography takes time

        async with self._nats_connection(
            BusClient(),
            self._config.nats,
            callout_login(settings, self._config.nats_login),
            name="ringcast-callout",
            inbox_prefix=CALLOUT_INBOX_PREFIX,
            timeout_s=max(0.1, deadline - time.monotonic()),
        ) as nc:
            self._telemetry.measures.gauges["connected:callout"] = lambda: nc.is_connected
            yield await callout_work(nc, settings, core.access, self._telemetry.measures)

    async def _on_disconnect(self) -> None:
        if self._readiness is not None:
            self._readiness.bus_changed()
        if self.core is not None:
            self.core.disconnected()

    async def _on_reconnect(self) -> None:
        if self._readiness is not None:
            self._readiness.bus_changed()
        if self.core is not None:
            self.core.reconnected()

    def _on_protocol_error(self, text: str) -> None:
        if self.core is not None:
            self.core.relay.protocol_error(text)

    def _addresses(self) -> dict[str, str]:
        found = {"grpc": self.grpc_address}
        return found | {"metrics": self.metrics_address} if self.metrics_address else found

    def _registered_addresses(self) -> dict[str, str]:
        uses_tls = self._config.security.uses_tls
        return self._addresses() | {"grpc": self._config.cluster.reached_at(self.grpc_address, uses_tls=uses_tls)}


async def _check_jetstream(nc: Client, servers: str, deadline: float) -> None:
    """Waits for a cluster that elects its leader or whose servers still start; what won't change is refused at once."""
    while True:
        try:
            await nc.jetstream(timeout=max(0.1, min(2.0, deadline - time.monotonic()))).account_info()
            return
        except TimeoutError as error:
            cause: Exception = error
            reason = "does not answer for JetStream: there is no leader, or no permission"
        except nats.errors.Error as error:
            cause = error
            reason = "has no JetStream: start the server with it enabled"
        if time.monotonic() + _RETRY_S > deadline or getattr(cause, "err_code", None) in _JETSTREAM_OFF:
            raise ConfigError(f"NATS at {servers} {reason}") from cause
        await asyncio.sleep(_RETRY_S)
