"""NATS servers that run with the configuration in infra/nats, the way an operator would start them."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trustme
from nats.aio.client import Client
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import (
    PATIENCE_S,
    ConfigServiceProcess,
    ManagedProcess,
    ManagedServer,
    ReservedPort,
    nats_server_binary,
)
from ringcast_wire import names

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
NATS = INFRA / "nats"
WORKER_API = "JS.ringcast.API"
_LISTENING = re.compile(r"Listening for client connections on 127\.0\.0\.1:(\d+)")


def make_accounts(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs make_accounts.py to its end, whether it refuses the words or prints the accounts."""
    command = [sys.executable, str(NATS / "make_accounts.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def example_variables() -> set[str]:
    """Every variable that nats.env.example names, those in comments too."""
    return set(re.findall(r"^#?([A-Z][A-Z0-9_]*)=", (NATS / "nats.env.example").read_text(), re.MULTILINE))


def environment(directory: Path) -> dict[str, str]:
    """A value for every variable of nats.env.example: random passwords, free ports, files below ``directory``."""
    values = {name: f"pw-{secrets.token_hex(12)}" for name in example_variables() if name.endswith("_PASSWORD")}
    return values | {
        "NATS_SERVER_NAME": "n0",
        "NATS_LISTEN": "127.0.0.1:-1",
        "NATS_MONITOR_LISTEN": "127.0.0.1:-1",
        "NATS_STORE_DIR": str(directory / "jetstream"),
        "NATS_CLUSTER_LISTEN": "127.0.0.1:-1",
        "NATS_ROUTES": "[]",
        "NATS_TLS_CERT_FILE": str(directory / "tls.crt"),
        "NATS_TLS_KEY_FILE": str(directory / "tls.key"),
    }


class InfraNats(ManagedServer):
    """A server on a copy of infra/nats: what is in ``configuration`` can be changed before it starts."""

    def __init__(self, directory: Path, *, main: str = "nats.conf", env: Mapping[str, str] | None = None) -> None:
        self.configuration = directory / "nats"
        shutil.copytree(NATS, self.configuration)
        self.env: dict[str, str] = environment(directory) | dict(env or {})
        self._main = main
        self.url = ""

    def start(self) -> None:
        """Starts the server, and returns once it takes clients."""
        command: list[str | Path] = [nats_server_binary(), "-c", self.configuration / self._main]
        process = self._process = ManagedProcess("nats-server", command, env=self.env)
        process.wait_until(lambda: any("Server is ready" in line for line in list(process.log)))
        (port,) = [match[1] for line in list(process.log) if (match := _LISTENING.search(line))]
        self.url = f"nats://127.0.0.1:{port}"

    def login(self, user: str) -> dict[str, str]:
        """User and password, as arguments of a worker or of ``nats.connect``."""
        kind = "" if user in ("config-service", "tools") else "WORKER_"
        return {"user": user, "password": self.env[f"NATS_{kind}{user.upper().replace('-', '_')}_PASSWORD"]}

    def service(self, directory: Path, *options: str) -> ConfigServiceProcess:
        """A config service that logs in here, not started yet; SQLite in ``directory``."""
        login = self.login("config-service")
        words = ("--nats-user", login["user"], "--nats-password", login["password"], *options)
        database = f"sqlite:{directory / 'rows.db'}"
        return ConfigServiceProcess(directory, nats_url=self.url, database=database, options=words)

    def worker(self, worker_id: str, **settings: Any) -> Worker:
        """A worker of gateway/blocklist that logs in here, not started yet."""
        login: dict[str, Any] = settings if "nkey_seed_file" in settings else self.login(worker_id) | settings
        return Worker(
            servers=login.pop("servers", self.url),
            store="gateway",
            keys=["blocklist"],
            worker_id=worker_id,
            jetstream_api=WORKER_API,
            **login,
        )

    def log(self) -> list[str]:
        """What it has written up to now."""
        return list(self.process.log)

    def violations(self) -> list[str]:
        """What the server refused because of permissions, as it logged it."""
        return [line for line in self.log() if "Violation" in line]


def use_tls(server: InfraNats, directory: Path) -> str:
    """Turns TLS on as nats.conf says, with a certificate for 127.0.0.1; the path of who signed it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(directory / "tls.key"))
    certificate.cert_chain_pems[0].write_to_path(str(directory / "tls.crt"))
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    file = server.configuration / "nats.conf"
    text = file.read_text()
    assert text.count("# include tls.conf") == 1
    file.write_text(text.replace("# include tls.conf", "include tls.conf"))
    return str(directory / "ca.pem")


class Bus:
    """A client, and what the server refused it."""

    def __init__(self) -> None:
        self.nc = Client()
        self._refused: asyncio.Queue[str] = asyncio.Queue()
        self._asked = 0

    async def refused(self) -> list[str]:
        """What was refused since the last call: all that came before the refusal of something that surely is."""
        self._asked += 1
        surely = f"nobody.may.{self._asked}"
        await self.nc.publish(surely, b"")
        found: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while surely not in (reason := await self._refused.get()):
                found.append(reason.lower())
        return found

    async def on_error(self, error: Exception) -> None:
        """Takes what the server says on its own."""
        self._refused.put_nowait(str(error))


@asynccontextmanager
async def connected(server: InfraNats, user: str) -> AsyncIterator[Bus]:
    """A client that logs in as a user of the files, with the prefix of inboxes that it may listen on."""
    bus = Bus()
    special = {"config-service": names.SERVICE_INBOX_PREFIX, "tools": names.TOOLS_INBOX_PREFIX}
    inbox = special.get(user) or names.inbox_prefix(user)
    login: dict[str, Any] = server.login(user)
    await bus.nc.connect(server.url, error_cb=bus.on_error, inbox_prefix=inbox, **login)
    try:
        yield bus
    finally:
        await bus.nc.close()


@contextmanager
def prepared_service(
    server: InfraNats, directory: Path, *, partitions: int, rows: Mapping[str, Mapping[str, str]]
) -> Iterator[ConfigServiceProcess]:
    """A config service with the store `gateway`, and these rows of its keys."""
    with server.service(directory) as running:

        async def prepare() -> None:
            async with ConfigServiceClient(running.address) as client:
                await client.create_store("gateway", partition_count=partitions)
                for key, values in rows.items():
                    for row_id, value in values.items():
                        await client.put("gateway", key, row_id, value)

        asyncio.run(prepare())
        yield running


@contextmanager
def cluster_of_three(directory: Path) -> Iterator[list[InfraNats]]:
    """Three servers on cluster.conf, with the same passwords."""
    reserved = [ReservedPort() for _ in range(3)]
    ports = [port.number for port in reserved]
    shared = environment(directory)
    login = f"route:{shared['NATS_ROUTE_PASSWORD']}"
    routes = ", ".join(f"nats://{login}@127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        servers = []
        for number, port in enumerate(ports):
            home = directory / f"n{number}"
            home.mkdir()
            own = {
                "NATS_SERVER_NAME": f"n{number}",
                "NATS_CLUSTER_LISTEN": f"127.0.0.1:{port}",
                "NATS_ROUTES": f"[{routes}]",
                "NATS_STORE_DIR": str(home / "jetstream"),
            }
            servers.append(InfraNats(home, main="cluster.conf", env=shared | own))
        yield [stack.enter_context(server) for server in servers]
