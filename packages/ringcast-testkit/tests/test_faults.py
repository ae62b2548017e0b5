"""The helpers that make faults: a proxy, a cluster, a disk that is full, a worker process."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.errors import NoStreamResponseError
from ringcast_client import ConfigServiceClient
from ringcast_testkit import (
    PATIENCE_S,
    ConfigServiceProcess,
    History,
    ManagedProcess,
    NatsCluster,
    NatsServer,
    ServerFailedError,
    SmallDisk,
    TcpProxy,
    WorkerProcess,
    until_done,
)


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[TcpProxy]:
    """A proxy before a server that sends everything back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with TcpProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()


async def said(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes) -> float:
    """Sends something, takes the echo, and returns how long that took."""
    began = time.monotonic()
    stream[1].write(data)
    async with asyncio.timeout(PATIENCE_S):
        assert await stream[0].readexactly(len(data)) == data
    return time.monotonic() - began


async def test_a_well_network_passes_everything(echo: TcpProxy) -> None:
    stream = await asyncio.open_connection("127.0.0.1", echo.port)
    blob = bytes(range(256)) * 20_000
    writing = asyncio.create_task(said(stream, blob))
    await writing
    assert echo.accepted == 1
    stream[1].close()


async def test_a_cut_breaks_old_and_new_connections_until_it_is_over(echo: TcpProxy) -> None:
    stream = await asyncio.open_connection("127.0.0.1", echo.port)
    await said(stream, b"before")
    echo.cut()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await said(stream, b"lost")
    late = await asyncio.open_connection("127.0.0.1", echo.port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await said(late, b"lost")
    echo.resume()
    await said(await asyncio.open_connection("127.0.0.1", echo.port), b"after")


async def test_silence_keeps_connections_and_holds_what_was_sent(echo: TcpProxy) -> None:
    stream = await asyncio.open_connection("127.0.0.1", echo.port)
    await said(stream, b"before")
    echo.silence()
    stream[1].write(b"held")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await stream[0].readexactly(4)
    echo.resume()
    async with asyncio.timeout(PATIENCE_S):
        assert await stream[0].readexactly(4) == b"held"


async def test_a_mute_server_hears_what_it_is_told() -> None:
    heard = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        heard.set()
        writer.write(b"answer")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        with TcpProxy(server.sockets[0].getsockname()[1]) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            proxy.mute()
            writer.write(b"told")
            async with asyncio.timeout(PATIENCE_S):
                await heard.wait()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reader.read(6)
            proxy.resume()
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.readexactly(6) == b"answer"
            writer.close()


async def test_a_delay_counts_in_both_directions(echo: TcpProxy) -> None:
    stream = await asyncio.open_connection("127.0.0.1", echo.port)
    echo.delay(0.1)
    assert await said(stream, b"slow") >= 0.2
    echo.resume()
    assert await said(stream, b"fast") < 0.1


async def test_a_trickle_bounds_the_rate_and_what_is_held(echo: TcpProxy) -> None:
    stream = await asyncio.open_connection("127.0.0.1", echo.port)
    echo.trickle(20_000)
    assert await said(stream, bytes(4_000)) >= 0.15
    # Far more than it may hold: whoever sends has to wait.
    stream[1].write(bytes(16 << 20))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await stream[1].drain()


async def test_the_leader_of_a_cluster_dies_and_another_takes_its_place(tmp_path: Path) -> None:
    users = {"users": [{"user": "anyone", "password": "secret"}]}
    login: dict[str, Any] = {"user": "anyone", "password": "secret"}
    with NatsCluster(tmp_path, login=login, authorization=users) as cluster:
        client = await nats.connect(list(cluster.urls), **login)
        js = client.jetstream(timeout=5)
        await js.add_stream(name="s", subjects=["s"], num_replicas=3)
        # Its leader may not listen yet.
        await until_done(lambda: js.publish("s", b"kept"), NoStreamResponseError)
        info = await js.stream_info("s")
        assert info.cluster is not None
        assert info.cluster.leader is not None
        cluster.servers[info.cluster.leader].kill()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    assert (await js.get_msg("s", 1)).data == b"kept"
                    break
                except (nats.errors.Error, nats.js.errors.Error, TimeoutError):
                    continue
        now = (await js.stream_info("s")).cluster
        assert now is not None
        assert now.leader != info.cluster.leader
        cluster.servers[info.cluster.leader].restart()
        await client.close()


async def test_a_full_disk_refuses_to_store_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    if not SmallDisk.supported():
        pytest.skip("no right to make a mount namespace here")
    with SmallDisk(tmp_path / "disk", 8 << 20) as disk:
        store = {"store_dir": str(disk.path / "js"), "max_file_store": 4 << 20}
        with NatsServer(tmp_path / "nats", prefix=disk.prefix, jetstream=store) as server:
            client = await nats.connect(server.url)
            js = client.jetstream(timeout=2)
            await js.add_stream(name="s", subjects=["s"])
            await js.publish("s", bytes(1000))
            assert os.listdir(disk.path) == [], "the disk is to be seen outside"
            assert disk.fill() > 1 << 20
            assert disk.free_bytes == 0
            with pytest.raises((nats.errors.Error, nats.js.errors.Error, TimeoutError)):
                await _publish_many(js)
            disk.free()
            server.kill()
            server.restart()
            assert (await _published(js)) > 1
            await client.close()


async def _publish_many(js: nats.js.JetStreamContext) -> None:
    for _ in range(2000):
        await js.publish("s", bytes(1000))


async def _published(js: nats.js.JetStreamContext) -> int:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return (await js.publish("s", b"x")).seq
            except (nats.errors.Error, nats.js.errors.Error, NoStreamResponseError, TimeoutError):
                continue


async def test_a_worker_process_tells_its_story(
    nats_server: NatsServer, config_service: ConfigServiceProcess, store_name: str
) -> None:
    history = History()
    worker = WorkerProcess("w", servers=nats_server.url, store=store_name, keys=("k",), history=history)
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store(store_name, partition_count=4)
        first = await client.put(store_name, "k", "a", "1")
        with worker:
            await asyncio.to_thread(worker.wait_ready)
            assert await asyncio.to_thread(worker.dump) == {"k": {"a": ("1", first.version, first.partition)}}
            await asyncio.to_thread(worker.pause)
            last = await client.put(store_name, "k", "a", "2")
            await asyncio.to_thread(worker.resume)
            assert await asyncio.to_thread(
                history.wait,
                lambda: any(r.event == "row" and r.fields["version"] == last.version for r in history.reports()),
                PATIENCE_S,
            )
            assert await asyncio.to_thread(worker.terminate) == 0
    told = [report.event for report in history.reports() if report.event not in ("row", "dump", "dumped")]
    assert told == ["started", "assigned", "ready", "paused", "resumed", "revoked", "ended"]
    times = [report.at_ns for report in history.reports() if report.event != "resumed"]
    assert times == sorted(times)


def test_a_worker_process_that_fails_says_why(nats_url: str, store_name: str) -> None:
    history = History()
    with (
        WorkerProcess("w", servers=nats_url, store=store_name, keys=("k",), history=history) as worker,
        pytest.raises(ServerFailedError, match=f"store '{store_name}' does not exist"),
    ):
        worker.wait_ready()
    assert [report.event for report in history.reports()] == ["started", "failed"]


def test_a_disk_that_can_not_be_filled_twice(tmp_path: Path) -> None:
    if not SmallDisk.supported():
        pytest.skip("no right to make a mount namespace here")
    with SmallDisk(tmp_path / "disk", 1 << 20) as disk:
        assert disk.fill() == 1 << 20
        assert disk.fill() == 0
        writer = ManagedProcess("dd", [*disk.prefix, "dd", "if=/dev/zero", f"of={disk.path}/x", "count=1"])
        assert writer.wait() != 0
        assert any(os.strerror(errno.ENOSPC) in line for line in writer.log)
        disk.free()
        assert disk.free_bytes == 1 << 20
