"""The last known rows of a worker on its disk: read at the start, and written after the handler has had them.

A partition's rows and its ``applied`` change in one transaction, so whenever the process ends, the file has each
partition as it was at some moment. The worker never waits for it: a slow disk makes the file older, a full or broken
one leaves it as it was, which the log, a metric and ``Worker.health()`` show.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from ringcast_sqlite import Database, StoreCorruptError, StoreError
from ringcast_wire import Backoff, EventLog, MismatchError, Mode, event_within

from ringcast._cache import file
from ringcast._cache.directory import CachePlace
from ringcast._cache.file import DamagedError, Identity, OtherError, StoredPartition
from ringcast._cache.pending import CachedKey, PendingSaves
from ringcast._common.config import WorkerConfig

_INTERVAL_S: Final = 0.1
"""Least time between two writes; what changes meanwhile goes with the next."""
_FAILURES: Final = (StoreError, sqlite3.Error, OSError)
ALONE_S: Final = 12 * 3600.0
"""What a worker of a store with owners has had on its disk for longer it does not hand over before it is registered:
the registration that it had then is known for 17 hours from when its rows were current."""


class Cache:
    """The cache of one worker. ``found``: what the last life left, by config key."""

    def __init__(self, config: WorkerConfig, log: EventLog) -> None:
        self.place = CachePlace(Path(config.cache_dir), config.store, config.worker_id)
        self.identity: Identity | None = None
        self.found: dict[str, list[StoredPartition]] = {}
        self.restored_partitions = 0
        self.restored_rows = 0
        self._is_old = False
        """Whether some of what was found is so old that the registration which it goes with may be forgotten."""
        self.write_failures = 0
        self.quarantines = 0
        self.quarantined_because = ""
        self.failing_because = ""
        self._config = config
        self._log = log
        self._held = False
        self._database: Database | None = None
        self._pending = PendingSaves({})
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._known = asyncio.Event()
        """Set as long as the file has the identity as it is."""
        self._known.set()

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
                await stack.enter_async_context(cache.place.locked())
            except OSError as error:  # an operator has to repair that: it is not tried again
                cache._failed(error)
            else:
                cache._held = True
                stack.push_async_callback(cache._close)
                await cache._open()
            yield cache

    # ---- the start

    async def _open(self) -> None:
        """Opens the file and reads it; one that can't be used is quarantined, and a new one takes its place."""
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
        now_ms, ages_ms = time.time() * 1000, [part.as_of_ms for parts in self.found.values() for part in parts]
        has_owners = identity.settings.mode is Mode.PARTITIONED and not self._config.observe
        self._is_old = has_owners and any(abs(now_ms - as_of_ms) > ALONE_S * 1000 for as_of_ms in ages_ms)
        self._log.info(
            "cache.read",
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
        self._pending = PendingSaves(sessions)
        self._known.clear()
        if self._database is not None:
            try:
                await self._database.write(file.write_identity(identity))
                self._known.set()
                await self._database.write(file.keep_only(self._config.keys))
            except _FAILURES as error:
                await self._could_not_write(error)
        self._task = asyncio.create_task(self._run(), name="ringcast-cache")

    @property
    def may_have_migrated(self) -> bool:
        """Whether another worker may be the owner of what was found: nothing of it is to be handed over."""
        return self._is_old or (self.identity is not None and self.identity.migrates)

    async def knows_migration(self) -> None:
        """Returns once the file says what was last to be remembered: never, as long as it can't be used."""
        if not self._held:
            await asyncio.Event().wait()
        await self._known.wait()

    def remember_migration(self, migrates: bool) -> None:
        """The store migrates, or it does not: to be known when the worker starts again."""
        if self.identity is not None and migrates is not self.identity.migrates:
            self.identity = msgspec.structs.replace(self.identity, migrates=migrates)
            self._known.clear()
            self._changed.set()

    async def abandon(self, reason: str) -> None:
        """What was found is of no use: it is quarantined, and a new file takes its place if that can be."""
        try:
            await self.quarantine(reason)
        except (OtherError, DamagedError, *_FAILURES) as error:
            self._failed(error)
            await self._close_file()

    async def quarantine(self, reason: str) -> None:
        """Renames the file and begins a new one. What was found is not used."""
        await self._close_file()
        self.found, self.identity, self._is_old = {}, None, False
        self.restored_partitions = self.restored_rows = 0
        moved_to = await asyncio.to_thread(self.place.quarantine)
        self.quarantines += 1
        self.quarantined_because = reason
        self._log.error(
            "cache.quarantined",
            path=str(moved_to),
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
        return len(self._pending)

    async def _run(self) -> None:
        """Writes until stopped, and then what is left."""
        backoff = Backoff(random.random)
        while not self._stopping.is_set():
            await event_within(self._changed, self._config.heads_s)
            self._changed.clear()
            if await self._write():
                backoff.reset()
                await event_within(self._stopping, _INTERVAL_S)
            else:
                await event_within(self._stopping, backoff.next_s())
            if self.behind:
                self._changed.set()
        while self.behind and await self._write():
            pass
        await self._write()  # as of now

    async def _write(self) -> bool:
        """Writes once; returns whether that was possible."""
        try:
            if self._database is None:
                await self._start_empty(await self._open_file())
        except (OtherError, DamagedError, *_FAILURES) as error:
            self._failed(error)
            await self._close_file()
            return False
        saves = self._pending.take()
        as_of_ms, current = self._pending.currency(time.time() * 1000)
        try:
            assert self._database is not None
            if not self._known.is_set() and self.identity is not None:
                written = self.identity
                await self._database.write(file.write_identity(written))
                if self.identity is written:
                    self._known.set()
            await self._database.write(file.write(saves, as_of_ms, current))
        except BaseException as error:
            self._pending.put_back(saves)
            if not isinstance(error, _FAILURES):
                raise
            await self._could_not_write(error)
            return False
        if self.failing_because:
            self.failing_because = ""
            self._log.info("cache.recovered", path=str(self.place.path))
        return True

    async def _start_empty(self, database: Database) -> None:
        """Empties the file, which could not be used before, and has everything written."""
        assert self.identity is not None
        await database.write(file.keep_only(()))
        await database.write(file.write_identity(self.identity))
        self._pending.rewrite_all()

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
            self._log.error("cache.write_failed", error=error)
        self.failing_because = str(error)

    # ---- the end

    async def _close(self) -> None:
        self._stopping.set()
        self._changed.set()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=self._config.drain_timeout_s)
            if late:
                self._log.warning("cache.not_saved")
                self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._close_file()

    async def _close_file(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.close()


def _is_damage(error: BaseException) -> bool:
    """Whether the file is at fault, and not the disk or another process that uses it."""
    cause = error if isinstance(error, sqlite3.Error) else error.__cause__
    if isinstance(error, StoreCorruptError):
        return True
    code = getattr(cause, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR)
