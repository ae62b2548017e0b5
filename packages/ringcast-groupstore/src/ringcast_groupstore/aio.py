"""The store for asyncio: the same verbs, awaited, with the work done on threads.

Reads run on a few threads, writes one after the other on a thread of their own. Cancelling a call stops the waiting
for it, not the call: a write that has begun may commit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, TypeVar, Unpack

from ringcast_sqlite import StoreBusyError, StoreClosedError, StoreError

import ringcast_groupstore
from ringcast_groupstore._aio_verbs import Reads, Runner, Writes
from ringcast_groupstore._errors import InputError
from ringcast_groupstore._integrity import Check, OnDamage
from ringcast_groupstore._namespace import Namespace as SyncNamespace
from ringcast_groupstore._namespace import Transaction
from ringcast_groupstore._reads import Reads as SyncReads
from ringcast_groupstore._types import Event, Limits, Quota
from ringcast_groupstore._watch import LogWatch
from ringcast_groupstore._watch import Watch as SyncWatch
from ringcast_groupstore._writes import Writes as SyncWrites

__all__ = ["Namespace", "Settings", "GroupStore", "View", "Watch"]

T = TypeVar("T")
D = TypeVar("D")


class Settings(TypedDict, total=False):
    """The settings of :class:`ringcast_groupstore.GroupStore`."""

    durable: bool
    check: Check
    on_damage: OnDamage
    limits: Limits | None
    keep_changes: int
    purge_interval_s: float | None
    busy_timeout_s: float
    clock: Callable[[], int]


class GroupStore(Writes):
    """A store for one event loop; enter it with ``async with``, or call :meth:`open` and :meth:`close`.

    Args:
        path: the file; created if it is not there. Its directory must exist.
        readers: reads that run at once.
        max_waiting: reads, and writes, that may wait or run at once; one more raises StoreBusyError.
        settings: of :class:`ringcast_groupstore.GroupStore`.
    """

    def __init__(
        self, path: Path | str, *, readers: int = 4, max_waiting: int = 1024, **settings: Unpack[Settings]
    ) -> None:
        if min(readers, max_waiting) < 1:
            raise InputError(f"readers {readers} and max_waiting {max_waiting} must be 1 or more")
        self.path = Path(path)
        self._settings = settings
        self._runner = Runner(self.path, readers, max_waiting)
        self._store: ringcast_groupstore.GroupStore | None = None
        self._closed = False

    async def open(self) -> None:
        """Opens the file; raises what :class:`ringcast_groupstore.GroupStore` does."""
        if self._store is not None or self._closed:
            raise StoreError(f"store {self.path} was opened already")
        self._store = await self._runner.writes.run(lambda: ringcast_groupstore.GroupStore(self.path, **self._settings))

    async def close(self) -> None:
        """Waits for the calls that run, then closes the file. Calling it again is harmless."""
        if self._closed:
            return
        self._closed = True
        await self._runner.shut()
        if self._store is not None:
            await asyncio.to_thread(self._store.close)

    @property
    def sync(self) -> ringcast_groupstore.GroupStore:
        """The store underneath, for threads and for callbacks."""
        if self._store is None or self._closed:
            raise StoreClosedError(f"store {self.path} is not open")
        return self._store

    def namespace(self, name: str, *, quota: Quota | None = None) -> Namespace:
        """The part of the store that belongs to ``name``."""
        return Namespace(self, self.sync.namespace(name, quota=quota))

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """Runs ``work`` inside a transaction, on the writing thread, and returns its result."""
        store = self.sync

        def call() -> T:
            with store.transaction() as tx:
                return work(tx)

        return await self._runner.writes.run(call)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[View]:
        """One unchanging view of the store over several reads."""
        store = self.sync
        opened = ExitStack()
        async with AsyncExitStack() as stack:
            view = await self._runner.reads.run(lambda: opened.enter_context(store.snapshot()))
            # Shielded: a view that is left behind would pin the log.
            stack.push_async_callback(lambda: asyncio.shield(asyncio.to_thread(opened.close)))
            yield View(self._runner, view)

    async def revision(self) -> int:
        """The revision of the last change."""
        store = self.sync
        return await self._runner.reads.run(lambda: store.revision)

    async def changes(self, since: int, *, limit: int = 1_000) -> list[Event]:
        """At most ``limit`` changes after revision ``since``."""
        store = self.sync
        return await self._runner.reads.run(lambda: store.changes(since, limit=limit))

    async def watch(
        self, group: str | None = None, *, since: int | None = None, capacity: int = 1_024, poll_s: float = 0.25
    ) -> Watch:
        """Hears of changes; see :meth:`ringcast_groupstore.GroupStore.watch`."""
        return await _watch(self.sync, self._runner, group, since, capacity, poll_s)

    async def purge_expired(self) -> int:
        """Removes every key that has expired by now; tells how many."""
        store = self.sync
        return await self._runner.writes.run(store.purge_expired)

    async def backup(self, target: Path | str) -> None:
        """Writes a copy of the store as of now."""
        store = self.sync
        await self._runner.reads.run(lambda: store.backup(target))

    async def check(self) -> list[str]:
        """Looks at the whole file; returns what is wrong."""
        store = self.sync
        return await self._runner.reads.run(store.check)

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

    def _target(self) -> SyncWrites:
        return self.sync


class Namespace(Writes):
    """A namespace of a store; see :class:`ringcast_groupstore.Namespace`."""

    def __init__(self, store: GroupStore, namespace: SyncNamespace) -> None:
        self._runner = store._runner
        self._namespace = namespace

    @property
    def name(self) -> str:
        """The namespace."""
        return self._namespace.name

    async def transact(self, work: Callable[[SyncNamespace], T]) -> T:
        """Runs ``work`` inside a transaction, on the writing thread, and returns its result."""

        def call() -> T:
            with self._namespace.transaction() as namespace:
                return work(namespace)

        return await self._runner.writes.run(call)

    async def watch(
        self, group: str | None = None, *, since: int | None = None, capacity: int = 1_024, poll_s: float = 0.25
    ) -> Watch:
        """Hears of changes in the namespace."""
        return await _watch(self._namespace, self._runner, group, since, capacity, poll_s)

    async def purge_expired(self) -> int:
        """Removes every key of the namespace that has expired by now; tells how many."""
        return await self._runner.writes.run(self._namespace.purge_expired)

    def _target(self) -> SyncWrites:
        return self._namespace


class View(Reads):
    """What :meth:`GroupStore.snapshot` hands out: one unchanging view."""

    def __init__(self, runner: Runner, view: ringcast_groupstore.View) -> None:
        self._runner = runner
        self._view = view

    def _source(self) -> SyncReads:
        return self._view


class Watch:
    """A stream of events; iterate over it with ``async for``. Close it, or use it with ``async with``. For one task."""

    def __init__(self, watch: SyncWatch, runner: Runner, poll_s: float | None) -> None:
        self._watch = watch
        self._runner = runner
        self._poll_s = poll_s
        self._news = asyncio.Event()
        self._looking: asyncio.Future[Event | None] | None = None
        loop = asyncio.get_running_loop()

        def on_ready() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the store
                loop.call_soon_threadsafe(self._news.set)

        watch._on_ready = on_ready

    @property
    def dropped(self) -> int:
        """How many changes this reader did not get."""
        return self._watch.dropped

    async def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event; ``None`` after ``timeout_s`` seconds without one, or once closed with nothing left."""
        with contextlib.suppress(TimeoutError, StoreClosedError):
            async with asyncio.timeout(timeout_s):
                while True:
                    self._news.clear()
                    closed = self._watch.closed
                    event = await self._look()
                    if event is not None or closed:
                        return event
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), self._poll_s)
        return None

    async def close(self) -> None:
        """Ends it. Calling it again is harmless."""
        self._watch.close()
        if self._looking is not None:
            await asyncio.wait([self._looking])

    async def _look(self) -> Event | None:
        if self._poll_s is None:  # a buffer in memory
            return self._watch.next(0)
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._runner.reads.run(lambda: self._watch.next(0)))
        # When the waiting is cancelled the thread takes an event all the same: the next look gets that one.
        await asyncio.wait([self._looking])
        looked, self._looking = self._looking, None
        try:
            return looked.result()
        except StoreBusyError:  # too many reads wait: the event is in the log until the next look
            return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event


async def _watch(
    source: ringcast_groupstore.GroupStore | SyncNamespace,
    runner: Runner,
    group: str | None,
    since: int | None,
    capacity: int,
    poll_s: float,
) -> Watch:
    if since is None:
        return Watch(source.watch(group, capacity=capacity), runner, None)
    watch: LogWatch = await runner.reads.run(lambda: source.watch(group, since=since, poll_s=poll_s))
    return Watch(watch, runner, poll_s)
