"""A whole system of processes, each of which can be stopped and started as another build, and clients that use it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ringcast_client import ConfigServiceClient
from ringcast_testkit import (
    PATIENCE_S,
    AgentProcess,
    ConfigServiceProcess,
    History,
    ManagedProcess,
    ManagedServer,
    NatsServer,
    WorkerProcess,
)
from ringcast_wire import Strategy

from tests.integration.cli_process import Cli

STORES: Mapping[str, Strategy] = {"gateway": Strategy.JUMP, "orders": Strategy.STICKY}
PARTITIONS = 16
WORKERS = 2
CALLS = 60
"""How many more calls of each client must have ended well before the next process is stopped."""
_WRITER = Path(__file__).with_name("writer.py")
_IMPORTS = ("ringcast", "ringcast_client", "ringcast_config_service", "ringcast_core", "ringcast_heartbeat_agent")


@dataclass(frozen=True)
class Build:
    """A build of all distributions: ``path`` is the directory of their packages, ``None`` means this tree.

    ``is_whole``: whether it has all of them; what it lacks is this tree's.
    """

    name: str
    path: Path | None = None
    is_whole: bool = True

    @property
    def env(self) -> dict[str, str]:
        """The variables of a process that is to be of this build."""
        if self.path is None:
            return {}
        return {"PYTHONPATH": os.pathsep.join([str(self.path.resolve()), *(() if self.is_whole else sys.path)])}

    def check(self) -> None:
        """Makes sure that processes with these variables import this build's packages.

        Raises:
            RuntimeError: one is somebody else's, or is not there.
        """
        if self.path is None:
            return
        program = f"import {', '.join(_IMPORTS)}; print(*({', '.join(f'{name}.__file__' for name in _IMPORTS)},))"
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **self.env}, capture_output=True, text=True, check=False
        )
        strays = [file for file in done.stdout.split() if not Path(file).is_relative_to(self.path.resolve())]
        if done.returncode != 0 or strays:
            raise RuntimeError(f"{self.path} is no build: {strays or done.stderr}")


class Client:
    """A process that calls the config services all the time; it is never replaced."""

    def __init__(self, build: Build, services: str, store: str) -> None:
        self.name = f"{build.name}-{store}"
        self.ended = 0
        self.failed: list[str] = []
        self.written: dict[str, str | None] = {}
        """By row, what the last call that was acknowledged has written."""
        self._changed = threading.Condition()
        command = [sys.executable, str(_WRITER), services, store, self.name]
        self._process = ManagedProcess(
            f"client {self.name}", command, env=build.env, take_line=self._take, listens=True
        )

    def wait_for_calls(self, more: int) -> None:
        """Waits until so many more calls have ended.

        Raises:
            AssertionError: they have not, within the patience of a test.
        """
        with self._changed:
            wanted = self.ended + more
            deadline = time.monotonic() + PATIENCE_S
            while self.ended < wanted and self._process.returncode is None and time.monotonic() < deadline:
                self._changed.wait(1.0)
        assert self.ended >= wanted, self._process.describe("makes no calls any more")

    def stop(self) -> None:
        """Lets the last call end."""
        self._process.tell("stop")
        assert self._process.wait(PATIENCE_S) == 0, self._process.describe("failed")

    def kill(self) -> None:
        """Ends it whatever it does."""
        self._process.kill()

    def _take(self, line: str) -> None:
        said = json.loads(line)
        with self._changed:
            self.ended += 1
            if "failed" in said:
                self.failed.append(said["failed"])
            elif "written" in said:
                self.written[said["written"]] = said["value"]
            self._changed.notify_all()


@dataclass
class Verdict:
    """What came of it; all but ``calls`` is to be nothing."""

    calls: int
    failed: list[str]
    lost: int
    """Rows whose last acknowledged write the service does not have."""
    wrong: int
    """Live rows that no worker holds, or that a worker holds otherwise or twice, or that are deleted and held."""

    @property
    def kept(self) -> bool:
        """Whether no call has failed, and every row is what and where it should be."""
        return not (self.failed or self.lost or self.wrong)


class System:
    """NATS, two config services on one database, an agent, and workers of two stores; everything of ``build`` at first,
    but for what ``others`` names.

    Use as a context manager, then call its methods in a thread: they wait. One :class:`Client` of each of ``clients``
    and store is there from the beginning to the end.
    """

    def __init__(
        self,
        directory: Path,
        database: str,
        build: Build,
        clients: tuple[Build, ...],
        others: Mapping[str, Build] | None = None,
    ) -> None:
        self._directory = directory
        self._clients_of = clients
        self._exits = ExitStack()
        self.clients: list[Client] = []
        nats = self.nats = NatsServer(directory / "nats")
        cluster = ("--cluster-store", f"{nats.url}/config_cluster")
        self.services = {
            name: ConfigServiceProcess(directory / name, nats_url=nats.url, database=database, options=cluster)
            for name in ("service-1", "service-2")
        }
        socket = directory / "leases.sock"
        self.agent = AgentProcess(
            directory / "agent", nats_url=nats.url, options=("--lease-socket", str(socket), *cluster)
        )
        self.history = History()
        self.workers = {
            f"{store}-{number}": WorkerProcess(
                f"{store}-{number}",
                servers=nats.url,
                store=store,
                keys=("list",),
                history=self.history,
                agent=str(socket),
            )
            for store in STORES
            for number in range(WORKERS)
        }
        for name, server in self._servers.items():
            server.env = {**server.env, **(others or {}).get(name, build).env}
        self._cli = Cli(directory, cluster_store=f"{nats.url}/config_cluster", timeout_s="60")

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            for server in (self.nats, *self.services.values(), self.agent):
                exits.enter_context(server)
            addresses = ",".join(service.address for service in self.services.values())
            asyncio.run(_create_stores(addresses))
            for worker in self.workers.values():
                exits.enter_context(worker)
            for worker in self.workers.values():
                worker.wait_ready(PATIENCE_S)
            for build in self._clients_of:
                for store in STORES:
                    self.clients.append(Client(build, addresses, store))
                    exits.callback(self.clients[-1].kill)
            self.wait_for_calls()
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def wait_for_calls(self) -> None:
        """Until each client's calls have gone on."""
        for client in self.clients:
            client.wait_for_calls(CALLS)

    def roll(self, name: str, build: Build) -> float:
        """Stops a process in order, starts it as another build, and returns the seconds until it serves again.

        ``name``: of a service or a worker, or ``agent``. A service is drained before.
        """
        began = time.monotonic()
        server: Any = self._server(name)
        if name in self.services:
            self._drain(server)
        server.process.signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0, server.process.describe("did not end in order")
        server.env = {**{k: v for k, v in server.env.items() if k != "PYTHONPATH"}, **build.env}
        server.start()
        if name in self.workers:
            server.wait_ready(PATIENCE_S)
        elif name in self.services:
            self._member(server)
        took = time.monotonic() - began
        self.wait_for_calls()
        return took

    def process_of(self, name: str) -> ManagedProcess:
        """The process that runs under this name now."""
        return self._server(name).process

    def judge(self) -> Verdict:
        """Stops the clients, waits until the workers have heard of all, and compares."""
        for client in self.clients:
            client.stop()
        failed = [failure for client in self.clients for failure in client.failed]
        written: dict[str, dict[str, str | None]] = {store: {} for store in STORES}
        for client in self.clients:
            written[client.name.rpartition("-")[2]].update(client.written)
        addresses = ",".join(service.address for service in self.services.values())
        truth = asyncio.run(_live_rows(addresses))
        lost = sum(
            truth[store].get(row_id, (None, 0))[0] != value
            for store, rows in written.items()
            for row_id, value in rows.items()
        )
        deadline = time.monotonic() + PATIENCE_S
        while (wrong := sum(self._wrong(store, truth[store]) for store in STORES)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return Verdict(sum(client.ended for client in self.clients), failed, lost, wrong)

    def _wrong(self, store: str, truth: Mapping[str, tuple[str, int]]) -> int:
        held: list[tuple[str, tuple[str, int]]] = []
        for name, worker in self.workers.items():
            if name.startswith(store):
                held += [(row_id, (row[0], row[1])) for row_id, row in worker.dump().get("list", {}).items()]
        found = dict(held)
        return len(held) - len(found) + len(set(found.items()) ^ set(truth.items()))

    @property
    def _servers(self) -> dict[str, ManagedServer]:
        return {**self.services, **self.workers, "agent": self.agent}

    def _server(self, name: str) -> ManagedServer:
        return self._servers[name]

    def _drain(self, service: ConfigServiceProcess) -> None:
        self._cli.ok("cluster", "drain", self._member(service), "--wait")

    def _member(self, service: ConfigServiceProcess) -> str:
        """The id of a service, once it has registered."""
        return _until(lambda: self._registered(service.process.pid), "the service did not register")

    def _registered(self, pid: int) -> str:
        members = self._cli.ok("cluster", "list", "--json").documents
        return next((member["id"] for member in members if member.get("pid") == pid), "")


def _until(found: Callable[[], str], otherwise: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not (what := found()):
        assert time.monotonic() < deadline, otherwise
    return what


async def _create_stores(addresses: str) -> None:
    async with ConfigServiceClient(addresses, timeout_s=PATIENCE_S) as client:
        for store, strategy in STORES.items():
            await client.create_store(store, partition_count=PARTITIONS, strategy=strategy)
            await client.put(store, "list", "first", "v")


async def _live_rows(addresses: str) -> dict[str, dict[str, tuple[str, int]]]:
    async with ConfigServiceClient(addresses, timeout_s=PATIENCE_S) as client:
        return {
            store: {row.row_id: (row.value, row.version) async for row in client.list(store, "list")}
            for store in STORES
        }
