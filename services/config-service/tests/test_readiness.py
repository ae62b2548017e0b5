"""Health tells reads, writes and the bus apart."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringcast_testkit import PATIENCE_S, NatsServer, PostgresServer
from ringcast_wire.grpc import SERVICE_NAME

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
READS, WRITES, BUS = (f"{SERVICE_NAME}/{part}" for part in ("reads", "writes", "bus"))
PORT = ("", SERVICE_NAME)
"""What load balancers ask for."""


async def until(address: str, wanted: int, *names: str) -> None:
    """Returns when health says so of each name."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in names:
            async with asyncio.timeout(PATIENCE_S):
                async for found in stub.Watch(health_pb2.HealthCheckRequest(service=name)):
                    if found.status == wanted:
                        break


async def serving(address: str) -> dict[str, bool]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return {
            name: (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
            for name in (READS, WRITES, BUS, *PORT)
        }


async def is_ready(service: Any) -> bool:
    """What the shipped manifests ask for."""

    def found() -> int:
        try:
            with urllib.request.urlopen(f"http://{service.app.metrics_address}/ready") as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    status = await asyncio.to_thread(found)
    assert status in {200, 503}
    return status == 200


async def test_without_nats_the_port_stays(
    start: Any, nats_server: NatsServer, tmp_path: Path, store_name: str
) -> None:
    async with start(nats_server.url, f"sqlite:{tmp_path / 'x.db'}", metrics_listen="127.0.0.1:0") as service:
        address = service.app.grpc_address
        assert set((await serving(address)).values()) == {True}
        await service.create(store_name)
        await asyncio.to_thread(nats_server.kill)
        await until(address, NOT_SERVING, BUS)
        assert await serving(address) == {READS: True, WRITES: True, BUS: False, **dict.fromkeys(PORT, True)}
        assert await is_ready(service)
        assert (await service.put(store_name, "a")).version == 1  # its event waits in the outbox
        await asyncio.to_thread(nats_server.start)
        await until(address, SERVING, BUS)


async def test_a_login_that_is_refused_for_a_while_ends_nothing(start: Any, tmp_path: Path, store_name: str) -> None:
    with NatsServer(tmp_path / "nats", authorization={"token": "first"}) as server:
        async with start(f"nats://first@127.0.0.1:{server.port}", f"sqlite:{tmp_path / 'x.db'}") as service:
            address = service.app.grpc_address
            await service.create(store_name)
            await asyncio.to_thread(partial(server.change, authorization={"token": "second"}))
            await until(address, NOT_SERVING, BUS)
            assert (await service.put(store_name, "a")).version == 1
            await asyncio.to_thread(partial(server.change, authorization={"token": "first"}))
            await until(address, SERVING, BUS)
            assert (await service.put(store_name, "a")).version == 2


async def test_without_the_database_only_the_bus_is_left(start: Any, nats_url: str, store_name: str) -> None:
    with PostgresServer() as server:
        async with start(nats_url, server.create_database()) as service:
            address = service.app.grpc_address
            await service.create(store_name)
            await until(address, SERVING, READS, WRITES, *PORT)
            await asyncio.to_thread(server.kill)
            await until(address, NOT_SERVING, READS, WRITES, *PORT)
            assert (await serving(address))[BUS]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await service.put(store_name, "a")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "the database" in (caught.value.details() or "")
            await asyncio.to_thread(server.restart)
            await until(address, SERVING, READS, WRITES, *PORT)
            assert (await service.put(store_name, "a")).version == 1


async def test_a_read_only_database_takes_the_writes_away(start: Any, nats_url: str, store_name: str) -> None:
    with PostgresServer() as server:
        url = server.create_database()
        async with start(nats_url, url, metrics_listen="127.0.0.1:0") as service:
            address = service.app.grpc_address
            await service.create(store_name)
            await service.put(store_name, "a")
            admin = await asyncpg.connect(url)
            await admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            await admin.execute("SELECT pg_reload_conf()")
            await until(address, NOT_SERVING, WRITES, *PORT)
            assert await serving(address) == {READS: True, WRITES: False, BUS: True, **dict.fromkeys(PORT, False)}
            assert not await is_ready(service)
            await admin.execute("SET default_transaction_read_only = off")
            await admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
            await admin.execute("SELECT pg_reload_conf()")
            await admin.close()
            await until(address, SERVING, WRITES, *PORT)
            assert (await service.put(store_name, "b")).version == 1


async def test_a_stop_takes_everything_away(start: Any, nats_url: str, tmp_path: Path) -> None:
    async with (
        start(nats_url, f"sqlite:{tmp_path / 'x.db'}") as service,
        grpc.aio.insecure_channel(service.app.grpc_address) as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in (READS, WRITES, BUS, *PORT)]
        assert {(await watch.read()).status for watch in watches} == {SERVING}
        stopping = asyncio.create_task(service.stop())
        assert {(await watch.read()).status for watch in watches} == {NOT_SERVING}
        for watch in watches:
            watch.cancel()
        await stopping
