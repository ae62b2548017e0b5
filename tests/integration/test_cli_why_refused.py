"""``ringcast why`` where a process is cut off, may not do what it has to, or refuses what it is given."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from ringcast import Change, PoisonPolicy, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, TcpProxy
from ringcast_wire import names

from tests.integration.cli_process import Cli

KEY, ROW, PARTITIONS = "list", "row", 4
DENIED = {
    "any": [],
    "still": ["$JS.API.CONSUMER.MSG.NEXT.>"],
    "unfed": [
        names.fetch_subject("*", KEY, what) for what in (*range(PARTITIONS), names.FETCH_BATCH, names.FETCH_FULL)
    ],
}
"""The users, and what each of them may not send."""


class Site:
    """A broker with users, and a config service that reaches it over ``link``."""

    def __init__(self, directory: Path) -> None:
        self._stack = ExitStack()
        users = [
            {"user": user, "password": user, "permissions": {"publish": {"allow": [">"], "deny": denied}}}
            for user, denied in DENIED.items()
        ]
        self.nats = self._stack.enter_context(NatsServer(directory / "nats", authorization={"users": users}))
        self.link = self._stack.enter_context(TcpProxy(self.nats.port))
        self.database = directory / "ringcast.db"
        self.service = self._stack.enter_context(
            ConfigServiceProcess(
                directory,
                nats_url=f"nats://127.0.0.1:{self.link.port}",
                database=f"sqlite:{self.database}",
                options=("--nats-user", "any", "--nats-password", "any"),
            )
        )

    def close(self) -> None:
        self._stack.close()


class Bench:
    """A store of the site with its key, and workers that end with the test."""

    def __init__(self, site: Site, store: str, cli: Cli, client: ConfigServiceClient, stack: AsyncExitStack) -> None:
        self.site, self.store, self.client = site, store, client
        self._cli, self._stack = cli, stack

    async def worker(self, *, user: str = "any", **settings: Any) -> Worker:
        made = {"user": user, "password": user, "stabilisation_s": 0.1, **settings}
        worker = Worker(servers=self.site.nats.url, store=self.store, keys=[KEY], worker_id=f"{self.store}-w", **made)
        return await self._stack.enter_async_context(worker)

    async def why_until(self, place: str) -> tuple[str, str | None]:
        """Asks until the row is stuck there; the sentence, and at which worker."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await asyncio.to_thread(self._cli.ok, "why", self.store, KEY, ROW, "--json")
                conclusion = found.document["conclusion"]
                if conclusion["place"] == place:
                    return conclusion["sentence"], conclusion["worker_id"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    yield made
    made.close()


@pytest.fixture
async def bench(site: Site, store_name: str, tmp_path: Path) -> AsyncIterator[Bench]:
    cli = Cli(tmp_path, servers=site.nats.url, service=site.service.address, user="any", password="any", timeout_s="5")
    async with ConfigServiceClient(site.service.address) as client, AsyncExitStack() as stack:
        await client.create_store(store_name, partition_count=PARTITIONS)
        yield Bench(site, store_name, cli, client, stack)


async def test_a_service_that_is_cut_off_from_nats_publishes_nothing(bench: Bench) -> None:
    written = await bench.client.put(bench.store, KEY, ROW, "1")
    worker = await bench.worker()
    await worker.wait_for(KEY, written.partition, written.version, timeout_s=PATIENCE_S)
    bench.site.link.cut()
    try:
        await bench.client.put(bench.store, KEY, ROW, "2")
        sentence, worker_id = await bench.why_until("publish")
    finally:
        bench.site.link.resume()
    at = f"the newest event of partition {written.partition} is of revision 1"
    waits = "the outbox of the config service waits for NATS"
    assert sentence == f"revision 2 is not published: {waits} ({at}); see the log of the service"
    assert worker_id is None


async def test_a_worker_that_may_not_pull_events(bench: Bench) -> None:
    worker = await bench.worker(user="still", heads_s=3_600.0)
    await worker.wait_ready(timeout_s=PATIENCE_S)
    written = await bench.client.put(bench.store, KEY, ROW, "1")
    sentence, worker_id = await bench.why_until("event")
    assert worker_id == worker.config.worker_id
    knows = f"it knows of partition {written.partition} up to revision 0"
    misses = "and fetches what it missed when it next asks the config service"
    assert sentence == f"{worker_id} has not heard of revision 1: {knows}, {misses}"


async def test_a_worker_that_may_not_fetch(bench: Bench) -> None:
    written = await bench.client.put(bench.store, KEY, ROW, "1")
    worker = await bench.worker(user="unfed")
    sentence, worker_id = await bench.why_until("event")
    assert worker_id == worker.config.worker_id
    todo = f"it still loads partition {written.partition}; see whether the config service answers it"
    assert sentence == f"{worker_id} does not have revision 1: {todo}"


async def test_a_worker_that_refuses_a_history_that_deletes_too_much(bench: Bench) -> None:
    for number in range(20):
        await bench.client.put(bench.store, KEY, f"row{number}", "1")
    worker = await bench.worker(heads_s=0.5)
    await worker.wait_until(KEY, lambda: len([*worker.rows(KEY)]) == 20, timeout_s=PATIENCE_S)
    with closing(sqlite3.connect(bench.site.database, timeout=PATIENCE_S)) as db, db:
        for table in ("partitions", "rows", "history", "outbox"):  # as if the database were empty again
            db.execute(f"DELETE FROM {table}")
    await bench.client.put(bench.store, KEY, ROW, "1")
    sentence, worker_id = await bench.why_until("worker")
    assert worker_id == worker.config.worker_id
    missing = "19 of 20 rows are missing in the service's new history, max_delete_share is 0.5"
    assert sentence == f"{worker_id} refuses what the config service has: {missing}"


async def test_a_worker_that_drops_what_its_handler_does_not_take(bench: Bench) -> None:
    def handler(change: Change) -> None:
        raise ValueError("not this one")

    worker = await bench.worker(handler=handler, handler_tries=1, poison_policy=PoisonPolicy.DROP)
    await worker.wait_ready(timeout_s=PATIENCE_S)
    await bench.client.put(bench.store, KEY, ROW, "1")
    sentence, worker_id = await bench.why_until("dropped")
    assert worker_id == worker.config.worker_id
    assert sentence.startswith(f"it was dropped by {worker_id} ")
    assert sentence.endswith("ago: ValueError('not this one'); mend the handler, then write the row again")
