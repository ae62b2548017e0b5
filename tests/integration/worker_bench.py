"""What tests of the commands that ask workers share: a store, its client, and real workers of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, History, WorkerProcess
from ringcast_wire.reports import WorkerReport, encode_report

from tests.integration.cli_process import Cli, Servers

PARTITIONS: Final = 8


def report_before(field: str, report: WorkerReport) -> bytes:
    """As a build encodes it that knows neither this field nor what was appended after it."""
    fields = msgspec.msgpack.decode(encode_report(report))
    return msgspec.msgpack.encode(fields[: WorkerReport.__struct_fields__.index(field)])


class Bench:
    """A store, its client, workers of it that end with the test, and the command."""

    def __init__(
        self, servers: Servers, cli: Cli, store: str, client: ConfigServiceClient, stack: AsyncExitStack
    ) -> None:
        self.servers, self.cli, self.store, self.client, self._stack = servers, cli, store, client, stack

    async def create(self, **settings: Any) -> None:
        await self.client.create_store(self.store, **{"partition_count": PARTITIONS, **settings})

    async def worker(self, name: str, handler: Any = None, **settings: Any) -> Worker:
        """With a window of 0.1 s, so that tests need not wait."""
        made = {"servers": self.servers.nats.url, "keys": ["list"], "stabilisation_s": 0.1, "handler": handler}
        worker = Worker(store=self.store, worker_id=f"{self.store}-{name}", **made | settings)
        await self._stack.enter_async_context(worker)
        await worker.wait_ready(timeout_s=PATIENCE_S)
        return worker

    async def fill(self, rows: int = 40) -> None:
        for number in range(rows):
            await self.client.put(self.store, "list", f"row{number}", "value")

    def process(self, name: str, **settings: Any) -> WorkerProcess:
        """A worker as a process of its own, that whoever asks starts and ends."""
        return WorkerProcess(
            f"{self.store}-{name}",
            servers=self.servers.nats.url,
            store=self.store,
            keys=("list",),
            history=History(),
            stabilisation_s=0.1,
            **settings,
        )

    async def told(self, *words: object) -> dict[str, Any]:
        """The document that a command prints. The workers of this process answer meanwhile."""
        found = await asyncio.to_thread(self.cli.ok, *words, "--json")
        document: dict[str, Any] = found.document
        return document

    async def told_until(self, condition: Callable[[dict[str, Any]], bool], *words: object) -> dict[str, Any]:
        """The same, again until it is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(found := await self.told(*words)):
                pass
        return found


@asynccontextmanager
async def worker_bench(servers: Servers, cli: Cli, store: str) -> AsyncIterator[Bench]:
    """For one test. The store is still to be created."""
    async with ConfigServiceClient(servers.service.address) as client, AsyncExitStack() as stack:
        yield Bench(servers, cli, store, client, stack)
