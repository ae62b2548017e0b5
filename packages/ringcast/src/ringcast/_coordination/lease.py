"""The lease of a worker: other workers count it as alive while the lease is held."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from ringcast_wire import (
    EventLog,
    InUseError,
    LeaseRecord,
    ProtocolError,
    decode_record,
    encode_record,
    event_before,
    limits,
    names,
)

from ringcast._bus.buckets import Buckets, ConflictError
from ringcast._bus.bus import TRANSIENT, translated
from ringcast._common.process import this_process
from ringcast._common.stats import Stats
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.lease import LeaseKeeper, Refusal

PATIENCE_S: Final = limits.LEASE_TTL_S + 2.0
"""How long a process waits for one of the same worker id to be gone."""
_POLL_S: Final = 0.25

# Workers of one process share the lease of their worker id: the last one that leaves revokes it.
_holders: Counter[tuple[str, ...]] = Counter()
this_process.forgets(_holders.clear)


class LeaseSource(Protocol):
    """The lease by which a worker counts as alive: its own, or the one that its host's agent keeps."""

    id_in_use: bool
    """Whether another process has the worker's id."""
    sees_end: bool
    """Whether the host's agent would see this process end."""

    @property
    def failed_writes(self) -> int:
        """How often a lease could not be refreshed."""

    @property
    def id(self) -> str:
        """The lease that the worker's records are to name."""

    @property
    def ids(self) -> frozenset[str]:
        """The leases that no other process can have while this worker has them."""

    @property
    def held(self) -> bool:
        """Whether the others count this worker as alive, as far as it knows."""

    @property
    def by_agent(self) -> bool:
        """Whether the host's agent keeps it."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls back when ``id`` is another."""

    def recorded(self, lease: str) -> None:
        """All records name this lease now."""

    def check(self) -> None:
        """Looks after the lease at once: it was seen to be gone."""

    async def grant(self) -> None:
        """Has it granted; raises as :meth:`LeaseHolder.grant`."""

    async def keep_alive(self) -> None:
        """Refreshes it until cancelled; raises as :meth:`LeaseHolder.keep_alive`."""

    async def revoke(self) -> None:
        """Deletes it, so that the others need not wait for its end."""

    def detach(self) -> bool:
        """The worker needs it no longer; returns whether no worker of this process does."""


class LeaseHolder:
    """Has the lease granted, refreshes and revokes it. ``regranted`` is called when it was lost and granted again."""

    def __init__(
        self,
        buckets: Buckets,
        lease_id: str,
        record: LeaseRecord,
        *,
        refresh_s: float,
        servers: tuple[str, ...],
        regranted: Callable[[], None],
        stats: Stats,
        log: EventLog,
    ) -> None:
        self._bucket = buckets.bucket(names.LEASES_BUCKET)
        self._id = lease_id
        self._keeper = LeaseKeeper(record, random.random, refresh_s=refresh_s)
        self._value = encode_record(record)
        self._regranted = regranted
        self._stats = stats
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._shared = (*servers, lease_id)
        self._needed = False
        self._expiry_logged = False
        self._losses = 0
        self.failed_writes = 0
        self.id_in_use = False
        """Whether another process has it: then what goes by the worker's id is that process's, too."""
        self.sees_end = False
        buckets.on_back(self.check)

    @property
    def id(self) -> str:
        """The lease's id."""
        return self._id

    @property
    def ids(self) -> frozenset[str]:
        """The lease, if it is held."""
        return frozenset([self._id]) if self.held else frozenset()

    @property
    def by_agent(self) -> bool:
        """No: this process keeps it."""
        return False

    @property
    def losses(self) -> int:
        """How often it was lost and granted again."""
        return self._losses

    def on_change(self, callback: Callable[[], None]) -> None:
        """Never: the id stays the same."""

    def recorded(self, lease: str) -> None:
        """Nothing follows from it."""

    async def grant(self) -> None:
        """Writes the lease; waits for the end of one that an earlier process left.

        Raises:
            InUseError: another process keeps refreshing it.
            UnavailableError: the bucket can't be reached.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        with translated(f"granting the lease {self._id}"):
            while True:
                entry = await self._bucket.get(self._id)
                current = self._read_record(entry)
                if current is None or self._keeper.refused(current) is Refusal.OURS:
                    asked_at = loop.time()
                    try:
                        revision = await self._bucket.put(self._id, self._value, last=entry.revision if entry else 0)
                    except ConflictError:
                        continue
                    self._keeper.written(revision, asked_at)
                    self._needed = True
                    _holders[self._shared] += 1
                    return
                if loop.time() >= deadline:
                    raise self._in_use(current)
                await asyncio.sleep(_POLL_S)

    async def keep_alive(self) -> None:
        """Refreshes the lease until cancelled.

        Raises:
            InUseError: another process has taken it.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if await event_before(self._wake, self._keeper.due):
                self._keeper.refresh_now(loop.time())
            failures = self._keeper.failures
            try:
                async with asyncio.timeout(self._keeper.patience_s):
                    lost = await self._refresh()
            except TRANSIENT as error:
                self._keeper.failed(loop.time())
                self._failed(error, loop.time())
                continue
            if failures:
                self._expiry_logged = False
                self._log.info("lease.refresh_recovered", retries=failures)
            if lost:
                self._losses += 1
                self._log.warning("lease.regranted")
                self._regranted()

    @property
    def held(self) -> bool:
        """Whether the others count this process as alive, as far as it knows. From any thread."""
        return self._needed and not self.id_in_use and not self._keeper.expired(self._loop.time())

    def check(self) -> None:
        """Looks after the lease at once: the connection was lost, or the lease was seen to be gone."""
        self._wake.set()

    async def revoke(self) -> None:
        """Deletes the lease, unless another worker of this process still needs it."""
        if not self.detach():
            return
        while True:
            try:
                await self._bucket.delete(self._id, last=self._keeper.revision)
            except ConflictError:
                entry = await self._bucket.get(self._id)
                current = self._read_record(entry)
                if entry is not None and current is not None and self._keeper.refused(current) is Refusal.OURS:
                    self._keeper.revision = entry.revision  # a refresh that was cancelled has landed after all
                    continue
                if current is not None:
                    self._log.warning("lease.not_ours")
            return

    def detach(self) -> bool:
        """This worker needs the lease no longer; returns whether no other worker of this process does."""
        if self._needed:
            self._needed = False
            _holders[self._shared] -= 1
        return _holders[self._shared] <= 0

    def _failed(self, error: BaseException, now: float) -> None:
        """Logs a failed refresh: as a warning after 3 in a row, and as critical once the lease has expired."""
        self.failed_writes += 1
        retries = self._keeper.failures
        level = logging.WARNING if self._keeper.in_trouble else logging.DEBUG
        self._log.log(level, "lease.refresh_failed", retries=retries, error=error)
        if self._keeper.expired(now) and not self._expiry_logged:
            self._expiry_logged = True
            self._log.critical("lease.expired", retries=retries)

    async def _refresh(self) -> bool:
        """Writes the lease; returns whether it had been lost."""
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            try:
                revision = await self._bucket.put(self._id, self._value, last=self._keeper.revision)
            except ConflictError:
                self._reconsider(await self._bucket.get(self._id))
                continue
            return self._keeper.written(revision, asked_at)

    def _reconsider(self, entry: Entry | None) -> None:
        """After a refusal: goes on from what stands there, or gives up."""
        current = self._read_record(entry)
        if self._keeper.refused(current) is Refusal.TAKEN:
            self.id_in_use = True
            raise self._in_use(current)
        self._keeper.revision = entry.revision if entry is not None else 0

    def _read_record(self, entry: Entry | None) -> LeaseRecord | None:
        if entry is None or entry.value is None:
            return None
        try:
            return decode_record(entry.value, LeaseRecord)
        except ProtocolError as error:
            self._stats.bad_records += 1
            self._log.warning("lease.corrupt", action="overwrite", error=error)
            return None

    def _in_use(self, current: LeaseRecord | None) -> InUseError:
        other = f"process {current.pid} on host {current.host}" if current is not None else "another process"
        return InUseError(f"worker id {self._id!r} is in use by {other}", field="worker_id")
