"""Mode FULL: a key that does not come in one answer in time is fetched by partitions; each that comes is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from ringcast import Change, Mode, Worker
from ringcast._bus.bus import connected
from ringcast._bus.nats_bus import NatsBus
from ringcast._bus.requests import FetchClient
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._dapr.reader import read_key
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, TcpProxy
from ringcast_wire import names

PARTITIONS = 8
ROWS = {f"row{number}": f"value{number}" for number in range(40)}
SILENCE_S = 0.5
WHOLE = names.fetch_subject("s", "k", names.FETCH_FULL)


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Client]:
    """Of a server with a service that is asked for all but the whole key: such requests go to ``held``."""
    with NatsServer(tmp_path / "nats", mappings={WHOLE: "held"}) as server:
        database = f"sqlite:{tmp_path / 'ringcast.db'}"
        with ConfigServiceProcess(tmp_path, nats_url=server.url, database=database) as service:
            async with ConfigServiceClient(service.address) as client:
                await client.create_store("s", partition_count=PARTITIONS, mode=Mode.FULL)
                await asyncio.gather(*(client.put("s", "k", row_id, value) for row_id, value in ROWS.items()))
            bus = await nats.connect(server.url)
            try:
                yield bus
            finally:
                await bus.close()


@asynccontextmanager
async def held(bus: Client, *, half: bool = False) -> AsyncIterator[list[str]]:
    """Gives requests for the whole key no answer, or the first chunk of two; the inboxes of those who asked."""
    asked: list[str] = []

    async def answer(msg: Msg) -> None:
        asked.append(msg.reply)
        if half:
            await bus.publish(msg.reply, b"half", headers={names.HEADER_CHUNK: "0/2/00000000"})

    subscription = await bus.subscribe("held", cb=answer)
    await bus.flush()
    yield asked
    await subscription.unsubscribe()


async def first_chunk(worker: Worker) -> None:
    """Waits until a part of an answer has come."""
    assert worker._life.runtime is not None
    client = worker._life.runtime.sessions["k"].fetches.client
    assert client is not None
    async with asyncio.timeout(PATIENCE_S):
        while all(pending.assembler.missing is None for pending in client._pending.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("why", ["silence", "half", "lost"])
async def test_a_whole_key_that_does_not_come_is_fetched_by_partitions(bus: Client, why: str) -> None:
    go_on = asyncio.Event()

    async def handler(_change: Change) -> None:
        await go_on.wait()

    assert bus.connected_url is not None
    assert bus.connected_url.port is not None
    with TcpProxy(bus.connected_url.port) as proxy:
        worker = Worker(
            store="s",
            keys=["k"],
            servers=f"nats://127.0.0.1:{proxy.port}",
            worker_id="w",
            handler=handler,
            fetch_timeout_s=PATIENCE_S if why == "lost" else SILENCE_S,
        )
        async with held(bus, half=why != "silence") as asked, worker:
            if why == "lost":
                await first_chunk(worker)
                proxy.cut()
                proxy.resume()
            await worker.wait_until("k", lambda: bool(worker.health().keys[0].split_because), timeout_s=PATIENCE_S)
            health = worker.health().keys[0]
            assert not health.ready
            if why != "lost":
                assert WHOLE in health.split_because
                assert "of silence" in health.split_because
            go_on.set()
            await worker.wait_ready(timeout_s=PATIENCE_S)
            assert len(asked) == 1
            assert {row.row_id: row.value for row in worker.rows("k")} == ROWS
            assert worker.health().keys[0].split_because == ""


async def test_so_is_one_that_an_application_reads_at_once(bus: Client) -> None:
    assert bus.connected_url is not None
    config = WorkerConfig(store="s", keys=("k",), servers=(bus.connected_url.geturl(),), worker_id="w")
    async with (
        held(bus) as asked,
        connected(NatsBus.prepared, config, worker_log(logging.getLogger("ringcast"))) as connection,
        FetchClient.open(connection, SILENCE_S) as fetches,
    ):
        parts = await read_key(fetches, "s", "k")
    assert len(asked) == 1
    assert {row.row_id: row.value for part in parts for row in part.rows} == ROWS
