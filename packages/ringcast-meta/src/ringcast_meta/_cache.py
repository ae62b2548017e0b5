"""What is below a prefix, in memory, kept up to date by a watch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Self

from ringcast_wire import InvalidInputError, RingcastError, UnavailableError, shown

from ringcast_meta._limits import check_prefix
from ringcast_meta._store import MetadataStore
from ringcast_meta._types import Change, Entry, Progress, Snapshot, WatchEvent


class LocalCache:
    """A mirror of the entries below a prefix. Reads answer at once, and never wait for the server.

    Enter it with ``async with``. It is :attr:`complete` once a first snapshot has come; before that, reads raise. From
    then on it answers with what it has, also while the server is gone, and :attr:`stale_s` says how old that may be.

    ``fresh_within_s``: how old it may be and :attr:`fresh`. It should be longer than ``check_interval_s`` of the store,
    of which it hears that often. ``on_change`` is called after each change and each new snapshot; it must not raise.
    """

    def __init__(
        self,
        store: MetadataStore,
        prefix: str = "",
        *,
        fresh_within_s: float = 5.0,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        if not 0.05 <= fresh_within_s <= 3600:
            raise InvalidInputError(
                f"fresh_within_s {shown(fresh_within_s)} is out of range: 0.05 to 3600 is allowed",
                field="fresh_within_s",
            )
        self.prefix = check_prefix(prefix)
        self._store = store
        self._fresh_within_s = fresh_within_s
        self._on_change = on_change
        self._entries: dict[str, Entry] = {}
        self._revision = 0
        self._proved_at_s = -math.inf
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def complete(self) -> bool:
        """Whether it has had a snapshot."""
        return self._proved_at_s > -math.inf

    @property
    def revision(self) -> int:
        """Everything below the prefix up to here is in it. It falls where the store has lost its history."""
        return self._revision

    @property
    def stale_s(self) -> float:
        """Seconds since the moment whose state it has for sure; infinite before it is complete.

        What was written before that moment is in it. The moment is when the watch asked, not when an answer came: so it
        grows while the watch is silent, and an answer that lay about for long makes nothing fresh. The end of a lease
        that its holder did not revoke may be known a second later.
        """
        return asyncio.get_running_loop().time() - self._proved_at_s

    @property
    def fresh(self) -> bool:
        """Whether :attr:`stale_s` is at most ``fresh_within_s``."""
        return self.stale_s <= self._fresh_within_s

    def get(self, key: str) -> Entry | None:
        """What stood under a key at :attr:`revision`; ``None`` where nothing did.

        Raises:
            UnavailableError: it is not complete yet.
            InvalidInputError: the key is not below the prefix, so that its absence would mean nothing.
        """
        if not key.startswith(self.prefix):
            raise InvalidInputError(f"key {shown(key)} is not below the prefix {self.prefix!r}", field="key")
        return self.entries().get(key)

    def entries(self) -> Mapping[str, Entry]:
        """All entries by key: a view that changes with the cache, which does so only while the caller awaits.

        Raises:
            UnavailableError: it is not complete yet.
        """
        if not self.complete:
            raise UnavailableError(f"the cache of {self.prefix!r} has had no snapshot yet")
        return MappingProxyType(self._entries)

    async def wait_complete(self, timeout_s: float | None = None) -> None:
        """Waits until it is complete.

        Raises:
            UnavailableError: it is not after ``timeout_s``.
            LimitExceededError, PermissionDeniedError, UnauthenticatedError: the watch has ended with it.
        """
        await self._wait(lambda: self.complete, timeout_s, "has had no snapshot")

    async def wait_for(self, revision: int, timeout_s: float | None = None) -> None:
        """Waits until everything below the prefix up to a revision of the store is in it.

        A revision of an entry that is not below the prefix is reached with the next check of the watch.

        Raises:
            UnavailableError, and others: as :meth:`wait_complete`.
        """
        await self._wait(
            lambda: self.complete and self._revision >= revision,
            timeout_s,
            f"has not reached revision {revision}",
        )

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Waits until it is complete and ``condition()`` holds, which is looked at after each event of the watch.

        Raises:
            UnavailableError, and others: as :meth:`wait_complete`.
        """
        await self._wait(lambda: self.complete and condition(), timeout_s, "has not come to what is waited for")

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a cache is entered once")
        self._task = asyncio.create_task(self._follow(), name=f"cache {self.prefix}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        # What the watch has ended with was raised by those who wait, logged, and shows in `stale_s`.
        with suppress(asyncio.CancelledError, RingcastError):
            await self._task

    async def _follow(self) -> None:
        try:
            async with self._store.watch(self.prefix) as watch:
                async for event in watch:
                    self._apply(event)
                    self._move()
        finally:
            self._move()

    def _apply(self, event: WatchEvent) -> None:
        match event:
            case Snapshot():
                self._entries = {entry.key: entry for entry in event.entries}
                self._proved_at_s = event.asked_at_s
                self._revision = event.revision
            case Change(key=key, entry=entry):
                if entry is None:
                    self._entries.pop(key, None)
                else:
                    self._entries[key] = entry
                self._revision = max(self._revision, event.revision)
            case Progress():
                self._proved_at_s = event.asked_at_s
                self._revision = event.revision
                return
        if self._on_change is not None:
            self._on_change()

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _wait(self, condition: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        if self._task is None:
            raise RuntimeError("a cache must be entered before anything waits for it")
        try:
            async with asyncio.timeout(timeout_s) as limit:
                while not condition():
                    if self._task.done():
                        self._task.result()
                    await self._moved.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            raise UnavailableError(f"the cache of {self.prefix!r} {what} after {timeout_s:g} s") from None
