"""The last-known-good rows of a worker on its disk: read at the start, and written behind the handler.

A partition's rows and its ``applied`` change in one transaction, so whenever the process ends, the file has each
partition as it was at some moment. The worker never waits for it: a slow disk makes the file older, a full or broken
one leaves it as it was, which is said in the log, in a metric and in ``Worker.health()``.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec
from ringcast_sqlite import Database, StoreCorruptError, StoreError
from ringcast_wire import Backoff, EventLog, MismatchError

from ringcast._cache import file
from ringcast._cache.directory import CachePlace
from ringcast._cache.file import DamagedError, Identity, OtherError, StoredPartition
from ringcast._common.config import WorkerConfig
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.snapshots import MAX_WRITE_ROWS, PartitionSave

_INTERVAL_S: Final = 0.1
"""Least time between two writes; what changes meanwhile goes with the next."""
_FAILURES: Final = (StoreError, sqlite3.Error, OSError)


class CachedKey(Protocol):
    """A config key whose partitions are kept on disk."""

    @property
    def machine(self) -> KeyMachine:
        """What has them in memory, and says what has changed."""

    @property
    def staleness_s(self) -> float:
        """For how long changes of it may have been missed."""


class Cache:
    """The cache of one worker. ``found``: what the last life left, by config key."""

    def __init__(self, config: WorkerConfig, log: EventLog) -> None:
        self.place = CachePlace(Path(config.cache_dir), config.store, config.worker_id)
        self.identity: Identity | None = None
        self.found: dict[str, list[StoredPartition]] = {}
        self.restored_partitions = 0
        self.restored_rows = 0
        self.write_failures = 0
        self.sets_aside = 0
        self.set_aside_because = ""
        self.failing_because = ""
        self._config = config
        self._log = log
        self._held = False
        self._database: Database | None = None
        self._sessions: Mapping[str, CachedKey] = {}
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, config: WorkerConfig, log: EventLog) -> AsyncIterator[Cache | None]:
        """The worker's cache with what was found in it, if there is to be one; writes what is left in the end.

        Raises:
            InUseError: another process uses it.
        """
        if not config.cache_dir:
            yield None
            return
        cache = cls(config, log)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(cache.place.held())
            except OSError as error:  # somebody has to mend that: it is not tried again
                cache._failed(error)
            else:
                cache._held = True
                stack.push_async_callback(cache._close)
                await cache._open()
            yield cache

    # ---- the start

    async def _open(self) -> None:
        """Opens the file and reads it; one that can't be used is set aside, and a new one takes its place."""
        try:
            await self._read(await self._open_file())
        except (DamagedError, OtherError, MismatchError, msgspec.MsgspecError, *_FAILURES) as error:
            if not isinstance(error, _FAILURES) or _is_damage(error):
                await self.abandon(str(error))
            else:
                self._failed(error)
                await self._close_file()

    async def _open_file(self) -> Database:
        self._database = Database(self.place.path, readers=1, durable=False)
        await self._database.open()
        await self._database.write(file.prepare)
        return self._database

    async def _read(self, database: Database) -> None:
        started = time.perf_counter()
        await database.read(file.check)
        identity = await database.read(file.read_identity)
        if identity is None:
            return
        if (identity.store, identity.worker_id) != (self._config.store, self._config.worker_id):
            raise OtherError(f"it is of worker {identity.worker_id} of store {identity.store}")
        identity.settings.require(mode=self._config.mode, partition_count=self._config.partition_count)
        count = identity.settings.partition_count

        def read(connection: sqlite3.Connection) -> dict[str, list[StoredPartition]]:
            return {key: file.read_key(connection, key, count) for key in self._config.keys}

        found = await database.read(read)
        self.identity, self.found = identity, {key: parts for key, parts in found.items() if parts}
        self.restored_partitions = sum(map(len, self.found.values()))
        self.restored_rows = sum(len(part.rows) for parts in self.found.values() for part in parts)
        self._log.info(
            "cache was read",
            path=str(self.place.path),
            partitions=self.restored_partitions,
            rows=self.restored_rows,
            seconds=round(time.perf_counter() - started, 3),
        )

    # ---- the store is known

    def difference(self, identity: Identity) -> str | None:
        """Why what was found is of no use for this store, if so."""
        return self.identity.difference(identity) if self.identity is not None else None

    async def follow(self, identity: Identity, sessions: Mapping[str, CachedKey]) -> None:
        """Writes from now on what changes in the sessions of this store."""
        self.identity = identity
        if not self._held:
            return
        self._sessions = sessions
        if self._database is not None:
            try:
                await self._database.write(file.write_identity(identity))
                await self._database.write(file.keep_only(self._config.keys))
            except _FAILURES as error:
                await self._could_not_write(error)
        self._task = asyncio.create_task(self._run(), name="ringcast-cache")

    async def abandon(self, reason: str) -> None:
        """What was found is of no use: it is set aside, and a new file takes its place if that can be."""
        try:
            await self.set_aside(reason)
        except (OtherError, DamagedError, *_FAILURES) as error:
            self._failed(error)
            await self._close_file()

    async def set_aside(self, reason: str) -> None:
        """Renames the file and begins a new one. What was found is not used."""
        await self._close_file()
        self.found, self.identity = {}, None
        self.restored_partitions = self.restored_rows = 0
        aside = self.place.set_aside()
        self.sets_aside += 1
        self.set_aside_because = reason
        self._log.error(
            "cache can't be used and was set aside: the worker goes on without what it held",
            path=str(aside),
            reason=reason,
        )
        await self._open_file()

    # ---- writing

    def changed(self) -> None:
        """There is something to write."""
        self._changed.set()

    @property
    def behind(self) -> int:
        """Partitions that have changed since they were written."""
        return sum(session.machine.saving.pending for session in self._sessions.values() if session.machine.saving)

    async def _run(self) -> None:
        """Writes until stopped, and then what is left."""
        backoff = Backoff(random.random)
        while not self._stopping.is_set():
            await self._wait(self._changed, self._config.heads_s)
            self._changed.clear()
            if await self._write():
                backoff.reset()
                await self._wait(self._stopping, _INTERVAL_S)
            else:
                await self._wait(self._stopping, backoff.next_s())
            if self.behind:
                self._changed.set()
        while self.behind and await self._write():
            pass
        await self._write()  # as of now

    async def _write(self) -> bool:
        """Writes once; returns whether that was possible."""
        try:
            if self._database is None:
                await self._begin_anew(await self._open_file())
        except (OtherError, DamagedError, *_FAILURES) as error:
            self._failed(error)
            await self._close_file()
            return False
        saves = self._take()
        staleness = {key: session.staleness_s for key, session in self._sessions.items()}
        now_ms = time.time() * 1000
        as_of_ms = {key: int(now_ms - age_s * 1000) for key, age_s in staleness.items()}
        current = [key for key in self._sessions if staleness[key] == 0 and not self._pending(key)]
        try:
            assert self._database is not None
            await self._database.write(file.write(saves, as_of_ms, current))
        except BaseException as error:
            self._put_back(saves)
            if not isinstance(error, _FAILURES):
                raise
            await self._could_not_write(error)
            return False
        if self.failing_because:
            self.failing_because = ""
            self._log.info("cache is written again", path=str(self.place.path))
        return True

    def _take(self) -> dict[str, list[PartitionSave]]:
        saves: dict[str, list[PartitionSave]] = {}
        room = MAX_WRITE_ROWS
        for key, session in self._sessions.items():
            if room > 0 and session.machine.saving is not None and session.machine.saving.pending:
                saves[key] = session.machine.saving.take(room)
                room -= sum(save.size for save in saves[key])
        return saves

    def _pending(self, key: str) -> bool:
        saving = self._sessions[key].machine.saving
        return saving is not None and saving.pending > 0

    def _put_back(self, saves: Mapping[str, list[PartitionSave]]) -> None:
        for key, of_key in saves.items():
            saving = self._sessions[key].machine.saving
            assert saving is not None
            saving.failed(of_key)

    async def _begin_anew(self, database: Database) -> None:
        """Empties the file, which could not be used before, and has everything written."""
        assert self.identity is not None
        await database.write(file.keep_only(()))
        await database.write(file.write_identity(self.identity))
        for session in self._sessions.values():
            if session.machine.saving is not None:
                session.machine.saving.forget()
                session.machine.saving.rewrite(session.machine.partitions.values())

    async def _could_not_write(self, error: BaseException) -> None:
        """A full disk may have room again later; in the place of a file that broke, the next write makes a new one."""
        self._failed(error)
        if not _is_damage(error):
            return
        identity = self.identity
        await self.abandon(str(error))
        self.identity = identity
        await self._close_file()

    def _failed(self, error: BaseException) -> None:
        self.write_failures += 1
        if not self.failing_because:
            self._log.error("cache can't be written: it stays as it is, and the worker goes on", error=str(error))
        self.failing_because = str(error)

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Waits for an event, or for the stop, or until the time is over."""
        if self._stopping.is_set():
            return
        waiting = {asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._stopping.wait())}
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    # ---- the end

    async def _close(self) -> None:
        self._stopping.set()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=self._config.drain_timeout_s)
            if late:
                self._log.warning("cache was not written in time: it stays older than it could be")
                self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._close_file()

    async def _close_file(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()


def _is_damage(error: BaseException) -> bool:
    """Whether the file is at fault, and not the disk or whoever else uses it."""
    cause = error if isinstance(error, sqlite3.Error) else error.__cause__
    if isinstance(error, StoreCorruptError):
        return True
    code = getattr(cause, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)
