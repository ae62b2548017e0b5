"""One unbroken piece of a watch of a bucket: a consumer of its stream."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from ringcast_wire import RingcastError, UnavailableError

from ringcast_meta._limits import MAX_ENTRIES, MAX_SNAPSHOT_BYTES, check_snapshot
from ringcast_meta._nats.bucket import Bucket, Stored, stored
from ringcast_meta._types import Change, Entry
from ringcast_meta._watch import Deliver, WatchBrokenError, forget

_LATE_S: Final = 0.5
"""How long after the time of an entry its server is asked whether it is gone."""
_READS: Final = 64
"""Entries that are looked at together."""


class BucketSession:
    """Follows the keys below a prefix.

    The server delivers each message with its number, so a gap in the middle shows at once. A gap at the end shows when
    the session asks for the first message after the last one that it got. A lease that ends is told by the server in
    some buckets and in others not: the session reads the entries that should have been written again.
    """

    def __init__(self, bucket: Bucket, prefix: str, deliver: Deliver) -> None:
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.revision = 0
        self._bucket = bucket
        self._prefix = prefix
        self._deliver = deliver
        self._subscription: Subscription | None = None
        self._consumer: str | None = None
        self._delivered = 0
        self._moved = asyncio.Event()
        self._began: asyncio.Future[None] = self._loop.create_future()
        self._first: dict[str, Stored] | None = {}
        self._first_bytes = 0
        self._known: dict[str, tuple[int, int]] = {}
        """Revision and sequence of each entry that was delivered."""
        self._first_sequence = 0
        self._due_s: dict[str, float] = {}
        self._created = ""
        self._server_ahead_s = 0.0
        self._reconnects = bucket.connection.stats["reconnects"]

    async def snapshot(self) -> tuple[list[Entry], int]:
        state = await self._bucket.state()
        self._created = state.created
        self._server_ahead_s = state.now_s - self._loop.time()
        inbox = self._bucket.connection.new_inbox()
        try:
            self._subscription = await self._bucket.connection.subscribe(
                inbox,
                cb=self._take,
                pending_msgs_limit=2 * MAX_ENTRIES,
                pending_bytes_limit=2 * MAX_SNAPSHOT_BYTES,
            )
        except (nats.errors.Error, OSError) as error:
            raise UnavailableError(f"bucket {self._bucket.name!r} can't be watched: {error}") from error
        self._consumer, pending, begun = await self._bucket.add_consumer(inbox, self._prefix)
        check_snapshot(self._prefix, pending)
        if pending or begun:
            await asyncio.wait({self._began, self.failed}, return_when=asyncio.FIRST_COMPLETED)
            if self.failed.done():
                self.failed.result()
            self._began.result()
        first, self._first = self._first or {}, None
        self._first_sequence = state.first_sequence
        self._known = {
            key: (each.entry.revision, each.sequence) for key, each in first.items() if each.entry is not None
        }
        return [each.entry for each in first.values() if each.entry is not None], self.revision

    async def check(self) -> None:
        self._check_connection()
        heard = self.revision  # what comes while the server answers may be newer than its answer
        state = await self._bucket.state()
        self._check_connection()
        if state.created != self._created or state.last_sequence < heard:
            raise WatchBrokenError(f"bucket {self._bucket.name!r} is not the one that it was: it has lost its history")
        while self.revision < state.last_sequence:
            self._moved.clear()
            missing = await self._bucket.next_after(self.revision, self._prefix)
            if missing is None or missing.sequence > state.last_sequence:
                self.revision = max(self.revision, state.last_sequence)
            elif self.revision < missing.sequence:
                # It is on its way, or it was lost: the one who asks us does not wait forever.
                await self._moved.wait()
        await self._end_expired(state.first_sequence)

    async def close(self) -> None:
        forget(self._began)
        with contextlib.suppress(nats.errors.Error, OSError):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
        if self._consumer is not None and self._bucket.connection.is_connected:
            # One that is not deleted is gone in 30 s.
            with contextlib.suppress(RingcastError, TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._bucket.delete_consumer(self._consumer)

    async def _take(self, message: Msg) -> None:
        """A message of the consumer, in the order in which the server sent them."""
        if self.failed.done():
            return
        try:
            place = message.metadata
        except nats.errors.Error:
            return  # a status message
        if place.sequence.consumer != self._delivered + 1:
            self._fail(f"{place.sequence.consumer - self._delivered - 1} messages are missing")
            return
        self._delivered += 1
        key = self._bucket.key_of(message.subject)
        each = stored(
            key, message.data, dict(message.headers or {}), place.sequence.stream, place.timestamp.timestamp()
        )
        self._expect_refresh(key, each)
        if self._first is None:
            self._take_change(key, each)
        else:
            self._take_first(key, each, last=place.num_pending == 0)
        self.revision = each.sequence
        self._moved.set()

    def _take_first(self, key: str, each: Stored, *, last: bool) -> None:
        assert self._first is not None
        self._first[key] = each
        self._first_bytes += len(key) + (len(each.entry.value) if each.entry else 0)
        if self._began.done():
            return
        try:
            check_snapshot(self._prefix, len(self._first), self._first_bytes)
        except RingcastError as error:
            self._began.set_exception(error)
        else:
            if last:
                self._began.set_result(None)

    def _take_change(self, key: str, each: Stored) -> None:
        known = self._known.pop(key, None)
        if each.entry is not None:
            self._known[key] = each.entry.revision, each.sequence
            if known is None or known[0] != each.entry.revision:  # else its lease was refreshed
                self._deliver(Change(key, each.entry, each.entry.revision))
        elif known is not None:
            self._deliver(Change(key, None, each.sequence))

    # ---- leases

    def _expect_refresh(self, key: str, each: Stored) -> None:
        if each.entry is None or each.ttl_s is None:
            self._due_s.pop(key, None)
        else:
            now = self._loop.time()
            age_s = max(0.0, now + self._server_ahead_s - each.at_s)
            self._due_s[key] = now + max(0.0, each.ttl_s - age_s) + _LATE_S

    async def _end_expired(self, first_sequence: int) -> None:
        """Reads the entries that were not written again in time, and those that the stream can't have any more."""
        now = self._loop.time()
        suspects = {key for key, due_s in self._due_s.items() if due_s <= now}
        if first_sequence > self._first_sequence:
            self._first_sequence = first_sequence
            suspects |= {key for key, (_, sequence) in self._known.items() if sequence < first_sequence}
        keys = sorted(suspects)
        for first in range(0, len(keys), _READS):
            await asyncio.gather(*map(self._end_if_gone, keys[first : first + _READS]))

    async def _end_if_gone(self, key: str) -> None:
        known = self._known.get(key)
        last = await self._bucket.last(key)
        if last is None and known == self._known.get(key):
            self._due_s.pop(key, None)
            if self._known.pop(key, None) is not None:
                self._deliver(Change(key, None, self.revision))

    # ---- gaps

    def _check_connection(self) -> None:
        connection = self._bucket.connection
        if not connection.is_connected or connection.stats["reconnects"] != self._reconnects:
            raise WatchBrokenError(f"the watch of {self._prefix!r} is broken: the connection to NATS was lost")

    def _fail(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_exception(WatchBrokenError(f"the watch of {self._prefix!r} is broken: {why}"))
