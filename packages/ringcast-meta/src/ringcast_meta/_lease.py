"""A lease: entries that go when the process that wrote them does. What is the same whatever the server is."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self

from ringcast_wire import EventLog, LimitExceededError, RingcastError, UnavailableError, event_before

from ringcast_meta._limits import MAX_LEASED_ENTRIES, OpenCount, check_ttl

_REFRESHES: Final = 3
"""Refreshes in the life of a lease: two may fail."""
_RETRIES: Final = 12
"""Tries in the life of a lease once a refresh failed."""


class LeaseKeeper(Protocol):
    """What a server does for a lease."""

    async def grant(self, ttl_s: int) -> str:
        """Makes it, and returns its id."""

    async def refresh(self, lease_id: str) -> bool:
        """Has it live for its time again; ``False``: the server says that it has ended."""

    async def revoke(self, lease_id: str) -> None:
        """Ends it, with its entries. One that has ended already is no error."""


class Lease:
    """Kept alive in the background while it is entered. One that is lost stays lost: take another.

    Before the holder does what only a holder may do, it looks at :attr:`remaining_s`: this counts from when the last
    refresh that succeeded was *sent*, on the monotonic clock. So it ends before the server ends the lease, whatever the
    clocks show.
    """

    def __init__(self, keeper: LeaseKeeper, ttl_s: int, call_timeout_s: float, leases: OpenCount) -> None:
        self.ttl_s = check_ttl(ttl_s)
        self.id = ""
        """Its name at the server, from entering on."""
        self.keys: set[str] = set()
        """The keys of its entries that this process wrote with it."""
        self._keeper = keeper
        self._call_timeout_s = call_timeout_s
        self._leases = leases
        self._log = EventLog(logging.getLogger("ringcast.meta"))
        self._asked_at_s = 0.0
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def remaining_s(self) -> float:
        """For how long it lives for sure, without another refresh; 0 once it is lost."""
        if self._task is None or self._lost.is_set():
            return 0.0
        return max(0.0, self._asked_at_s + self.ttl_s - asyncio.get_running_loop().time())

    async def wait_lost(self) -> None:
        """Waits until it is lost: it could not be refreshed in time, another process ended it, or it was left."""
        await self._lost.wait()

    def attach(self, key: str) -> None:
        """For stores: one more entry.

        Raises:
            UnavailableError: it is lost.
            LimitExceededError: it has 64 entries.
        """
        if self.remaining_s == 0.0:
            raise UnavailableError(f"the lease {self.id or 'that was not entered'} has ended")
        if key not in self.keys and len(self.keys) >= MAX_LEASED_ENTRIES:
            raise LimitExceededError(
                f"lease has {len(self.keys) + 1} entries: {MAX_LEASED_ENTRIES} are allowed", field="lease"
            )
        self.keys.add(key)

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError("a lease is entered once")
        self._leases.__enter__()
        try:
            self._asked_at_s = asyncio.get_running_loop().time()
            self.id = await self._keeper.grant(self.ttl_s)
        except BaseException:
            self._leases.__exit__()
            raise
        self._log = self._log.bind(lease=self.id)
        self._task = asyncio.create_task(self._keep_alive(), name=f"lease {self.id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await self._task
            lost = self._lost.is_set()
            self._lost.set()
            if not lost:
                await self._revoke()
        finally:
            self._leases.__exit__()

    async def _revoke(self) -> None:
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await self._keeper.revoke(self.id)
        except (RingcastError, TimeoutError) as error:
            self._log.warning("metadata_lease.not_revoked", error=error, ttl_s=self.ttl_s)

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = self._asked_at_s + self.ttl_s / _REFRESHES
        try:
            while not await event_before(self._lost, next_s):
                asked_at_s = loop.time()
                try:
                    async with asyncio.timeout_at(self._asked_at_s + self.ttl_s):
                        lives = await self._keeper.refresh(self.id)
                except (RingcastError, TimeoutError) as error:
                    if loop.time() >= self._asked_at_s + self.ttl_s:
                        self._log.warning("metadata_lease.lost", error=error)
                        return
                    next_s = loop.time() + self.ttl_s / _RETRIES
                else:
                    if not lives:
                        self._log.warning("metadata_lease.lost", error="it has ended at the server")
                        return
                    self._asked_at_s = asked_at_s
                    next_s = asked_at_s + self.ttl_s / _REFRESHES
        finally:
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                self._lost.set()
