"""The deployment that the drills are held on, and the two Prometheus servers that watch it.

NATS, PostgreSQL, two config services, an agent, and workers of three stores: each a process of its own, each behind TCP
proxies of its own, under a gentle load of writes. One Prometheus runs the shipped configuration and rules as they are;
the other has them with time that passes faster (:mod:`~tests.integration.drills.rules`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import nats
import yaml
from nats.aio.client import Client
from ringcast_client import ConfigServiceClient
from ringcast_testkit import (
    PATIENCE_S,
    AgentProcess,
    ConfigServiceProcess,
    History,
    NatsCluster,
    NatsServer,
    PostgresServer,
    ReservedPort,
    SmallDisk,
    TcpProxy,
    WorkerProcess,
    until,
)
from ringcast_wire import RingcastError, Strategy, UnavailableError

from tests.integration.drills.application import HOLD, STALL
from tests.integration.drills.logins import Logins
from tests.integration.drills.rules import CONFIGURATION, SHIPPED, faster, rule_files, write_faster
from tests.integration.faults.arena import BROKER_BYTES, DISK_BYTES, PYTHONPATH, located, off
from tests.integration.prometheus_server import PrometheusServer

GATEWAY: Final = "gateway"
"""Three workers share its 32 partitions."""
JOBS: Final = "jobs"
"""Two workers with exclusive ownership."""
SPARE: Final = "spare"
"""Three workers, 930 partitions; what leaves marks is done here."""
KEY: Final = "list"
PARTITIONS: Final = {GATEWAY: 32, JOBS: 16, SPARE: 930}
WORKERS: Final = {
    **dict.fromkeys(("gateway-0", "gateway-1", "gateway-2"), GATEWAY),
    **dict.fromkeys(("jobs-0", "jobs-1"), JOBS),
    **dict.fromkeys(("spare-0", "spare-1", "spare-2"), SPARE),
}
SERVICES: Final = ("service-0", "service-1")
AGENT: Final = "agent-0"
LOOKBACK: Final = "5m"
"""How long Prometheus takes a sample for the present one, by its default: a duration as those of the rules."""
_JOBS: Final = ("ringcast-config-service", "ringcast-worker", "ringcast-agent")
_SIZES: Final = (
    *("--events-max-bytes", "4MiB", "--dead-letters-max-bytes", "1MiB", "--groups-max-bytes", "1MiB"),
    *("--members-max-bytes", "2MiB", "--leases-max-bytes", "2MiB"),
)
_AGENT: Final = ("--window", "10", "--linger", "1", "--max-tries", "2", "--retry-first", "0.1")
_LOAD_ROWS: Final = 64
_LOAD_PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class Alert:
    """An alert that fires: the name of its rule, and the labels of each instance."""

    name: str
    instances: tuple[dict[str, str], ...]


class Shape(Enum):
    """How large a deployment is."""

    SMALL = "one server of NATS, one service, the workers of one store"
    SMALL_DISK = "one server of NATS on a small disk, one service, the workers of one store"
    WHOLE = "one server of NATS, two services, the workers of three stores"
    CLUSTER = "three servers of NATS, two services, the workers of one store"

    @property
    def is_small(self) -> bool:
        """Whether one service is enough, and leases are short."""
        return self in (Shape.SMALL, Shape.SMALL_DISK)


class Site:
    """The running deployment. ``async with`` starts it all, and leaves nothing behind.

    ``factor``: how much faster time passes in the copy of the rules.
    """

    def __init__(self, directory: Path, shape: Shape, *, factor: int) -> None:
        self.directory = directory
        self.shape = shape
        self.factor = factor
        self.history = History()
        self.workers: dict[str, WorkerProcess] = {}
        self.services: dict[str, ConfigServiceProcess] = {}
        self.clients: dict[str, ConfigServiceClient] = {}
        self.links: dict[str, list[TcpProxy]] = {}
        """To NATS, by process."""
        self.database_links: dict[str, TcpProxy] = {}
        self.disk: SmallDisk | None = None
        """That of NATS, with the shape that has a small one."""
        self.stack = AsyncExitStack()
        wanted = {name: store for name, store in WORKERS.items() if shape is Shape.WHOLE or store == GATEWAY}
        self._wanted = wanted
        self.stores = tuple(dict.fromkeys(wanted.values()))
        self.logins = Logins(
            {name: (store, KEY) for name, store in wanted.items()}, (*SERVICES, AGENT), max(PARTITIONS.values())
        )
        self._targets: dict[str, list[str]] = {job: [] for job in _JOBS}
        self._counter = itertools.count()

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
        for worker in self.workers.values():
            worker.__exit__(None, None, None)  # at once: nobody waits for orderly ends here
        await self.stack.aclose()

    # ---- for drills

    @property
    def url(self) -> str:
        """The addresses of all servers of NATS, past any proxy."""
        return ",".join(server.url for server in self.servers.values())

    @property
    def socket(self) -> str:
        """Where workers register with the agent."""
        return str(self.directory / "lease.sock")

    @property
    def client(self) -> ConfigServiceClient:
        """A client of the first service."""
        return self.clients[SERVICES[0]]

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Client]:
        """A connection of an operator, past any proxy."""
        urls = [server.url for server in self.servers.values()]
        client = await nats.connect(urls, connect_timeout=5, max_reconnect_attempts=3, error_cb=_expected)
        try:
            yield client
        finally:
            await client.close()

    async def reload_logins(self) -> None:
        """Has every server of NATS take the logins as they are now."""
        for server in self.servers.values():
            await off(partial(server.change, **self.logins.settings()))

    async def set_limits(self, **limits: int) -> None:
        """What the account may have at JetStream; what is not named has no limit."""
        self.logins.limits = limits
        await self.reload_logins()

    @asynccontextmanager
    async def further(self, service: ConfigServiceProcess) -> AsyncIterator[None]:
        """Inside, a further service runs, and is scraped."""
        address = _address(service.metrics_url)
        await off(service.start)
        try:
            self.scrape(_JOBS[0], address)
            yield
        finally:
            self.scrape(_JOBS[0], address, no_more=True)
            await off(service.terminate)

    def linked_database(self, name: str) -> str:
        """A new proxy to the database for one service; the address that it connects to."""
        socket, database = located(self.database)
        link = self.database_links[name] = self.stack.enter_context(TcpProxy(socket))
        return f"postgresql://postgres@127.0.0.1:{link.port}/{database}?sslmode=disable"

    @asynccontextmanager
    async def denied(self, subjects: dict[str, tuple[str, ...]]) -> AsyncIterator[None]:
        """Inside, these users may not publish to these subjects."""
        self.logins.denied |= {user: list(each) for user, each in subjects.items()}
        await self.reload_logins()
        try:
            yield
        finally:
            for user in subjects:
                del self.logins.denied[user]
            await self.reload_logins()

    @asynccontextmanager
    async def file(self, name: str) -> AsyncIterator[None]:
        """Inside, applications wait: see :mod:`tests.integration.drills.application`."""
        assert name in (HOLD, STALL)
        path = self.directory / name
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    @asynccontextmanager
    async def repeating(self, work: Callable[[], Awaitable[object]], pause_s: float = 0.1) -> AsyncIterator[None]:
        """Inside, the work is done again and again; that it fails now and then is what happens here."""

        async def repeat() -> None:
            while True:
                with contextlib.suppress(RingcastError, TimeoutError, OSError, nats.errors.Error):
                    await work()
                await asyncio.sleep(pause_s)

        task = asyncio.create_task(repeat())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def put(self, store: str, value: str, row_id: str = "", client: ConfigServiceClient | None = None) -> str:
        """Writes a row, a new one unless it is named; returns its id."""
        row_id = row_id or f"row-{next(self._counter)}"
        await (client or self.client).put(store, KEY, row_id, value)
        return row_id

    def of_store(self, store: str) -> list[WorkerProcess]:
        """The workers of a store."""
        return [worker for name, worker in self.workers.items() if WORKERS[name] == store]

    async def ended(self, worker: WorkerProcess) -> None:
        """Has a worker scraped no more, and ends it in order, as an operator who takes it away."""
        self.forgotten(worker)
        # Prometheus takes note of other targets every 5 s, and time passes faster in its rules.
        up = f'up{{instance="{self._listen[worker.worker_id]}"}}'
        await until(lambda: self._is_empty(up))
        await off(worker.terminate)

    async def _is_empty(self, question: str) -> bool:
        return not await off(self.prometheus.ask, question)

    def forgotten(self, worker: WorkerProcess) -> None:
        """Has a worker scraped no more."""
        self.scrape(_JOBS[1], self._listen[worker.worker_id], no_more=True)

    async def started(self, worker: WorkerProcess) -> None:
        """Starts a worker again, waits until it is ready, and has it scraped from then on."""
        await off(worker.start)
        await off(worker.wait_ready, PATIENCE_S)
        self.scraped_again(worker)

    def scraped_again(self, worker: WorkerProcess) -> None:
        """Has a worker scraped that was not."""
        self.scrape(_JOBS[1], self._listen[worker.worker_id])

    def scrape(self, job: str, address: str, *, no_more: bool = False) -> None:
        """Adds a target of both Prometheus servers, or takes it away."""
        targets = self._targets[job]
        if no_more:
            targets.remove(address)
        elif address not in targets:
            targets.append(address)
        path = self.directory / "targets" / f"{job}.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps([{"targets": targets}]))
        fresh.rename(path)

    def worker_settings(self, worker_id: str) -> dict[str, Any]:
        """What every worker is started with."""
        listen = self._listen.setdefault(worker_id, self._reserved().address)
        login = self.logins.login(worker_id) if worker_id in self.logins.passwords else {}
        policy = {"poison_policy": "block"} if WORKERS.get(worker_id) == SPARE else {}
        times = {"stabilisation_s": 0.0, "update_tries": 2}
        if self.shape.is_small:
            times["lease_refresh_s"] = 1.0  # more than three refreshes are to fail within 15 s
        return {"metrics_listen": listen, **times, **policy, **login}

    def linked(self, name: str) -> str:
        """New proxies to NATS for one process; the addresses that it connects to."""
        proxies = [self.stack.enter_context(TcpProxy(server.port)) for server in self.servers.values()]
        self.links[name] = proxies
        return ",".join(f"nats://127.0.0.1:{proxy.port}" for proxy in proxies)

    async def number(self, question: str) -> int:
        """What the Prometheus server says in which time passes faster: one number."""
        (answer,) = await off(self.prometheus.ask, question)
        return int(float(answer))

    async def alerts(self) -> list[Alert]:
        """What fires by the rules in which time passes faster."""
        found: list[Alert] = await off(_firing, self.prometheus)
        return found

    async def shipped_alerts(self) -> list[Alert]:
        """What fires by the shipped rules as they are."""
        found: list[Alert] = await off(_firing, self.shipped)
        return found

    # ---- starting

    async def _start(self) -> None:
        enter = self.stack.enter_context
        self._ports: list[ReservedPort] = []
        self._listen: dict[str, str] = {}
        (self.directory / "targets").mkdir(parents=True)
        for job in _JOBS:
            (self.directory / "targets" / f"{job}.json").write_text("[]")
        self.servers = await off(self._start_nats)
        self.postgres = await off(lambda: enter(PostgresServer()))
        self.database = await off(self.postgres.create_database)
        self.prometheus = await off(lambda: enter(self._prometheus("faster", self.factor)))
        self.shipped = await off(lambda: enter(self._prometheus("shipped", 1)))
        for name in SERVICES[: 1 if self.shape.is_small else None]:
            await self._start_service(name)
        for store in self.stores:
            await until(partial(self._created, store))
            await self.put(store, "first", "row-first")
        self.agent = AgentProcess(
            self.directory / AGENT,
            nats_url=self.linked(AGENT),
            options=("--id", AGENT, *_AGENT, "--lease-socket", self.socket, *self.logins.options(AGENT)),
        )
        await off(lambda: enter(self.agent))
        self.scrape(_JOBS[2], _address(self.agent.metrics_url))
        for name in self._wanted:
            self.workers[name] = self.worker(name, WORKERS[name])
        await asyncio.gather(*(off(worker.start) for worker in self.workers.values()))
        await asyncio.gather(*(off(worker.wait_ready, PATIENCE_S) for worker in self.workers.values()))
        for name in self._wanted:
            self.scrape(_JOBS[1], self._listen[name])
        await self.stack.enter_async_context(self.repeating(self._load, _LOAD_PAUSE_S))
        await until(self.scraped)

    async def scraped(self) -> bool:
        """Whether every target answers the Prometheus server in which time passes faster."""
        wanted = sum(len(targets) for targets in self._targets.values())
        return bool(await off(self.prometheus.ask, "sum(up)") == [str(wanted)])

    async def _created(self, store: str) -> bool:
        strategy = Strategy.STICKY if store == JOBS else Strategy.JUMP
        try:
            await self.client.create_store(store, partition_count=PARTITIONS[store], strategy=strategy)
        except UnavailableError:
            return False  # NATS has just come up
        return True

    def worker(self, name: str, store: str, **settings: Any) -> WorkerProcess:
        """A worker with links of its own, not started."""
        return WorkerProcess(
            name,
            servers=self.linked(name),
            store=store,
            keys=(KEY,),
            history=self.history,
            words=("-m", "tests.integration.drills.application", str(self.directory)),
            prefix=("env", f"PYTHONPATH={PYTHONPATH}"),
            **{**self.worker_settings(name), **settings},
        )

    def _start_nats(self) -> dict[str, NatsServer]:
        settings, enter = self.logins.settings(), self.stack.enter_context
        if self.shape is Shape.CLUSTER:
            return enter(NatsCluster(self.directory / "nats", **settings)).servers
        if self.shape is not Shape.SMALL_DISK:
            return {"nats": enter(NatsServer(self.directory / "nats", **settings))}
        self.disk = enter(SmallDisk(self.directory / "disk", DISK_BYTES))
        jetstream = {"store_dir": str(self.disk.path / "jetstream"), "max_file_store": BROKER_BYTES}
        server = NatsServer(self.directory / "nats", prefix=self.disk.prefix, jetstream=jetstream, **settings)
        return {"nats": enter(server)}

    async def _start_service(self, name: str) -> None:
        service = ConfigServiceProcess(
            self.directory / name,
            nats_url=self.linked(name),
            database=self.linked_database(name),
            options=(*self.service_options(), *self.logins.options(name)),
        )
        self.services[name] = service
        await off(lambda: self.stack.enter_context(service))
        self.scrape(_JOBS[0], _address(service.metrics_url))
        client = ConfigServiceClient(service.address, timeout_s=10.0)
        self.clients[name] = await self.stack.enter_async_context(client)

    def service_options(self) -> tuple[str, ...]:
        """What every service is started with; how often it looks at NATS passes faster too."""
        return (
            "--nats-replicas",
            "3" if self.shape is Shape.CLUSTER else "1",
            "--provision-interval",
            faster("60s", self.factor),
            *_SIZES,
        )

    def _prometheus(self, name: str, factor: int) -> PrometheusServer:
        """The shipped configuration, but for where the targets are, and for how fast time passes."""
        directory = self.directory / f"prometheus-{name}"
        directory.mkdir()
        settings = yaml.safe_load((SHIPPED / CONFIGURATION).read_text())
        times = settings["global"]
        for interval in ("scrape_interval", "evaluation_interval"):
            times[interval] = faster(times[interval], factor)
        times["scrape_timeout"] = "10s" if factor == 1 else times["scrape_interval"]
        assert tuple(job["job_name"] for job in settings["scrape_configs"]) == _JOBS
        for job in settings["scrape_configs"]:
            del job["static_configs"]
            path = self.directory / "targets" / f"{job['job_name']}.json"
            job["file_sd_configs"] = [{"files": [str(path)], "refresh_interval": "1s"}]
        if factor == 1:
            settings["rule_files"] = [str(SHIPPED / rules) for rules in rule_files()]
        else:
            settings["rule_files"] = [str(path) for path in write_faster(directory / "rules", factor)]
        flags = (f"--query.lookback-delta={faster(LOOKBACK, factor)}",)
        return PrometheusServer(directory, settings, flags=flags)

    async def _load(self) -> None:
        number = next(self._counter)
        store = self.stores[number % len(self.stores)]
        client = self.clients[SERVICES[number % len(self.clients)]]
        await client.put(store, KEY, f"load-{number % _LOAD_ROWS}", str(number))

    def _reserved(self) -> ReservedPort:
        port = ReservedPort()
        self._ports.append(port)
        return port


def _firing(prometheus: PrometheusServer) -> list[Alert]:
    found: dict[str, list[dict[str, str]]] = {}
    for alert in prometheus.get("alerts")["alerts"]:
        if alert["state"] == "firing":
            labels = dict(alert["labels"])
            found.setdefault(labels.pop("alertname"), []).append(labels)
    return [Alert(name, tuple(instances)) for name, instances in sorted(found.items())]


def _address(url: str) -> str:
    return url.removeprefix("http://").removesuffix("/metrics")


async def _expected(error: Exception) -> None:
    """Servers that are away are what happens here."""
