"""A process says that it is there, how it is, and hears whether it is to drain."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from ringcast_wire import (
    Backoff,
    ConditionFailedError,
    EventLog,
    RingcastError,
    UnavailableError,
    event_within,
    field_text,
)

from ringcast_meta._lease import Lease
from ringcast_meta._members import (
    REPORT_S,
    TTL_S,
    MemberKind,
    MemberRecord,
    decode_member,
    encode_member,
    member_key,
    wish_key,
)
from ringcast_meta._store import MetadataStore

log = EventLog(logging.getLogger("ringcast.meta"))


class Presence:
    """Keeps the record of this process for as long as :meth:`run` runs, and calls ``on_wish`` with what is wanted.

    ``report`` makes the record as it is now; ``on_wish`` is called with whether the process is to drain, when that has
    changed. Neither may wait or raise. Nothing waits for the store: while it is away the record goes, and comes back
    with it; what was wanted last counts on.

    A report is one write and one read each 3 s, and the lease costs another write each 3.3 s.

    ``one_life``: the id is never used again, so the wish for it goes with the process.

    Of two processes with one id the record is that of the one that registered last. The other one says so in its log,
    and registers again once that record is gone.
    """

    def __init__(
        self,
        open_store: Callable[[], AbstractAsyncContextManager[MetadataStore]],
        kind: MemberKind,
        member_id: str,
        *,
        report: Callable[[], MemberRecord],
        on_wish: Callable[[bool], None],
        one_life: bool = False,
    ) -> None:
        self.key = member_key(kind, member_id)
        self._wish_key = wish_key(kind, member_id)
        self._open_store = open_store
        self._report = report
        self._on_wish = on_wish
        self._one_life = one_life
        self._drain = False
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    def changed(self) -> None:
        """The record is another now: it is written at once."""
        self._news.set()

    async def run(self, ready: asyncio.Event) -> None:
        """Registers once the process is ready, and again after each loss, until :meth:`stop` is called."""
        try:
            await _first(ready.wait(), self._stopping.wait())
            backoff = Backoff(random.random, first_s=0.5, most_s=10.0)
            failed = ""
            while not self._stopping.is_set():
                try:
                    async with self._open_store() as store, store.lease(TTL_S) as lease:
                        await self._look(store)
                        revision = await self._register(store, lease)
                        log.info("cluster.registered", key=self.key)
                        backoff.reset()
                        failed = ""
                        if (other := await self._keep(store, lease, revision)) is not None:
                            log.error(
                                "cluster.id_taken", key=self.key, host=other.host, pid=other.pid, address=other.address
                            )
                            await self._wait_gone(store)
                        if not self._stopping.is_set():
                            log.warning("cluster.registration_lost", key=self.key)
                        elif self._one_life:
                            await self._forget_wish(store)
                except RingcastError as error:
                    if field_text(error) != failed:  # it repeats with each attempt
                        log.warning("cluster.registration_failed", key=self.key, error=error)
                    failed = field_text(error)
                await event_within(self._stopping, backoff.next_s())
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """Removes the record, and returns once :meth:`run` has ended."""
        self._stopping.set()
        await self._ended.wait()

    async def _register(self, store: MetadataStore, lease: Lease) -> int:
        value = encode_member(self._report())
        try:
            return await store.create(self.key, value, lease=lease)
        except ConditionFailedError as error:
            # Of a lease that was lost and lives on in the store, or of a write that nobody answered.
            return await store.put(self.key, value, last=error.found_version or 1, lease=lease)

    async def _keep(self, store: MetadataStore, lease: Lease, revision: int) -> MemberRecord | None:
        """Reports now and then until the lease is lost, the process stops, or another one has its id: returns that."""
        while not self._stopping.is_set() and lease.remaining_s:
            await self._pause(lease.wait_lost())
            if self._stopping.is_set():
                break
            try:
                await self._look(store)
                revision = await store.put(self.key, encode_member(self._report()), last=revision, lease=lease)
            except ConditionFailedError as error:
                if not error.found_version:
                    break  # it has ended in the store
                if (other := await self._found(store)) is not None and self._is_another(other):
                    return other
                revision = error.found_version  # a report that was stored though nobody answered
            except UnavailableError as error:
                log.debug("cluster.not_reported", key=self.key, error=error)  # the next one may be, or the lease ends
        return None

    async def _pause(self, *more: Coroutine[Any, Any, object]) -> None:
        """Until it is time to look or report again, or there is a reason to."""
        await _first(self._stopping.wait(), event_within(self._news, REPORT_S), *more)
        self._news.clear()

    async def _found(self, store: MetadataStore) -> MemberRecord | None:
        """What stands in the place of the record."""
        entry = await store.get(self.key)
        return None if entry is None else decode_member(self.key, entry.value)

    def _is_another(self, found: MemberRecord) -> bool:
        own = self._report()
        return (found.host, found.pid, found.started_at_ms) != (own.host, own.pid, own.started_at_ms)

    async def _wait_gone(self, store: MetadataStore) -> None:
        """Waits until the process with the same id has gone, or this one stops."""
        while not self._stopping.is_set() and await store.get(self.key) is not None:
            await self._pause()
            await self._look(store)

    async def _look(self, store: MetadataStore) -> None:
        drain = await store.get(self._wish_key) is not None
        if drain is not self._drain:
            self._drain = drain
            self._on_wish(drain)

    async def _forget_wish(self, store: MetadataStore) -> None:
        with suppress(ConditionFailedError):
            if (entry := await store.get(self._wish_key)) is not None:
                await store.delete(self._wish_key, last=entry.revision)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Waits until one of them has ended."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
