from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import asyncpg
import nats
import psutil
import pytest
from ringcast_testkit import (
    PATIENCE_S,
    ManagedProcess,
    NatsServer,
    PostgresServer,
    PostgresStandby,
    ServerFailedError,
    TcpProxy,
)


async def test_nats_keeps_address_and_data_over_a_crash(nats_server: NatsServer) -> None:
    client = await nats.connect(nats_server.url)
    await client.jetstream().add_stream(name="s", subjects=["s"])
    await client.jetstream().publish("s", b"kept")
    await client.close()
    url = nats_server.url

    nats_server.kill()
    nats_server.restart()

    assert nats_server.url == url
    client = await nats.connect(nats_server.url)
    assert (await client.jetstream().get_last_msg("s", "s")).data == b"kept"
    await client.close()


async def test_postgres_keeps_committed_rows_over_a_crash(tmp_path: Path) -> None:
    with PostgresServer() as server:
        url = server.create_database()
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE t (x INT)")
        await connection.execute("INSERT INTO t VALUES (7)")
        server.kill()
        connection.terminate()
        server.restart()
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT x FROM t") == 7
        await connection.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_postgres_ends_with_all_that_it_started(killed: bool) -> None:
    with PostgresServer() as server:
        connection = await asyncpg.connect(server.create_database())
        postmaster = psutil.Process(server.server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        if killed:
            server.kill()
        connection.terminate()
    running = psutil.wait_procs(processes, timeout=PATIENCE_S)[1]
    assert not running
    assert not server.directory.parent.exists()
    server.close()  # once more is nothing


async def test_a_standby_that_lags_takes_over_without_the_last_commits() -> None:
    with PostgresServer() as primary, TcpProxy(primary.socket) as link:
        name = primary.create_database().partition("?")[0].rpartition("/")[2]
        url = f"postgresql://postgres@127.0.0.1:{link.port}/{name}?sslmode=disable"
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE t (x INT)")
        await connection.execute("INSERT INTO t VALUES (1)")
        with PostgresStandby(primary) as standby:
            await connection.execute("INSERT INTO t VALUES (2)")
            standby.wait_caught_up()
            standby.fall_behind()
            await connection.execute("INSERT INTO t VALUES (3)")
            primary.kill()
            link.redirect(standby.promote().socket)
            with pytest.raises((OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
                await connection.execute("INSERT INTO t VALUES (4)")
            connection = await asyncpg.connect(url)
            await connection.execute("INSERT INTO t VALUES (5)")
            assert [row[0] for row in await connection.fetch("SELECT x FROM t ORDER BY x")] == [1, 2, 5]
            await connection.close()
            primary.restart()  # what was lost can still be looked at
            old = await asyncpg.connect(primary.url(name))
            assert [row[0] for row in await old.fetch("SELECT x FROM t ORDER BY x")] == [1, 2, 3]
            await old.close()


def test_a_statement_that_the_database_refuses(shared_postgres: PostgresServer) -> None:
    with pytest.raises(ServerFailedError, match="does not exist"):
        shared_postgres.ask("SELECT * FROM nowhere")


async def test_postgres_databases_are_fresh(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    await connection.close()


def test_a_server_that_ends_early_shows_its_output() -> None:
    process = ManagedProcess("broken", [sys.executable, "-c", "print('why it failed')"])
    with pytest.raises(ServerFailedError, match="why it failed"):
        process.wait_until(lambda: False)


def test_pause_and_resume(nats_server: NatsServer) -> None:
    for _ in range(2):
        nats_server.pause()
        threads = psutil.Process(nats_server.process.pid).threads()
        assert {psutil.Process(thread.id).status() for thread in threads} == {psutil.STATUS_STOPPED}
        nats_server.pause()  # it is paused already
        nats_server.resume()
        os.waitid(os.P_PID, nats_server.process.pid, os.WCONTINUED)
    assert nats_server.terminate() in (0, 1)


def test_a_child_dies_with_the_process_that_started_it() -> None:
    code = textwrap.dedent("""
        import sys, threading
        from ringcast_testkit import ManagedProcess
        child = ManagedProcess("child", [sys.executable, "-c", "import threading; threading.Event().wait()"])
        print(child.pid, flush=True)
        threading.Event().wait()
    """)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    while "--pdeathsig" in child.cmdline():  # setpriv has not asked for the signal yet
        time.sleep(0.005)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
