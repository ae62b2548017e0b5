"""Fetches for asyncio; the retries of both faces are tried with those of the Spark connector, in its test_fetch.py."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest
from ringcast_client import ConfigServiceClient
from ringcast_client._fetches.connection import FetchConnection
from ringcast_client.blocking import BlockingFetchClient
from ringcast_client.fetches import FetchClient, FetchRetries, partition_request
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import NatsLogin, UnavailableError, UnknownStoreError

PARTITIONS = 4


async def test_both_faces_give_the_same(
    nats_server: NatsServer, config_service: ConfigServiceProcess, store_name: str
) -> None:
    async with ConfigServiceClient(config_service.address) as service:
        await service.create_store(store_name, partition_count=PARTITIONS)
        await service.put(store_name, "list", "row", "value")
        expected = list(await service.heads(store_name, "list"))
    place = ((nats_server.url,), NatsLogin())
    requests = [partition_request(store_name, "list", partition) for partition in range(PARTITIONS)]
    async with FetchClient(*place, name="test") as client:
        assert (await client.heads(store_name, "list", 10)).heads == expected
        bodies = await asyncio.gather(*(client.fetch(request, 10, bytes) for request in requests))
        with pytest.raises(UnknownStoreError):
            await client.heads("nowhere", "list", 10)

    def read() -> tuple[list[int], list[bytes]]:
        with BlockingFetchClient(*place, name="test") as blocking:
            return blocking.heads(store_name, "list", 10).heads, list(blocking.fetch_bodies(requests, 10))

    assert await asyncio.to_thread(read) == (expected, bodies)


async def test_a_cancelled_request_leaves_the_connection_open_and_a_silence_ends_a_try(
    nats_server: NatsServer, config_service: ConfigServiceProcess, store_name: str
) -> None:
    async with ConfigServiceClient(config_service.address) as service:
        await service.create_store(store_name, partition_count=PARTITIONS)
        await service.put(store_name, "list", "row", "value")
    retries = FetchRetries(silence_s=0.2)
    async with FetchClient((nats_server.url,), NatsLogin(), name="test", retries=retries) as client:
        before = await client.heads(store_name, "list", 10)
        config_service.pause()
        try:
            under_way = asyncio.create_task(client.heads(store_name, "list", 10))
            await asyncio.sleep(0.05)
            under_way.cancel()
            with pytest.raises(asyncio.CancelledError):
                await under_way
            with pytest.raises(UnavailableError, match=r"no answer within 0\.[0-2] s"):
                await client.fetch(partition_request(store_name, "list", 0), 2, bytes)
        finally:
            config_service.resume()
        assert await client.heads(store_name, "list", 10) == before


async def test_why_a_login_is_refused_is_said_where_its_connection_broke_first(tmp_path: Path) -> None:
    """The server ends it as soon as it has read the password, which can take its answer away."""
    with NatsServer(tmp_path, authorization={"user": "a", "password": "right"}) as server:
        broken = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(await there.readline())
            if not broken.is_set():
                broken.set()
                linger = struct.pack("ii", 1, 0)  # a reset in place of an end
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                await reader.readline()
            else:
                back.write(await reader.readline())
                writer.write(await there.readline())
                await writer.drain()
            writer.close()
            back.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as link:
            url = f"nats://127.0.0.1:{link.sockets[0].getsockname()[1]}"
            login = NatsLogin(user="a", password="wrong")
            with pytest.raises(UnavailableError, match=r"can't be reached: .*Authorization Violation"):
                await FetchConnection.open((url,), login, "test", 10)
        assert broken.is_set()
