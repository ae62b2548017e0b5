"""A store in the memory of one process: for tests, and for what runs on one machine without a server."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager
from typing import Final

from ringcast_wire import LimitExceededError, OutcomeUnknownError, UnavailableError, event_within

from ringcast_meta._conflict import conflict
from ringcast_meta._lease import Lease
from ringcast_meta._limits import (
    check_key,
    check_last,
    check_prefix,
    check_snapshot,
    check_ttl,
    check_value,
    no_leases,
    no_watches,
)
from ringcast_meta._options import StoreOptions
from ringcast_meta._types import Change, Entry
from ringcast_meta._watch import Deliver, Watch, WatchBrokenError

_MAX_BYTES: Final = 256 * 1024 * 1024
_MAX_QUEUED: Final = 4096


class MemoryServer:
    """What several :class:`MemoryStore` of one event loop share. It holds at most 256 MiB of keys and values.

    It can fail as a server does, for tests: :meth:`pause`, :meth:`cut`, :meth:`resume`.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.entries: dict[str, Entry] = {}
        self._leases: dict[str, _MemoryLease] = {}
        self._lease_of: dict[str, str] = {}
        self._ids = itertools.count(1)
        self._sessions: set[_MemorySession] = set()
        self._size = 0
        self._running = asyncio.Event()
        self._running.set()
        self._reachable = True

    # ---- faults

    def pause(self) -> None:
        """Nothing is answered or delivered until :meth:`resume`, as after SIGSTOP."""
        self._running.clear()

    def cut(self) -> None:
        """Breaks every watch, and refuses every call until :meth:`resume`."""
        self._reachable = False
        self.break_watches()

    def resume(self) -> None:
        """All is well again. What was written while it was paused is delivered."""
        self._reachable = True
        self._running.set()
        for lease_id in [name for name, lease in self._leases.items() if lease.has_ended]:
            self.end_lease(lease_id)
        for session in list(self._sessions):
            session.flush()

    def break_watches(self) -> None:
        """Every watch has to start again, as after a restart."""
        for session in list(self._sessions):
            session.fail("the connection was lost")

    async def reached(self, timeout_s: float, *, write: bool) -> None:
        """Waits for the server, as each call does first.

        Raises:
            UnavailableError: it can't be reached, or is paused for ``timeout_s``.
        """
        if not self._reachable:
            raise UnavailableError("the memory server is cut off")
        if not await event_within(self._running, timeout_s):
            error = OutcomeUnknownError if write else UnavailableError
            raise error(f"the memory server has not answered within {timeout_s:g} s")

    @property
    def is_paused(self) -> bool:
        """Whether nothing is delivered now."""
        return not self._running.is_set()

    # ---- entries

    def below(self, prefix: str) -> list[Entry]:
        """The entries below a prefix.

        Raises:
            LimitExceededError: they are more than a watch takes.
        """
        found = [entry for key, entry in self.entries.items() if key.startswith(prefix)]
        check_snapshot(prefix, len(found), sum(map(_size, found)))
        return found

    def write(self, key: str, value: bytes | None, last: int, lease_id: str | None) -> int:
        """Writes, or deletes with ``None``, if ``key`` is at revision ``last`` (0: nothing stands there)."""
        entry = self.entries.get(key)
        found = 0 if entry is None else entry.revision
        if found != last:
            raise conflict(key, last, found)
        if lease_id is not None and lease_id not in self._leases:
            raise UnavailableError(f"the lease {lease_id} has ended")
        size = self._size - _size(entry) + (0 if value is None else len(key) + len(value))
        if size > _MAX_BYTES:
            raise LimitExceededError(f"the memory server would have {size} bytes: {_MAX_BYTES} are allowed")
        self._size = size
        self.revision += 1
        self._detach(key)
        if value is None:
            del self.entries[key]
        else:
            self.entries[key] = Entry(key, value, self.revision, lease_id is not None)
            if lease_id is not None:
                self._lease_of[key] = lease_id
                self._leases[lease_id].keys.add(key)
        for session in list(self._sessions):
            session.take(Change(key, self.entries.get(key), self.revision))
        return self.revision

    # ---- leases

    def grant(self, ttl_s: int) -> str:
        """A new lease."""
        lease_id = str(next(self._ids))
        self._leases[lease_id] = _MemoryLease(self, lease_id, ttl_s)
        return lease_id

    def refresh(self, lease_id: str) -> bool:
        """Whether it lives, and has its time again."""
        lease = self._leases.get(lease_id)
        if lease is not None:
            lease.refresh()
        return lease is not None

    def end_lease(self, lease_id: str) -> None:
        """Deletes its entries; while the server is paused it ends when that is over."""
        if self.is_paused or (lease := self._leases.pop(lease_id, None)) is None:
            return
        lease.stop()
        for key in sorted(lease.keys):
            self.write(key, None, self.entries[key].revision, None)

    def _detach(self, key: str) -> None:
        lease = self._leases.get(self._lease_of.pop(key, ""))
        if lease is not None:
            lease.keys.discard(key)

    # ---- watches

    def join(self, session: _MemorySession) -> None:
        """Every change goes to the session from now on."""
        self._sessions.add(session)

    def leave(self, session: _MemorySession) -> None:
        """No more of them do."""
        self._sessions.discard(session)


def _size(entry: Entry | None) -> int:
    return 0 if entry is None else len(entry.key) + len(entry.value)


class _MemoryLease:
    """A lease and its timer."""

    def __init__(self, server: MemoryServer, lease_id: str, ttl_s: int) -> None:
        self.keys: set[str] = set()
        self._server = server
        self._id = lease_id
        self._ttl_s = ttl_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._start()

    @property
    def has_ended(self) -> bool:
        return self._timer.when() <= self._loop.time()

    def refresh(self) -> None:
        self._timer.cancel()
        self._timer = self._start()

    def stop(self) -> None:
        self._timer.cancel()

    def _start(self) -> asyncio.TimerHandle:
        return self._loop.call_later(self._ttl_s, self._server.end_lease, self._id)


class _MemorySession:
    """A watch of a memory server."""

    def __init__(self, server: MemoryServer, prefix: str, deliver: Deliver, timeout_s: float) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.revision = 0
        self._server = server
        self._prefix = prefix
        self._deliver = deliver
        self._timeout_s = timeout_s
        self._queued: list[Change] = []

    async def snapshot(self) -> tuple[list[Entry], int]:
        await self._server.reached(self._timeout_s, write=False)
        found = self._server.below(self._prefix)
        self.revision = self._server.revision
        self._server.join(self)
        return found, self.revision

    async def check(self) -> None:
        await self._server.reached(self._timeout_s, write=False)
        self.revision = self._server.revision

    async def close(self) -> None:
        self._server.leave(self)

    def take(self, change: Change) -> None:
        self._queued.append(change)
        if len(self._queued) > _MAX_QUEUED:
            self.fail(f"{len(self._queued)} changes are queued")
        elif not self._server.is_paused:
            self.flush()

    def flush(self) -> None:
        for change in self._queued:
            if change.key.startswith(self._prefix):
                self._deliver(change)
            self.revision = change.revision
        self._queued.clear()

    def fail(self, why: str) -> None:
        self._server.leave(self)
        self._queued.clear()
        if not self.failed.done():
            self.failed.set_exception(WatchBrokenError(f"the watch of {self._prefix!r} is broken: {why}"))


class MemoryStore:
    """A :class:`~ringcast_meta.MetadataStore` in memory. Those that are given the same server see the same entries."""

    def __init__(self, server: MemoryServer | None = None, options: StoreOptions | None = None) -> None:
        self._server = server or MemoryServer()
        self._options = options or StoreOptions()
        self._watches = no_watches()
        self._leases = no_leases()

    async def get(self, key: str) -> Entry | None:
        """See :class:`~ringcast_meta.MetadataStore`."""
        check_key(key)
        await self._server.reached(self._options.call_timeout_s, write=False)
        return self._server.entries.get(key)

    async def read(self, prefix: str = "") -> list[Entry]:
        """See :class:`~ringcast_meta.MetadataStore`."""
        check_prefix(prefix)
        await self._server.reached(self._options.call_timeout_s, write=False)
        return sorted(self._server.below(prefix))

    async def create(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return await self._write(check_key(key), check_value(value), 0, lease)

    async def put(self, key: str, value: bytes, *, last: int, lease: Lease | None = None) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return await self._write(check_key(key), check_value(value), check_last(last), lease)

    async def delete(self, key: str, *, last: int) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return await self._write(check_key(key), None, check_last(last), None)

    async def _write(self, key: str, value: bytes | None, last: int, lease: Lease | None) -> int:
        if lease is not None:
            lease.attach(key)
        await self._server.reached(self._options.call_timeout_s, write=True)
        return self._server.write(key, value, last, None if lease is None else lease.id)

    def watch(self, prefix: str = "") -> Watch:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return Watch(check_prefix(prefix), self._open_session, self._options, self._watches)

    def _open_session(self, prefix: str, deliver: Deliver) -> _MemorySession:
        return _MemorySession(self._server, prefix, deliver, self._options.snapshot_timeout_s)

    def lease(self, ttl_s: int) -> AbstractAsyncContextManager[Lease]:
        """See :class:`~ringcast_meta.MetadataStore`."""
        keeper = _MemoryKeeper(self._server, self._options.call_timeout_s)
        return Lease(keeper, check_ttl(ttl_s), self._options.call_timeout_s, self._leases)


class _MemoryKeeper:
    """Leases of a memory server."""

    def __init__(self, server: MemoryServer, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s

    async def grant(self, ttl_s: int) -> str:
        await self._server.reached(self._timeout_s, write=False)
        return self._server.grant(ttl_s)

    async def refresh(self, lease_id: str) -> bool:
        await self._server.reached(self._timeout_s, write=False)
        return self._server.refresh(lease_id)

    async def revoke(self, lease_id: str) -> None:
        await self._server.reached(self._timeout_s, write=False)
        self._server.end_lease(lease_id)
