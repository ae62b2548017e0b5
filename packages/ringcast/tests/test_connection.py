"""What the shell does about the habits of the NATS client."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from ringcast import UnavailableError, Worker
from ringcast._bus.nats_bus import within
from ringcast._bus.nats_client import WorkerClient
from ringcast_testkit import PATIENCE_S, NatsServer, until

_INFO = {"server_id": "one", "version": "2.10.0", "max_payload": 1_048_576, "proto": 1, "headers": True}


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_first_connection_that_loses_a_cancellation_ends_in_time(cancelled: bool) -> None:
    """Or a worker whose last attempt was refused as its time was over would try without end, and give no reason."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def attempts() -> None:
        begun.set()
        try:
            with suppress(asyncio.CancelledError):  # as the client does where an answer comes in the same turn
                await asyncio.sleep(3_600)
            await asyncio.sleep(3_600)
        finally:
            ended.set()

    waiting = asyncio.create_task(within(3_600 if cancelled else 0.01, attempts()))
    if cancelled:
        await begun.wait()
        waiting.cancel()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(asyncio.CancelledError if cancelled else TimeoutError):
            await waiting
    assert ended.is_set()


async def test_a_refused_login_is_told_though_the_connection_only_broke_since() -> None:
    """A server closes as soon as it has refused: whether its word or the end comes first is chance."""
    tries = 0

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.write(f"INFO {json.dumps(_INFO)}\r\n".encode())
        await reader.readline()
        if tries == 1:
            writer.write(b"-ERR 'Authorization Violation'\r\n")
            await writer.drain()
            await reader.read()
        else:
            given: socket.socket = writer.get_extra_info("socket")
            given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(UnavailableError, match="Authorization Violation"):
            await Worker(store="s", keys=["k"], servers=url, worker_id="w", connect_timeout_s=3.0).start()


async def test_a_server_without_room_for_a_connection_is_named_as_the_reason(tmp_path: Path) -> None:
    """It greets, says that it is full and closes: a login that is written meanwhile only breaks."""
    with NatsServer(tmp_path / "nats", max_connections=1) as server:
        first = WorkerClient()
        await first.connect(server.url)
        try:
            worker = Worker(store="s", keys=["k"], servers=server.url, worker_id="w", connect_timeout_s=3.0)
            with pytest.raises(
                UnavailableError, match="did not answer within 3 s: nats: 'maximum connections exceeded'"
            ):
                await worker.start()
        finally:
            await first.close()


async def test_after_a_login_that_broke_a_server_that_says_nothing_gets_the_next_one() -> None:
    tries = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.write(f"INFO {json.dumps(_INFO)}\r\n".encode())
        if tries == 1:
            given: socket.socket = writer.get_extra_info("socket")
            given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
            await writer.drain()
            await reader.readline()
        else:
            while (await reader.readline()) not in (b"PING\r\n", b""):
                pass
            writer.write(b"PONG\r\n")
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        client = WorkerClient()
        async with asyncio.timeout(PATIENCE_S):
            await client.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", reconnect_time_wait=0)
        assert client.is_connected
        assert tries == 2
        await client.close()


async def test_the_version_of_the_server_is_known_while_the_next_has_not_told_its_own() -> None:
    """Or consumers would be made through a subject for servers before 2.9, to which workers have no right."""
    begun, silent = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"INFO {json.dumps(_INFO)}\r\n".encode())
        while (await reader.readline()) != b"PING\r\n":
            pass
        writer.write(b"PONG\r\n")
        await begun.wait()
        writer.close()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.set()
        await reader.read()
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as first,
        await asyncio.start_server(says_nothing, "127.0.0.1", 0) as second,
    ):
        urls = [f"nats://127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in (first, second)]
        client = WorkerClient()
        await client.connect(urls, dont_randomize=True, reconnect_time_wait=0)
        try:
            assert client.connected_server_version.minor == 10
            first.close()
            begun.set()
            await silent.wait()
            await until(lambda: super(WorkerClient, client).connected_server_version.major == 0)
            assert client.connected_server_version.minor == 10
        finally:
            await client.close()
