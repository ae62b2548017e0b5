"""A watch: a snapshot, then changes, and a new snapshot after each break. What is the same whatever the server is."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

from ringcast_wire import (
    Backoff,
    EventLog,
    InvalidInputError,
    LimitExceededError,
    PermissionDeniedError,
    RingcastError,
    UnauthenticatedError,
    UnavailableError,
    event_within,
)

from ringcast_meta._limits import OpenCount
from ringcast_meta._options import StoreOptions
from ringcast_meta._types import Change, Entry, Progress, Snapshot, WatchEvent

T = TypeVar("T")

_LASTING: Final = (InvalidInputError, LimitExceededError, PermissionDeniedError, UnauthenticatedError)
"""What another try would fail with too."""

Deliver: TypeAlias = Callable[[Change], None]


class WatchBrokenError(UnavailableError):
    """A watch may have missed something, and must start again."""


class WatchSession(Protocol):
    """One unbroken piece of a watch, as a server sees it. Making it does no input or output."""

    failed: asyncio.Future[None]
    """Ends with :class:`WatchBrokenError` when the session finds a gap, or its connection is lost."""
    revision: int
    """Everything below the prefix up to here was delivered."""

    async def snapshot(self) -> tuple[list[Entry], int]:
        """Begins: everything below the prefix, and at which revision. What comes after it is delivered from then on."""

    async def check(self) -> None:
        """Asks the server, and returns once everything that it had stored before the call is delivered."""

    async def close(self) -> None:
        """Frees what the server keeps for it, if it can be reached. Raises nothing."""


OpenSession: TypeAlias = Callable[[str, Deliver], WatchSession]


def forget(future: asyncio.Future[None]) -> None:
    """Ends a future that nobody waits for any more; an error in it would be reported as one that was never seen."""
    if not future.cancel() and not future.cancelled():
        future.exception()


class _Outlet:
    """The bounded queue between a watch and its reader. When it is full, it is emptied for a new snapshot."""

    def __init__(self, max_changes: int) -> None:
        self._max_changes = max_changes
        self._events: deque[WatchEvent] = deque()
        self._filled = asyncio.Event()
        self._error: Exception | None = None
        self.wanted = asyncio.Event()
        """Whether the reader waits for more."""
        self.overflowed = asyncio.Event()
        """Set until the next snapshot."""
        self._ahead: list[WatchEvent] | None = None
        """What a session delivers before its snapshot is put, which takes the place of all that came before it."""

    def begin(self) -> None:
        """A session begins: its changes wait for its snapshot."""
        self._ahead = []

    def put(self, event: WatchEvent) -> None:
        match event:
            case Snapshot():
                self._events.clear()
                self.overflowed.clear()
                self._events.append(event)
                ahead, self._ahead = self._ahead or (), None
                for change in ahead:
                    self.put(change)
                self._filled.set()
                return
            case _ if self._ahead is not None:
                if len(self._ahead) <= self._max_changes:  # one more than fits, and the reader needs another snapshot
                    self._ahead.append(event)
                return
            case Progress() if self._events and isinstance(self._events[-1], Progress):
                self._events.pop()
            case _ if self.overflowed.is_set():
                return
            case Change() if len(self._events) >= self._max_changes:
                self._events.clear()
                self.overflowed.set()
                return
        self._events.append(event)
        self._filled.set()

    def fail(self, error: Exception) -> None:
        """Has the reader raise ``error`` after what is queued."""
        self._error = error
        self._filled.set()

    async def get(self) -> WatchEvent:
        while not self._events:
            if self._error is not None:
                raise self._error
            self._filled.clear()
            self.wanted.set()
            await self._filled.wait()
        self.wanted.clear()
        return self._events.popleft()


class Watch:
    """Tells what is below a prefix: first a :class:`Snapshot`, then each :class:`Change`.

    Between them come signs of life (:class:`Progress`). A watch that may have missed something (its connection broke,
    its server restarted, fell silent, or compacted what was needed) starts again by itself, and delivers a new
    snapshot: it takes the place of all before. So has a reader that is too slow for ``max_queued_changes``.

    Between two changes of one key a snapshot or a compaction may swallow others; the last one is never lost.

    Enter it with ``async with``; entering does not wait for the server. One task may iterate. The iteration raises what
    another try would fail with too: ``LimitExceededError`` (the prefix has more than 65,536 entries or 64 MiB),
    ``PermissionDeniedError``, ``UnauthenticatedError``.
    """

    def __init__(self, prefix: str, open_session: OpenSession, options: StoreOptions, watches: OpenCount) -> None:
        self.prefix = prefix
        self._open_session = open_session
        self._options = options
        self._watches = watches
        self._log = EventLog(logging.getLogger("ringcast.meta"), prefix=prefix)
        self._outlet: _Outlet | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a watch is entered once")
        self._watches.__enter__()
        self._outlet = _Outlet(self._options.max_queued_changes)
        self._task = asyncio.create_task(self._run(self._outlet), name=f"watch {self.prefix}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._task
        finally:
            self._watches.__exit__()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        """Waits for the next event. Cancelling it loses nothing."""
        if self._outlet is None or self._task is None:
            raise RuntimeError("a watch must be entered before it is read")
        return await self._outlet.get()

    async def _run(self, outlet: _Outlet) -> None:
        backoff = Backoff(random.random, first_s=0.1, most_s=5.0)
        while True:
            try:
                await self._one_session(outlet, backoff)
            except _LASTING as error:
                self._log.error("metadata_watch.ended", error=error)
                outlet.fail(error)
                return
            except RingcastError as error:
                self._log.warning("metadata_watch.broken", error=error, failures=backoff.failures + 1)
                await asyncio.sleep(backoff.next_s())
            except Exception as error:
                outlet.fail(error)
                raise
            else:
                self._log.warning("metadata_watch.reader_slow", max_queued_changes=self._options.max_queued_changes)
                await outlet.wanted.wait()

    async def _one_session(self, outlet: _Outlet, backoff: Backoff) -> None:
        """Until it breaks, which raises, or its reader is too slow."""
        outlet.begin()
        session = self._open_session(self.prefix, outlet.put)
        try:
            asked_at_s = asyncio.get_running_loop().time()
            taken = self._within(session, session.snapshot(), self._options.snapshot_timeout_s, "no snapshot")
            entries, revision = await taken
            outlet.put(Snapshot(tuple(sorted(entries)), revision, asked_at_s))
            backoff.reset()
            await self._check_on(session, outlet, asked_at_s)
        finally:
            await session.close()
            forget(session.failed)

    async def _check_on(self, session: WatchSession, outlet: _Outlet, proved_at_s: float) -> None:
        """Asks now and then whether anything was missed, which also finds a server that is silent."""
        loop = asyncio.get_running_loop()
        silent_after_s = self._options.silent_after_s
        while not await self._idle(session, outlet):
            asked_at_s = loop.time()
            left_s = max(0.0, proved_at_s + silent_after_s - asked_at_s)
            # One that comes late, since this process was halted, may still be answered.
            await self._within(session, session.check(), left_s or silent_after_s, f"silent for {silent_after_s:g} s")
            proved_at_s = asked_at_s
            outlet.put(Progress(session.revision, asked_at_s))

    async def _idle(self, session: WatchSession, outlet: _Outlet) -> bool:
        """Waits for the time of the next check; returns whether the reader is too slow."""
        full = asyncio.create_task(event_within(outlet.overflowed, self._options.check_interval_s))
        try:
            waits: set[asyncio.Future[Any]] = {full, session.failed}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if session.failed.done():
                session.failed.result()
            return full.result()
        finally:
            full.cancel()

    async def _within(self, session: WatchSession, work: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
        """What ``work`` returns. A session that breaks meanwhile ends it: what it waits for would never come."""
        task = asyncio.create_task(work)
        try:
            waits: set[asyncio.Future[Any]] = {task, session.failed}
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if session.failed.done():
                session.failed.result()
            raise WatchBrokenError(f"the watch of {self.prefix!r} is broken: {what}")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
