"""A stream that has as many consumers as NATS lets it: the worker that wants one more says so, and joins later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig
from ringcast import UnavailableError, Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, until
from ringcast_wire import names

STORE, KEY, PARTITIONS = "s", "k", 8
LOGIN = {"user": "u", "password": "p"}
FULL = "maximum consumers limit reached"


def account(most: int) -> dict[str, Any]:
    """One whose streams have so many consumers each, and no more."""
    return {"accounts": {"A": {"jetstream": {"max_consumers": most}, "users": [LOGIN]}}}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """With a store that has a key."""
    options = ("--nats-user", "u", "--nats-password", "p")
    with (
        NatsServer(tmp_path / "nats", **account(100)) as server,
        ConfigServiceProcess(tmp_path, nats_url=server.url, options=options) as service,
    ):
        async with ConfigServiceClient(service.address) as client:
            await client.create_store(STORE, partition_count=PARTITIONS)
            await client.put(STORE, KEY, "row", "value")
        yield server


@pytest.fixture
def worker(server: NatsServer) -> Callable[..., Worker]:
    def make(name: str, **settings: Any) -> Worker:
        settings = {**LOGIN, "stabilisation_s": 0.1, **settings}
        return Worker(servers=server.url, store=STORE, keys=[KEY], worker_id=name, **settings)

    return make


async def test_a_worker_that_can_not_watch_the_others_does_not_start_until_it_can(
    server: NatsServer, worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    async with worker("a") as first:
        await first.wait_ready(timeout_s=PATIENCE_S)
        await asyncio.to_thread(server.change, **account(1))
        one_more = (
            f"did not start within 10 s: NATS does not make the consumer .* of KV_{names.nodes_bucket(STORE)}: .*"
        )
        with pytest.raises(UnavailableError, match=f"{one_more}{FULL}"):
            await worker("b", start_timeout_s=10.0).start()
        (told,) = [each for each in caplog.records if each.getMessage().startswith("event=nats.consumer_rejected ")]
        assert told.levelno == logging.WARNING
        assert FULL in told.getMessage()
        caplog.clear()
        late = worker("c", start_timeout_s=PATIENCE_S)
        start = asyncio.create_task(late.start())
        await until(lambda: FULL in caplog.text)
        await asyncio.to_thread(server.change, **account(100))
        await start
        await _share(first, late)
        await late.stop()


async def test_a_worker_that_gets_no_events_leaves_its_partitions_to_others_until_it_does(
    server: NatsServer, worker: Callable[..., Worker]
) -> None:
    async with worker("a") as first, await nats.connect(server.url, **LOGIN) as client:
        await first.wait_ready(timeout_s=PATIENCE_S)
        stream, js = names.notify_stream(STORE), client.jetstream()
        for number in range(2):
            await js.add_consumer(stream, ConsumerConfig(name=f"other-{number}", inactive_threshold=3_600))
        await asyncio.to_thread(server.change, **account(3))  # of the bucket of members there may be two more
        async with worker("b", update_tries=2) as late:
            await until(lambda: late.health().keys[0].withdrawn)
            assert FULL in late.health().keys[0].failing_because
            assert not late.health().ready
            await first.wait_until(KEY, lambda: len(first.owned(KEY)) == PARTITIONS, timeout_s=PATIENCE_S)
            await asyncio.to_thread(server.change, **account(100))
            await _share(first, late)


async def _share(first: Worker, late: Worker) -> None:
    """Waits until both are ready and have partitions, and each of these has one owner."""

    def do_share() -> bool:
        theirs, its = first.owned(KEY), late.owned(KEY)
        ready = first.health().ready and late.health().ready
        return ready and bool(its) and len(theirs) + len(its) == PARTITIONS and theirs.isdisjoint(its)

    await until(do_share)
