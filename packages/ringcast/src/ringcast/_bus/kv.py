"""Key-value buckets: compare-and-set writes, and a watch that survives restarts of the server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from ringcast_wire import Backoff, EventLog, event_before, names

from ringcast._bus.bus import TRANSIENT, Bus, Message, NotFoundError, RejectedError, WatchConsumer
from ringcast._common.place import read_place
from ringcast._protocol.kv_mirror import Entry, KvMirror

_HEARTBEAT_S: Final = 1.0
_SILENT_S: Final = 3.5
_INACTIVE_S: Final = 30.0
_ACK_PREFIX: Final = "$JS.ACK."
_MARKER: Final = "Nats-Marker-Reason"
_OPERATION: Final = "KV-Operation"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
WRONG_SEQUENCE: Final = (10071, 10164)
_DIGITS: Final = 20
"""A full bucket takes a record in place of one of the same size, or a larger one. A server keeps the headers, too, so
their size must not grow with the numbers in them: no lease of such a bucket could be refreshed any more."""


class ConflictError(Exception):
    """The key is not at the revision that a compare-and-set named."""


class Bucket:
    """One bucket, without the stream look-up that the client's own class needs."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.name = name
        self.stream = f"KV_{name}"
        self.prefix = f"$KV.{name}."
        self._bus = bus

    async def get(self, key: str, *, newest: bool = False) -> Entry | None:
        """What stands under a key; ``None`` if nothing ever did, an entry without value for a marker.

        ``newest``: as of now, from the server that takes writes in. Others may lag behind.
        """
        try:
            message = await self._bus.last_message(self.stream, self.prefix + key, newest=newest)
        except NotFoundError:
            return None
        return Entry(message.sequence, None if is_marker(message.headers) else message.data)

    async def put(self, key: str, value: bytes, *, last: int) -> int:
        """Writes if the key is at revision ``last`` (0: it never was), and returns the new revision.

        Raises:
            ConflictError: it is at another.
        """
        return await self._publish(key, value, last, {})

    async def delete(self, key: str, *, last: int, may_call: bool = False) -> int:
        """Deletes if the key is at revision ``last``, and returns the revision of the marker that takes its place.

        ``may_call``: of a registration, that calls of its worker may still run; the marker says so.

        Raises:
            ConflictError: it is at another.
        """
        return await self._publish(
            key, b"", last, {_OPERATION: "DEL"} | ({names.HEADER_MAY_CALL: "1"} if may_call else {})
        )

    async def _publish(self, key: str, value: bytes, last: int, headers: dict[str, str]) -> int:
        headers[EXPECTED] = expected(last)
        try:
            return await self._bus.store(self.prefix + key, value, headers)
        except RejectedError as error:
            if error.code in WRONG_SEQUENCE:
                raise ConflictError(key) from error
            raise


class BucketWatch:
    """Keeps a mirror of (a part of) a bucket.

    A consumer that fell silent, skipped a message or lost its connection is replaced, and the snapshot that the new one
    starts with takes the place of the mirror: a change that was missed shows then. ``name`` is the consumer's: one that
    the server chose would take the permission to make and delete any.
    """

    def __init__(
        self,
        bus: Bus,
        bucket: Bucket,
        name: str,
        patterns: list[str],
        mirror: KvMirror,
        changed: Callable[[], None],
        log: EventLog,
    ) -> None:
        self._bus = bus
        self._bucket = bucket
        self._name = name
        self._patterns = [bucket.prefix + pattern for pattern in patterns]
        self._mirror = mirror
        self._changed = changed
        self._log = log
        self._broken = asyncio.Event()
        self._snapshot: dict[str, Entry] | None = None
        self._sequence = 0
        self._heard_at = 0.0
        bus.on_back(self._broken.set)

    async def run(self) -> None:
        """Watches until cancelled."""
        backoff = Backoff(random.random, first_s=0.2, most_s=5.0)
        while True:
            self._broken.clear()
            try:
                await self._watch_once(backoff)
            except TRANSIENT as error:
                self._log.debug("watch.failed", bucket=self._bucket.name, error=repr(error))
                await asyncio.sleep(backoff.next_s())

    async def _watch_once(self, backoff: Backoff) -> None:
        self._snapshot, self._sequence = {}, 0
        inbox = self._bus.new_inbox()
        async with self._bus.subscribed(inbox, self._on_message):
            await self._delete()
            state = await self._bus.put_consumer(self._bucket.stream, self._consumer(inbox))
            if not state.pending and not state.delivered:
                self._complete()
            backoff.reset()
            await self._until_broken()
            if self._bus.is_connected:
                await self._delete()

    async def _delete(self) -> None:
        await self._bus.delete_consumer(self._bucket.stream, self._name)

    def _consumer(self, inbox: str) -> WatchConsumer:
        return WatchConsumer(self._name, inbox, self._patterns, _HEARTBEAT_S, _INACTIVE_S)

    async def _until_broken(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while loop.time() < (due := self._heard_at + _SILENT_S):
            if await event_before(self._broken, due):
                return

    async def _on_message(self, msg: Message) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if not msg.reply:
            last = (msg.headers or {}).get("Nats-Last-Consumer")
            if last is not None and int(last) != self._sequence:
                self._broken.set()
            return
        place = read_place(msg.reply) if msg.reply.startswith(_ACK_PREFIX) else None
        if place is None:
            return
        if place.consumer_sequence != self._sequence + 1:
            self._broken.set()
            return
        self._sequence += 1
        gone = is_marker(msg.headers or {})
        entry = Entry(place.stream_sequence, None if gone else msg.data)
        self._take(msg.subject.removeprefix(self._bucket.prefix), entry)
        if place.pending == 0 and self._snapshot is not None:
            self._complete()

    def _take(self, key: str, entry: Entry) -> None:
        if self._snapshot is not None:
            self._snapshot[key] = entry
        elif self._mirror.put(key, entry):
            self._changed()

    def _complete(self) -> None:
        if self._snapshot is not None:
            self._mirror.replace(self._snapshot)
            self._snapshot = None
            self._changed()


def expected(last: int) -> str:
    """The header :data:`EXPECTED` of a compare-and-set, which has the same size whatever the number."""
    return f"{last:0{_DIGITS}}"


def is_marker(headers: dict[str, str]) -> bool:
    """Whether a message stands for an entry that is gone."""
    return _MARKER in headers or headers.get(_OPERATION) in ("DEL", "PURGE")
