"""The connection layer against real files, other processes and real crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ringcast_sqlite import (
    Database,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreOpenError,
    Work,
)

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO t VALUES (2)")
print("held", flush=True)
sys.stdin.read()
"""


def insert(value: int) -> Work[None]:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (?)", (value,))

    return work


def values(connection: sqlite3.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT v FROM t ORDER BY v")]


async def create(database: Database) -> None:
    await database.write(lambda connection: connection.execute("CREATE TABLE t (v INTEGER PRIMARY KEY)"))


async def test_settings_hold_on_every_connection(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db", readers=1) as database:

        def settings(connection: sqlite3.Connection) -> list[object]:
            names = ("journal_mode", "foreign_keys", "busy_timeout", "synchronous", "query_only")
            return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

        assert await database.write(settings) == ["wal", 1, 5000, 2, 0]  # 2: FULL
        assert (await database.read(settings))[:3] == ["wal", 1, 5000]
        assert (await database.read(settings))[4] == 1
        async with database.snapshot() as snapshot:
            assert (await snapshot.read(settings))[4] == 1


async def test_a_failing_write_leaves_nothing(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db") as database:
        await create(database)

        def fails(connection: sqlite3.Connection) -> None:
            insert(1)(connection)
            raise LookupError("no")

        with pytest.raises(LookupError):
            await database.write(fails)
        await database.write(insert(2))
        assert await database.read(values) == [2]


async def test_writes_run_in_order_and_readers_do_not_wait(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db") as database:
        await create(database)
        entered, leave = threading.Event(), threading.Event()

        def slow(connection: sqlite3.Connection) -> None:
            insert(1)(connection)
            entered.set()
            assert leave.wait(10)

        running = asyncio.create_task(database.write(slow))
        await asyncio.to_thread(entered.wait, 10)
        later = [asyncio.create_task(database.write(insert(value))) for value in range(2, 20)]
        assert await database.read(values) == []  # the last commit, while a writer is at work
        leave.set()
        await asyncio.gather(running, *later)
        assert await database.read(values) == list(range(1, 20))


async def test_a_reader_can_not_write(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db") as database:
        await create(database)
        with pytest.raises(StoreOpenError, match="read-only"):
            await database.read(insert(1))


async def test_a_snapshot_does_not_change(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db") as database:
        await create(database)
        await database.write(insert(1))
        async with database.snapshot() as snapshot:
            await database.write(insert(2))
            assert await snapshot.read(values) == [1]
            assert await database.read(values) == [1, 2]
            assert await snapshot.read(values) == [1]
        async with database.snapshot() as snapshot:
            assert await snapshot.read(values) == [1, 2]


async def test_more_snapshots_than_allowed_wait(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db", snapshots=1) as database:
        await create(database)
        opened = asyncio.Event()

        async def second() -> list[int]:
            async with database.snapshot() as snapshot:
                opened.set()
                return await snapshot.read(values)

        async with database.snapshot():
            task = asyncio.create_task(second())
            await database.write(insert(1))
            assert not opened.is_set()
        assert await task == [1]


async def test_waiting_calls_are_bounded(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db", max_waiting=2) as database:
        await create(database)
        leave = threading.Event()
        held = [asyncio.create_task(database.write(lambda _: leave.wait(10))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StoreBusyError, match="2 calls wait already"):
            await database.write(insert(1))
        leave.set()
        await asyncio.gather(*held)
        await database.write(insert(1))


async def test_a_cancelled_write_keeps_its_place_until_it_is_done(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db", max_waiting=1) as database:
        await create(database)
        entered, leave = threading.Event(), threading.Event()

        def slow(connection: sqlite3.Connection) -> None:
            entered.set()
            assert leave.wait(10)
            insert(1)(connection)

        task = asyncio.create_task(database.write(slow))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StoreBusyError):
            await database.write(insert(2))
        leave.set()
        await database.close()
        with sqlite3.connect(tmp_path / "a.db") as connection:
            assert values(connection) == [1]


async def test_a_killed_process_leaves_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with Database(path) as database:
        await create(database)
        await database.write(insert(1))
        child = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdin is not None
        assert (await asyncio.to_thread(child.stdout.readline)).strip() == "held"
        blocked = asyncio.create_task(database.write(insert(3)))
        assert await database.read(values) == [1]
        os.kill(child.pid, signal.SIGKILL)
        await asyncio.to_thread(child.wait)
        child.stdin.close()
        child.stdout.close()
        await blocked
        assert await database.read(values) == [1, 3]


async def test_a_process_that_keeps_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringcast_sqlite._connection.BUSY_TIMEOUT_S", 0.02)
    path = tmp_path / "a.db"
    async with Database(path) as database:
        await create(database)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match="locked by another process"):
            await database.write(insert(1))
        other.execute("ROLLBACK")
        other.close()
        await database.write(insert(1))


async def test_two_openers_of_a_new_file(tmp_path: Path) -> None:
    databases = [Database(tmp_path / "a.db") for _ in range(6)]
    await asyncio.gather(*(database.open() for database in databases))
    await create(databases[0])
    await asyncio.gather(*(database.write(insert(index)) for index, database in enumerate(databases)))
    assert await databases[0].read(values) == list(range(6))
    await asyncio.gather(*(database.close() for database in databases))


async def test_files_that_can_not_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreOpenError, match="its directory does not exist"):
        await Database(tmp_path / "no" / "a.db").open()
    with pytest.raises(StoreOpenError, match="can't be opened"):
        await Database(tmp_path).open()
    (tmp_path / "text.db").write_text("this is no database, whatever its name says" * 100)
    with pytest.raises(StoreOpenError, match="is not an SQLite database"):
        async with Database(tmp_path / "text.db"):
            pass


async def test_an_sqlite_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreOpenError, match=r"is too old: 3\.35\.0 or later is needed"):
        await Database(tmp_path / "a.db").open()


async def test_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with Database(path) as database:
        await create(database)
        await database.write(lambda found: found.executemany("INSERT INTO t VALUES (?)", ((n,) for n in range(5000))))
    data = bytearray(path.read_bytes())
    data[4096 : len(data)] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    async with Database(path) as database:
        with pytest.raises(StoreCorruptError, match="is damaged"):
            await database.read(values)


async def test_a_full_disk(tmp_path: Path) -> None:
    async with Database(tmp_path / "a.db") as database:
        await create(database)
        await database.write(lambda connection: connection.execute("PRAGMA max_page_count = 3"))

        def fill(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT INTO t VALUES (?)", ((n,) for n in range(10_000)))

        with pytest.raises(StoreFullError, match="the disk is full"):
            await database.write(fill)
        assert await database.read(values) == []
        await database.write(insert(1))


async def test_closing(tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    with pytest.raises(StoreClosedError):
        await database.write(insert(1))
    await database.open()
    with pytest.raises(StoreError, match="open already"):
        await database.open()
    await create(database)
    running = asyncio.create_task(database.write(insert(1)))
    await asyncio.sleep(0)
    await database.close()
    await running  # what had begun was finished
    await database.close()
    for call in (database.write, database.read):
        with pytest.raises(StoreClosedError):
            await call(values)
    assert not (tmp_path / "a.db-wal").exists()


def test_bounds_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Database(tmp_path / "a.db", readers=0)
