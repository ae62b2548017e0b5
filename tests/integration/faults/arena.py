"""The system that faults are done to: NATS, PostgreSQL, config services and workers, each a process of its own.

Every service and worker reaches each NATS server over a proxy of its own, and every service the database too, so that
the network of one process can be bad while that of the others is well. The proxies of the database are also the address
that leads to another server after a failover.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

import nats
from nats.aio.client import Client
from ringcast_client import ConfigServiceClient
from ringcast_core import row_partition
from ringcast_testkit import (
    PATIENCE_S,
    ConfigServiceProcess,
    History,
    NatsCluster,
    NatsServer,
    PostgresServer,
    ServerFailedError,
    SmallDisk,
    TcpProxy,
    WorkerProcess,
)
from ringcast_wire import DEFAULT_CALL_BOUND_MS, DEFAULT_LEASE_TTL_MS, Mode, Strategy, UnavailableError, names

from tests.integration.faults import policies
from tests.integration.faults.callout_users import CalloutUsers
from tests.integration.faults.mirror import Mirror
from tests.integration.faults.record import Revision
from tests.integration.faults.roles import LOAD, ROOT, ServiceRoles
from tests.integration.faults.users import Users

if TYPE_CHECKING:
    from tests.integration.faults.load import Load

DISK_BYTES = 64 << 20
BROKER_BYTES = 48 << 20
"""What one server may store, less than its disk has."""
_ROOM = (
    *("--events-max-bytes", "1MiB", "--dead-letters-max-bytes", "1MiB"),
    *("--members-max-bytes", "4MiB", "--leases-max-bytes", "4MiB"),
)
"""What the services ask of a broker for a store; the events fill their part of it."""
STORE = "gateway"
WITNESSES = "witnesses"
PYTHONPATH = os.pathsep.join([str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
"""For a process that runs a module of these tests."""


@dataclass(frozen=True)
class Shape:
    """How large the system is, and what of it can be broken."""

    workers: int = 3
    services: int = 2
    partitions: int = 32
    keys: tuple[str, ...] = ("routes",)
    full: bool = False
    """Mode FULL: every worker holds everything."""
    cluster: bool = False
    dispatch: bool = False
    """With an agent and the consumers of a group; see :mod:`tests.integration.faults.dispatch_arena`."""
    small_disk: bool = False
    own_postgres: bool = True
    sqlite: bool = False
    """The database is a file, for the one service that there then is."""
    service_options: tuple[str, ...] = ()
    hold: float = 1.0
    """What the times of faults that last are multiplied by."""
    token: bool = False
    """Everybody logs in to NATS with one token, in place of the workers with passwords."""
    roles: bool = False
    """The services have TLS, ask for tokens, and roles say who may do what; the load is a writer."""
    callout: bool = False
    """Workers have a token, and NATS asks the services what they may do."""
    policies: bool = False
    """The store has limits, which the load meets all the time."""
    releases: bool = False
    """The load stages releases too, publishes and undoes them."""
    slow_workers: tuple[str, ...] = ()
    """Workers whose handler takes its time, and fails now and then."""
    slow_s: float = 0.003
    """How long it takes, as a mean."""
    broken: str = ""
    """What the workers lack, of :mod:`tests.integration.faults.broken_worker`."""
    strategy: Strategy = Strategy.JUMP
    lease_ttl_ms: int = DEFAULT_LEASE_TTL_MS
    call_bound_ms: int = DEFAULT_CALL_BOUND_MS
    """Both of the strategy sticky alone."""

    @property
    def exclusive(self) -> bool:
        """Whether each partition has one owner at every moment."""
        return self.strategy is Strategy.STICKY

    @property
    def users(self) -> Users:
        """Who may log in; nobody has to where an agent keeps the leases of the workers."""
        workers = [] if self.dispatch else [f"worker{number}" for number in range(self.workers)]
        return Users(STORE, self.keys, workers, self.partitions, token=self.token)


class Arena:
    """The running system. ``async with`` starts it all, and leaves nothing behind."""

    def __init__(self, directory: Path, shape: Shape, *, database: str = "") -> None:
        self.shape = shape
        self.directory = directory
        self.history = History()
        self.mirror = Mirror(shape.keys, shape.partitions, owners_each=shape.workers if shape.full else 1)
        self.history.listen(self.mirror.take)
        self.servers: dict[str, NatsServer] = {}
        self.users = shape.users
        if shape.callout:
            self.users = CalloutUsers(directory / "callout", STORE, shape.keys, shape.partitions)
        self.disk: SmallDisk | None = None
        self.postgres: PostgresServer | None = None
        self.database = database
        """Its URL, past any proxy."""
        self.former: list[list[Revision]] = []
        """Records that the database has gone back from, oldest first: all that each of them ever had."""
        self.services: dict[str, ConfigServiceProcess] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.links: dict[str, list[TcpProxy]] = {}
        """To NATS, by process."""
        self.database_links: dict[str, TcpProxy] = {}
        """To the database, by service."""
        self.load: Load | None = None
        self.met: Counter[str] = Counter()
        """What faults have seen of what they are made for."""
        self.clients: dict[str, ConfigServiceClient] = {}
        self.roles = ServiceRoles(directory / "roles", STORE) if shape.roles else None
        self.down: set[str] = set()
        """Processes that a fault has ended and will bring back itself."""
        self.stack = AsyncExitStack()
        """What ends with the system."""

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (*self.workers.values(), *self.services.values()):
            server.__exit__(None, None, None)  # at once: nobody waits for orderly ends here
        await self.stack.aclose()

    @property
    def url(self) -> str:
        """The addresses of all NATS servers, past any proxy."""
        return ",".join(self.users.address(server.port) for server in self.servers.values())

    @asynccontextmanager
    async def bus(self, worker_id: str = "") -> AsyncIterator[Client]:
        """A connection of our own, past any proxy; with the credential of a worker, or one that may do everything."""
        login = self.users.login(worker_id)
        if login:
            login["inbox_prefix"] = names.inbox_prefix(worker_id)
        client = await nats.connect(
            self.url.split(","), connect_timeout=5, max_reconnect_attempts=3, error_cb=_expected, **login
        )
        try:
            yield client
        finally:
            await client.close()

    async def reload_users(self) -> None:
        """Has every server take the users as they are now; one that is gone takes them when it starts."""
        for server in self.servers.values():
            with contextlib.suppress(ServerFailedError):
                await off(partial(server.change, **self.users.settings()))

    def probe_rows(self) -> Iterable[tuple[str, int, str]]:
        """A row of each partition, for finding out whether it is served: key, partition, row id."""
        found: dict[int, str] = {}
        number = 0
        while len(found) < self.shape.partitions:
            row_id = f"probe-{number}"
            found.setdefault(row_partition(row_id, self.shape.partitions), row_id)
            number += 1
        return [(key, partition, row_id) for key in self.shape.keys for partition, row_id in found.items()]

    def add_worker(self, worker_id: str) -> WorkerProcess:
        """A worker with links of its own, not started."""
        slow = worker_id in self.shape.slow_workers
        worker = self.workers[worker_id] = WorkerProcess(
            worker_id,
            servers=self._linked(worker_id),
            store=STORE,
            keys=self.shape.keys,
            history=self.history,
            handler_delay_s=self.shape.slow_s if slow else 0.0,
            handler_fails=0.02 if slow else 0.0,
            **_worker_command(self.shape, self.directory),
            **self.users.login(worker_id),
            **self.users.worker_settings(),
            **self._worker_settings(),
        )
        return worker

    def _worker_settings(self) -> dict[str, Any]:
        """Further arguments of every worker."""
        return {"max_delete_share": 1.0}  # an empty database is one of the faults

    async def revive(self) -> list[str]:
        """Starts every process that has ended by itself, as a supervisor does; returns what each of them said.

        A worker that could not even start, since a fault was under way, has done what it should.
        """
        said = []
        for name, server in {**self.workers, **self.services}.items():
            if server.process.returncode is None or name in self.down:
                continue
            if not isinstance(server, WorkerProcess) or server.joined:
                said.append(server.process.describe(f"ended by itself with {server.process.returncode}"))
            await off(server.restart)
        return said

    async def ready(self, worker: WorkerProcess) -> None:
        """Waits until a worker that was started is ready; one that refused to start is started again."""
        async with asyncio.timeout(90):
            while True:
                try:
                    await off(worker.wait_ready)
                    return
                except ServerFailedError:
                    if worker.joined or worker.process.returncode is None:
                        raise
                    await off(worker.restart)

    async def create_store(self) -> None:
        """Creates the store of the load, in a database that has none; with roles and policies, if there are any."""
        mode, shape = Mode.FULL if self.shape.full else Mode.PARTITIONED, self.shape
        times = {"lease_ttl_ms": shape.lease_ttl_ms, "call_bound_ms": shape.call_bound_ms} if shape.exclusive else {}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    async with self._creator() as client:
                        await client.create_store(
                            STORE, partition_count=shape.partitions, mode=mode, strategy=shape.strategy, **times
                        )
                        if shape.policies:
                            await client.set_store_policy(STORE, policies.policy(len(shape.keys)))
                    return
                except UnavailableError:
                    await asyncio.sleep(0.05)  # it has just come back, or a fault of another group is done to it

    @asynccontextmanager
    async def _creator(self) -> AsyncIterator[ConfigServiceClient]:
        """A client that may create the store."""
        if self.roles is None:
            yield self.clients["service0"]
            return
        address = self.services["service0"].address
        await self.roles.grant(address)
        async with self.roles.client(address, ROOT) as root:
            yield root

    def went_back(self, former: list[Revision], left: list[Revision]) -> None:
        """Notes that the database had one record, and has another now. Nothing may be under way."""
        self.former.append(former)
        if self.load is not None:
            self.load.ledger.take_back(former, left)

    def wipe(self) -> None:
        """Empties the disk of the NATS server, which must not run."""
        if self.disk is not None:
            self.disk.empty()
        else:
            shutil.rmtree(self.directory / "nats" / "jetstream")

    def remove_worker(self, worker_id: str) -> None:
        """Forgets a worker that was ended for good."""
        del self.workers[worker_id]
        for link in self.links.pop(worker_id):
            link.close()

    # ---- starting

    async def _start(self) -> None:
        await off(self._start_servers)
        for number in range(self.shape.services):
            await self._start_service(f"service{number}")
        await self.create_store()
        for number in range(self.shape.workers):
            self.add_worker(f"worker{number}")
        await asyncio.gather(*(off(worker.start) for worker in self.workers.values()))
        await asyncio.gather(*(off(worker.wait_ready) for worker in self.workers.values()))
        await self.mirror.wait(self.mirror.owned_once, 30, "the partitions were not shared out")

    def _start_servers(self) -> None:
        shape, users, enter = self.shape, self.users.settings(), self.stack.enter_context
        if shape.cluster:
            self.servers = enter(NatsCluster(self.directory / "nats", login=self.users.anyone(), **users)).servers
        elif shape.small_disk:
            self.disk = enter(SmallDisk(self.directory / "disk", DISK_BYTES))
            store = {"store_dir": str(self.disk.path / "jetstream"), "max_file_store": BROKER_BYTES}
            server = NatsServer(self.directory / "nats", prefix=self.disk.prefix, jetstream=store, **users)
            self.servers = {"nats": enter(server)}
        else:
            store = {"store_dir": str(self.directory / "nats" / "jetstream"), "max_file_store": BROKER_BYTES}
            self.servers = {"nats": enter(NatsServer(self.directory / "nats", jetstream=store, **users))}
        if shape.sqlite:
            self.database = f"sqlite:{self.directory / 'ringcast.db'}"
        elif shape.own_postgres:
            self.postgres = enter(PostgresServer())
            self.database = self.postgres.create_database()

    async def _start_service(self, name: str) -> None:
        replicas = ("--nats-replicas", "3") if self.shape.cluster else ()
        secured = self.roles.options if self.roles is not None else ()
        options = (*_ROOM, *self.shape.service_options, *replicas, *secured, *self.users.service_options)
        service = ConfigServiceProcess(
            self.directory / name, nats_url=self._linked(name), database=self._database_of(name), options=options
        )
        self.services[name] = service
        await off(service.start)
        login = self.roles.login(LOAD) if self.roles is not None else None
        client = ConfigServiceClient(service.address, login=login, timeout_s=5.0)
        self.clients[name] = await self.stack.enter_async_context(client)

    async def client_to_judge(self) -> ConfigServiceClient:
        """One that waits as long as a test does; those of the load give up early, so that it goes on."""
        service = next(iter(self.services.values()))
        login = self.roles.login(LOAD) if self.roles is not None else None
        client = ConfigServiceClient(service.address, login=login, timeout_s=PATIENCE_S)
        return await self.stack.enter_async_context(client)

    def _linked(self, name: str) -> str:
        """New proxies for one process; the addresses that it connects to."""
        if name not in self.links:
            proxies = [self.stack.enter_context(TcpProxy(server.port)) for server in self.servers.values()]
            self.links[name] = proxies
        return ",".join(self.users.address(proxy.port, name) for proxy in self.links[name])

    def _database_of(self, name: str) -> str:
        """The address of the database for one service: that of a new proxy, but for a file."""
        if self.shape.sqlite:
            return self.database
        socket, database = located(self.database)
        link = self.database_links[name] = self.stack.enter_context(TcpProxy(socket))
        return f"postgresql://postgres@127.0.0.1:{link.port}/{database}?sslmode=disable"


def _worker_command(shape: Shape, directory: Path) -> dict[str, Any]:
    """What a worker is run with, where it is not the usual command."""
    module = "tests.integration.faults"
    words: tuple[str, ...]
    if shape.exclusive:
        words = ("-m", f"{module}.witness_worker", str(directory / WITNESSES), shape.broken or "-")
    elif shape.broken:
        words = ("-m", f"{module}.broken_worker", shape.broken)
    else:
        return {}
    return {"words": words, "prefix": ("env", f"PYTHONPATH={PYTHONPATH}")}


def located(url: str) -> tuple[Path, str]:
    """The socket and the name of a database that is reached over a Unix socket."""
    parts = urlsplit(url)
    return Path(parse_qs(parts.query)["host"][0]) / ".s.PGSQL.5432", parts.path.removeprefix("/")


async def _expected(error: Exception) -> None:
    """Servers that are away are what happens here."""


async def off(work: Any, *args: Any) -> Any:
    """Runs what blocks outside the event loop."""
    return await asyncio.to_thread(work, *args)
