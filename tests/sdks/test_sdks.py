"""Dapr's own SDKs for Go and JavaScript, as they are, against an agent.

They are downloaded by their ordinary tools, at pinned versions. Where Go or Node is missing the tests say so and skip,
unless RINGCAST_REQUIRE_SDKS=1.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, NatsServer

HERE = Path(__file__).parent
BUILD_S = 400
# As build-support/checks/cockroach_grammar.py has them, which builds after this and takes what is compiled: its many
# packages take minutes to optimise, and this program does little.
GO_OPTIONS = ("-mod=readonly", "-buildvcs=false", "-gcflags=all=-N -l", "-ldflags=-s -w")
TOKEN = "from-the-environment"
ROWS = 5_000


def need(*programs: str) -> list[str]:
    """Where the programs are; skips the test, or fails it where they are required."""
    found = [shutil.which(program) for program in programs]
    missing = [program for program, path in zip(programs, found, strict=True) if path is None]
    if missing:
        why = f"there is no {' and no '.join(missing)} here, which Dapr's SDK needs"
        if os.environ.get("RINGCAST_REQUIRE_SDKS") == "1":
            pytest.fail(why)
        pytest.skip(why)
    return [path for path in found if path is not None]


def go(tmp_path: Path) -> list[str]:
    """Builds the program that uses the SDK for Go."""
    (compiler,) = need("go")
    program = tmp_path / "dapr-sdk"
    build = [compiler, "build", *GO_OPTIONS, "-o", str(program), "."]
    subprocess.run(build, cwd=HERE / "go", env={**os.environ, "CGO_ENABLED": "0"}, check=True, timeout=BUILD_S)
    return [str(program)]


def javascript(tmp_path: Path) -> list[str]:
    """Installs the SDK for JavaScript beside a copy of the program that uses it."""
    node, npm = need("node", "npm")
    directory = tmp_path / "javascript"
    shutil.copytree(HERE / "javascript", directory, ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run([npm, "ci", "--silent"], cwd=directory, check=True, timeout=BUILD_S)
    return [node, str(directory / "main.mjs")]


SDKS: dict[str, Callable[[Path], list[str]]] = {"go": go, "javascript": javascript}


class Servers:
    """What the SDKs talk to, and how to write."""

    def __init__(self, nats: NatsServer, service: ConfigServiceProcess, agent: AgentProcess) -> None:
        self.nats = nats
        self.service = service
        self.agent = agent

    def create(self, store: str) -> None:
        async def create() -> None:
            async with ConfigServiceClient(self.service.address, timeout_s=PATIENCE_S) as client:
                await client.create_store(store, partition_count=16)

        asyncio.run(create())

    def put(self, store: str, rows: dict[str, str]) -> None:
        async def write() -> None:
            async with ConfigServiceClient(self.service.address) as client:
                async for _ in client.bulk_write(store, "list", [RowWrite(*row) for row in rows.items()]):
                    pass

        asyncio.run(write())


class Program:
    """A program that uses an SDK: takes commands, and tells what came."""

    def __init__(self, command: list[str], servers: Servers, store: str, *, pause_ms: int) -> None:
        self._process = subprocess.Popen(
            [*command, servers.agent.grpc_address, store, str(pause_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "DAPR_API_TOKEN": TOKEN},
        )
        self._told: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.rows: dict[str, str] = {}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("told "):
                told = json.loads(line.removeprefix("told "))
                self._told.put((told["kind"], told["value"]))

    def send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def do(self, command: str) -> Any:
        """What the SDK answers to a command."""
        self.send(command)
        while (told := self._told.get(timeout=PATIENCE_S))[0] == "update":
            self.rows.update(told[1])
        return told

    def until(self, wanted: dict[str, str]) -> None:
        """Waits until updates have told of these values, and of nothing else at last."""
        while {name: self.rows.get(name) for name in wanted} != wanted:
            kind, value = self._told.get(timeout=PATIENCE_S)
            assert kind == "update", value
            self.rows.update(value)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(PATIENCE_S)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("sdks")
    with (
        NatsServer(directory / "nats") as nats,
        ConfigServiceProcess(directory, nats_url=nats.url, database=f"sqlite:{directory / 'r.db'}") as service,
        AgentProcess(
            directory, nats_url=nats.url, options=("--queue-items", "300"), env={"DAPR_API_TOKEN": TOKEN}
        ) as agent,
    ):
        yield Servers(nats, service, agent)


@pytest.mark.timeout(2 * BUILD_S)
@pytest.mark.parametrize("sdk", SDKS)
def test_a_subscriber_lives_through_an_import_and_an_outage(
    tmp_path: Path, servers: Servers, store_name: str, sdk: str
) -> None:
    """One that takes 50 ms for each update, while far more rows change than may wait for it."""
    command = SDKS[sdk](tmp_path)
    servers.create(store_name)
    servers.put(store_name, {"a": "1", "b": "2"})
    program = Program(command, servers, store_name, pause_ms=50)
    try:
        assert program.do("get list") == ("items", {"a": "1", "b": "2"})
        assert program.do("get list/a") == ("items", {"list/a": "1"})
        assert program.do("get orders.timeout") == ("items", {})
        assert program.do("single list/b") == ("item", "2")
        assert program.do("single list") == ("item", None)

        kind, subscription = program.do("subscribe list")
        assert (kind, bool(subscription)) == ("subscribed", True)
        began = 'ringcast_agent_subscriptions{api="grpc"} 1.0'
        servers.agent.process.wait_until(lambda: began in metrics(servers.agent))
        servers.put(store_name, {"a": "3"})
        program.until({"a": "3"})

        rows = {f"r{number}": str(number) for number in range(ROWS)}
        servers.put(store_name, rows)
        servers.nats.kill()
        servers.nats.restart()
        servers.put(store_name, {"r1": "newest", "a": "4"})
        program.until({**rows, "r1": "newest", "a": "4"})
        assert program.do("unsubscribe") == ("unsubscribed", True)
    finally:
        program.close()


def metrics(agent: AgentProcess) -> str:
    """What Prometheus would read."""
    with urllib.request.urlopen(agent.metrics_url, timeout=PATIENCE_S) as response:
        text: str = response.read().decode()
    return text
