"""Sessions of exclusive ownership: the entry that a worker refreshes, and the entries of others as they are read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from ringcast_wire import (
    EventLog,
    InUseError,
    LeaseRecord,
    MismatchError,
    ProtocolError,
    UnavailableError,
    decode_record,
    encode_record,
    event_within,
    names,
)

from ringcast._bus.buckets import Bucket, Buckets, ConflictError, Found
from ringcast._bus.bus import TRANSIENT
from ringcast._coordination.sticky.times import Clock, StickyTimes
from ringcast._protocol.kv_mirror import Entry

FAILURES: Final = 3
"""After so many failures in a row a warning is logged."""
_KEYS_AT_ONCE: Final = 200
_REFRESHED: Final = 2
"""An entry of another process that changes so often is refreshed. Once may be the answer of a server that lagged."""


class Refresh(NamedTuple):
    """A refresh that was asked for at ``asked_at``.

    ``continued``: since the last one that was answered nothing but refreshes of this process has stood there.
    """

    asked_at: float
    revision: int
    continued: bool


class SessionKeeper:
    """The entry of one worker. ``refreshed`` is called with each refresh, ``taken`` when another process has it."""

    def __init__(
        self,
        buckets: Buckets,
        bucket: Bucket,
        worker_id: str,
        record: LeaseRecord,
        times: StickyTimes,
        clock: Clock,
        log: EventLog,
        *,
        refreshed: Callable[[Refresh], None],
        taken: Callable[[], None],
    ) -> None:
        self._bucket = bucket
        self._worker_id = worker_id
        self._name = names.session_key(worker_id)
        self._record = record
        self._value = encode_record(record)
        self._times = times
        self._clock = clock
        self._log = log
        self._refreshed = refreshed
        self._taken = taken
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._last = 0
        """The revision that the next refresh replaces."""
        self._continues = False
        """Whether nothing but refreshes of this process has stood there since the last one that was answered."""
        self._is_succeeded = False
        self.revision = 0
        """The highest of this process so far."""
        buckets.on_back(self.wake)

    async def take(self) -> None:
        """Takes the entry, once no other process has refreshed it for half of the time that a session lasts.

        It does no harm to take it too early: the other process then ends. The partitions of the one before get owners
        D after it is taken, so a process that is started again does not wait for longer.

        A process that was halted or cut off, and has lost the lease of its worker id to this one, may refresh a few
        times more before it learns of that, and ends. So only one that goes on for as long as a session lasts counts:
        else both would end.

        Raises:
            InUseError: another process does, and goes on.
        """
        silence_s = max(self._times.fence.ttl_s / 2, 2 * self._times.refresh_s)
        seen, changes, since = 0, 0, self._clock()
        goes_on_since = since
        while True:
            try:
                entry = await self._bucket.get(self._name)
                if self._other(entry) is None or (seen and self._clock() >= since + silence_s):
                    self._last = entry.revision if entry is not None else 0
                    return await self.refresh()
                if entry is not None and entry.revision > seen:
                    changes += seen > 0
                    seen, since = entry.revision, self._clock()
                    goes_on_since = goes_on_since if changes > 1 else since
                if changes >= _REFRESHED and self._clock() >= goes_on_since + self._times.fence.ttl_s:
                    raise self._in_use(entry)
            except TRANSIENT as error:
                since = self._clock()  # silence counts only while the server answers
                self._log.debug("session.take_failed", error=error)
            await asyncio.sleep(self._times.refresh_s / 5)

    def wake(self) -> None:
        """Has the entry refreshed soon."""
        self._wake.set()

    def give_way(self) -> None:
        """Another process has had the entry after this one: has :meth:`run` raise, whoever has it now."""
        self._is_succeeded = True
        self.wake()
        self._taken()

    async def run(self) -> None:
        """Refreshes until cancelled.

        Raises:
            InUseError: another process has taken the entry, or had it after this one.
            MismatchError: the bucket was deleted, and created again.
        """
        failures = 0
        while True:
            self._wake.clear()
            if self._is_succeeded:
                raise self._in_use(None)
            try:
                await self.refresh()
            except TRANSIENT as error:
                failures += 1
                level = logging.WARNING if failures == FAILURES else logging.DEBUG
                self._log.log(level, "session.refresh_failed", retries=failures, error=error)
                await event_within(self._wake, self._times.refresh_s / 5)
            else:
                if failures >= FAILURES:
                    self._log.info("session.refresh_recovered", retries=failures)
                failures = 0
                await event_within(self._wake, self._times.refresh_s)

    async def refresh(self) -> None:
        """Refreshes now; raises as :meth:`run`, and what is transient as :class:`Bucket` does."""
        async with self._lock, asyncio.timeout(self._times.refresh_s):
            while True:
                asked_at = self._clock()
                try:
                    revision = await self._bucket.put(self._name, self._value, last=self._last)
                except ConflictError:
                    self._reconsider(await self._bucket.get(self._name))
                    continue
                if revision <= self.revision:
                    # No session may have the number of one before, and other processes count by them.
                    raise MismatchError(
                        f"bucket {self._bucket.name} was deleted and created again while worker "
                        f"{self._worker_id!r} ran: restart the workers of the store"
                    )
                refresh = Refresh(asked_at, revision, continued=self._continues)
                self._last, self._continues, self.revision = revision, True, revision
                self._refreshed(refresh)
                return

    async def drop(self) -> None:
        """Deletes the entry, unless it is another process's."""
        async with self._lock:
            if self._continues:
                try:
                    await self._bucket.delete(self._name, last=self._last)
                except ConflictError:
                    await self._drop_unanswered()
                self._continues = False

    async def _drop_unanswered(self) -> None:
        """Deletes what a refresh has written that was cancelled before its answer came, if it is that what is there."""
        entry = await self._bucket.get(self._name)
        if entry is None or entry.value != self._value:
            self._log.debug("record.not_ours", record=self._name)
            return
        with suppress(ConflictError):  # another process has taken it by now
            await self._bucket.delete(self._name, last=entry.revision)

    def _reconsider(self, entry: Entry | None) -> None:
        """After a refusal: goes on from what stands there.

        Raises:
            InUseError: it is another process's.
            UnavailableError: a server has answered that lags behind.
        """
        if entry is not None and entry.revision <= self._last:
            raise UnavailableError(f"{self._name} was read from a server that lags behind")
        if self._other(entry) is not None:
            self._taken()
            raise self._in_use(entry)
        self._last = entry.revision if entry is not None else 0
        if entry is None or entry.value != self._value:
            self._continues = False  # and stays so until a refresh is answered: one may be stored whose answer is lost

    def _other(self, entry: Entry | None) -> LeaseRecord | None:
        """The other process that an entry is of, if it is of one. What can't be read is nobody's."""
        if entry is None or entry.value is None:
            return None
        try:
            found = decode_record(entry.value, LeaseRecord)
        except ProtocolError:
            return None
        return found if found.incarnation != self._record.incarnation else None

    def _in_use(self, entry: Entry | None) -> InUseError:
        other = self._other(entry)
        where = f"process {other.pid} on host {other.host}" if other is not None else "another process"
        return InUseError(f"worker id {self._worker_id!r} is in use by {where}", field="worker_id")


class SessionAnswer(NamedTuple):
    """What one server had at one moment of the leases ``asked`` for. ``own``: the reader's entry, if it is there."""

    asked: frozenset[str]
    found: Mapping[str, Found]
    own: Found | None


async def read_sessions(bucket: Bucket, own: str, leases: Collection[str]) -> list[SessionAnswer]:
    """Reads the entries of these leases, the reader's own with each answer.

    Raises:
        UnavailableError, BusError, TimeoutError: one of the answers has not come, or is not whole.
    """
    others = sorted(set(leases) - {own})
    answers = []
    for start in range(0, max(len(others), 1), _KEYS_AT_ONCE):
        asked = [own, *others[start : start + _KEYS_AT_ONCE]]
        entries = await bucket.read([names.session_key(lease) for lease in asked], "sessions")
        present = {lease: entries.get(names.session_key(lease)) for lease in asked}
        found = {lease: entry for lease, entry in present.items() if entry is not None and entry.data is not None}
        answers.append(SessionAnswer(frozenset(asked), found, found.get(own)))
    return answers
