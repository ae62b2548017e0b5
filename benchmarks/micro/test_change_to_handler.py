"""One change to one handler, from the call that writes it, on an idle system; beside a bare NATS KV put and watch.

The KV has neither a database nor a transaction, nor does it tell one worker from another: it is the floor, not a rival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
import ringcast
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ConfigServiceProcess, NatsServer, PostgresServer

ROUNDS = 300
Step = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for set-up, rounds and tear-down."""
    with asyncio.Runner() as runner:
        yield runner


def measure(benchmark: BenchmarkFixture, runner: asyncio.Runner, step: Step) -> None:
    """Times single steps."""
    benchmark.group = "change to handler"
    benchmark.pedantic(lambda: runner.run(step()), rounds=ROUNDS, warmup_rounds=20)


def ringcast_round_trip(
    benchmark: BenchmarkFixture, runner: asyncio.Runner, nats_url: str, service: ConfigServiceProcess
) -> None:
    """Puts a row with the client of the service, and waits for the worker's handler to have it."""
    heard: asyncio.Queue[int] = asyncio.Queue()
    client = ConfigServiceClient(service.address)
    worker = ringcast.Worker(
        servers=nats_url,
        store="bench",
        keys=["list"],
        worker_id="w",
        handler=lambda change: heard.put_nowait(change.version),
    )

    async def start() -> None:
        await client.__aenter__()
        await client.create_store("bench", partition_count=16)
        await worker.__aenter__()
        await worker.wait_ready()

    async def step() -> None:
        version = (await client.put("bench", "list", "row", "value")).version
        while await heard.get() != version:
            pass

    async def stop() -> None:
        await worker.__aexit__(None, None, None)
        await client.__aexit__(None, None, None)

    runner.run(start())
    try:
        measure(benchmark, runner, step)
    finally:
        runner.run(stop())


def test_on_sqlite(
    benchmark: BenchmarkFixture, runner: asyncio.Runner, nats_server: NatsServer, config_service: ConfigServiceProcess
) -> None:
    ringcast_round_trip(benchmark, runner, nats_server.url, config_service)


def test_on_postgresql(
    benchmark: BenchmarkFixture, runner: asyncio.Runner, nats_server: NatsServer, tmp_path: Path
) -> None:
    with (
        PostgresServer() as postgres,
        ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=postgres.create_database()) as service,
    ):
        ringcast_round_trip(benchmark, runner, nats_server.url, service)


def test_bare_nats_kv(benchmark: BenchmarkFixture, runner: asyncio.Runner, nats_server: NatsServer) -> None:
    async def start() -> tuple[Any, Any, Any]:
        client = await nats.connect(nats_server.url)
        bucket = await client.jetstream().create_key_value(bucket="bench")
        watcher = await bucket.watchall()
        assert await watcher.updates() is None
        return client, bucket, watcher

    client, bucket, watcher = runner.run(start())

    async def step() -> None:
        revision = await bucket.put("row", b"value")
        while (await watcher.updates()).revision != revision:
            pass

    try:
        measure(benchmark, runner, step)
    finally:
        runner.run(watcher.stop())
        runner.run(client.close())
