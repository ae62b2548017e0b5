"""An agent for which NATS has no connection left: that for the seals of groups. It runs here, with shorter patience."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from ringcast.dispatch import Consumer
from ringcast.groups import read_groups
from ringcast_heartbeat_agent.app import App
from ringcast_heartbeat_agent.config import Config
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer
from ringcast_testkit.dispatch import Followed

MOST_CONNECTIONS = 24


@contextlib.asynccontextmanager
async def filled(url: str) -> AsyncIterator[list[Client]]:
    """As many connections as the server takes."""
    clients: list[Client] = []
    try:
        with contextlib.suppress(nats.errors.Error, OSError):  # the connection may end before its reason is read
            while True:
                clients.append(await nats.connect(url, allow_reconnect=False))
        yield clients
    finally:
        for client in clients:
            await client.close()


@contextlib.asynccontextmanager
async def serving(config: Config) -> AsyncIterator[App]:
    """An agent that serves."""
    app = App(config)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.run())
        async with asyncio.timeout(PATIENCE_S):
            await app.ready.wait()
        try:
            yield app
        finally:
            app.stop()


@contextlib.asynccontextmanager
async def consuming(app: App, store: str) -> AsyncIterator[Followed]:
    """A consumer of a group, which acknowledges everything."""
    address = app.addresses["grpc"]
    async with Consumer(address, store=store, key="list", group="g", name="one", token="") as consumer:
        followed = Followed(consumer, lambda delivery: delivery.ack())
        running = asyncio.create_task(followed.run())
        try:
            yield followed
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_without_a_connection_for_seals_groups_go_on_and_the_agent_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    http_get: Any,
    writer_to: Any,
    store_name: str,
) -> None:
    keeper = "ringcast_heartbeat_agent.dispatch.seal_keeper"
    monkeypatch.setattr(f"{keeper}._PATIENCE_S", 1.0)
    monkeypatch.setattr(f"{keeper}._AGAIN_S", 0.2)
    monkeypatch.setattr("ringcast_heartbeat_agent.dispatch.seal_service._CONNECT_S", 0.3)
    caplog.set_level(logging.INFO)
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with (
        NatsServer(tmp_path / "nats", max_connections=MOST_CONNECTIONS) as server,
        ConfigServiceProcess(tmp_path / "service", nats_url=server.url, database=database) as service,
    ):
        writer = writer_to(service)
        await asyncio.to_thread(writer.create, store_name)
        await asyncio.to_thread(writer.put, store_name, "list", "a", "1")
        anywhere: Any = dict.fromkeys(("grpc_listen", "http_listen", "metrics_listen"), "127.0.0.1:0")
        config = Config(nats=(server.url,), agent_id="full", token_file="off", **anywhere)
        async with serving(config) as app:
            at = f"http://{app.addresses['http']}"

            async def group() -> Any:
                answer = await asyncio.to_thread(http_get, f"{at}/ringcast/v1/status")
                return next((each for each in answer.body["groups"] if each["store"] == store_name), {})

            async def not_durable() -> bool:
                answer = await asyncio.to_thread(http_get, f"http://{app.addresses['metrics']}/metrics")
                return "ringcast_agent_groups_not_durable 1.0" in answer.body

            reads = f"{at}/v1.0/configuration/{store_name}?key=list"
            assert (await asyncio.to_thread(http_get, reads)).status == 200  # its connection for reads is made
            async with filled(server.url) as clients:
                await clients.pop().close()  # which leaves room for the group's worker
                async with consuming(app, store_name) as one:
                    await one.values({"a": "1"})
                    why = (await group())["not_durable_because"]
                    assert "the agent has no connection to NATS for the seals of groups" in why
                    assert server.log_of("maximum connections exceeded")  # not always read
                    assert await not_durable()
                    await asyncio.to_thread(writer.put, store_name, "list", "a", "2")
                    await one.values({"a": "2"})
                    assert "event=groups.connection_failed" in caplog.text
                    told = [record for record in caplog.records if "event=groups.not_durable" in record.getMessage()]
                    assert len(told) == 1

                    await asyncio.to_thread(server.change, max_connections=2 * MOST_CONNECTIONS)
                    async with asyncio.timeout(PATIENCE_S):
                        while not ((await group())["durable"] and await read_groups(server.url, store_name)):  # noqa: ASYNC110
                            await asyncio.sleep(0.05)
                    assert not await not_durable()
                    await asyncio.to_thread(writer.put, store_name, "list", "a", "3")
                    await one.values({"a": "3"})
                    assert [delivery.value for delivery in one.deliveries] == ["1", "2", "3"]
