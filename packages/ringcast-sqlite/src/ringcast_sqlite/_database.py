"""Connections to one SQLite file: a writer on a thread of its own, and a few readers.

SQLite in WAL mode has one writer at a time and readers that see the last commit, unhindered. This layer gives each
side its threads, so that an asyncio program waits for a disk without stopping.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from ringcast_sqlite._connection import Work, connect, transaction
from ringcast_sqlite._errors import StoreClosedError, StoreError
from ringcast_sqlite._threads import Threads

T = TypeVar("T")


class Database:
    """One SQLite file, for use by one event loop; other processes may use the same file.

    Construct it, then enter it (``async with``) or call :meth:`open`. With ``durable`` (the default) a commit is on the
    disk when :meth:`write` returns; without, a power cut may lose the last commits, but never damage the file.

    Args:
        path: the file; created if it is not there. Its directory must exist.
        readers: reads that run at once (1 or more).
        snapshots: long reads (:meth:`snapshot`) open at once; one more waits.
        max_waiting: calls of :meth:`write` and of :meth:`read`, each, that may wait or run at once.
    """

    def __init__(
        self, path: Path | str, *, readers: int = 2, snapshots: int = 8, max_waiting: int = 1024, durable: bool = True
    ) -> None:
        if min(readers, snapshots, max_waiting) < 1:
            raise ValueError("readers, snapshots and max_waiting must be 1 or more")
        self.path = Path(path)
        self._durable = durable
        self._reader_count = readers
        self._writer: sqlite3.Connection | None = None
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._write_thread = Threads(self.path, "write", 1, max_waiting)
        self._read_threads = Threads(self.path, "read", readers, max_waiting)
        self._snapshot_threads = Threads(self.path, "snapshot", snapshots, max_waiting)
        self._snapshot_slots = asyncio.Semaphore(snapshots)
        self._closed = False

    async def open(self) -> None:
        """Opens the file and its connections.

        Raises:
            StoreOpenError: the file can't be opened or is no SQLite database.
            StoreBusyError: another process holds it locked for over 5 s.
        """
        if self._writer is not None:
            raise StoreError(f"database {self.path} is open already")
        self._writer = await self._run(self._write_thread, lambda: self._connect(writer=True))
        for _ in range(self._reader_count):
            self._idle.put(await self._run(self._read_threads, lambda: self._connect(writer=False)))

    async def close(self) -> None:
        """Waits for the calls that run, then closes every connection. Calling it again is harmless."""
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._shut)

    async def write(self, work: Work[T]) -> T:
        """Runs ``work`` with the writer connection inside ``BEGIN IMMEDIATE`` … ``COMMIT`` and returns its result.

        Calls run one after the other, in order. When ``work`` raises, everything it did is rolled back. Cancelling the
        wait does not stop a transaction that has begun: it may commit.

        Raises:
            StoreBusyError: ``max_waiting`` calls wait already, or another process kept the lock for over 5 s.
            StoreFullError, StoreCorruptError: the disk or the file fails; nothing is half-written.
            StoreClosedError: the database is closed.
        """
        writer = self._writer
        if writer is None or self._closed:
            raise StoreClosedError(f"database {self.path} is not open")
        return await self._run(self._write_thread, lambda: _in_transaction(writer, "BEGIN IMMEDIATE", work))

    async def read(self, work: Work[T]) -> T:
        """Runs ``work`` with a reader connection on one snapshot of the database and returns its result.

        Raises:
            StoreBusyError: ``max_waiting`` calls wait already.
            StoreClosedError: the database is closed.
        """
        if self._writer is None or self._closed:
            raise StoreClosedError(f"database {self.path} is not open")
        return await self._run(self._read_threads, lambda: self._read(work))

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """A snapshot that stays the same over several reads, on a connection of its own.

        Meant for reading page by page. While it is open the write-ahead log can't be trimmed: don't keep it for long.
        """
        async with self._snapshot_slots:
            connection = await self._run(self._snapshot_threads, lambda: self._connect(writer=False))
            snapshot = Snapshot(self, connection)
            try:
                await snapshot.read(lambda found: found.execute("SELECT count(*) FROM sqlite_schema").fetchone())
                yield snapshot
            finally:
                # Shielded: a connection that is left behind would pin the log.
                await asyncio.shield(snapshot.end())

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, threads: Threads, call: Callable[[], T]) -> T:
        if self._closed:
            raise StoreClosedError(f"database {self.path} is closed")
        return await threads.run(call)

    def _read(self, work: Work[T]) -> T:
        connection = self._idle.get()  # as many as there are threads: never waits
        try:
            return _in_transaction(connection, "BEGIN", work)
        finally:
            self._idle.put(connection)

    def _connect(self, *, writer: bool) -> sqlite3.Connection:
        return connect(self.path, writer=writer, durable=self._durable)

    def _shut(self) -> None:
        for threads in (self._snapshot_threads, self._read_threads, self._write_thread):
            threads.shut()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()
        if self._writer is not None:
            self._writer.close()  # last: it trims the write-ahead log


class Snapshot:
    """What :meth:`Database.snapshot` hands out: one unchanging view."""

    def __init__(self, database: Database, connection: sqlite3.Connection) -> None:
        self._database = database
        self._connection = connection
        self._lock = threading.Lock()
        connection.execute("BEGIN")

    async def read(self, work: Work[T]) -> T:
        """Runs ``work`` on the snapshot; calls at once run one after the other."""
        database = self._database
        return await database._run(database._snapshot_threads, lambda: self._locked(work))

    async def end(self) -> None:
        """Closes the snapshot once its running read is done."""
        await asyncio.to_thread(self._end)

    def _locked(self, work: Work[T]) -> T:
        with self._lock:
            return work(self._connection)

    def _end(self) -> None:
        with self._lock:
            self._connection.close()


def _in_transaction(connection: sqlite3.Connection, begin: str, work: Work[T]) -> T:
    with transaction(connection, begin):
        return work(connection)
