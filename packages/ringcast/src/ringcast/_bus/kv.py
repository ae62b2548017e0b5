"""Buckets in NATS KV: compare-and-set writes, reads of several keys, and a watch that survives lost connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from ringcast_wire import Backoff, EventLog, UnavailableError, event_before, names
from ringcast_wire.buckets import (
    DELETED,
    EXPECTED,
    EXPECTED_AMONG,
    WRONG_SEQUENCE,
    BucketAnswer,
    fixed,
    is_marker,
    question,
    stream_of,
    subject_of,
)

from ringcast._bus.buckets import ConflictError, Found, Reader
from ringcast._bus.bus import TRANSIENT, Bus, Message, NotFoundError, RejectedError, WatchConsumer
from ringcast._common.place import read_place
from ringcast._protocol.kv_mirror import Entry, KvMirror

_ANSWER_S: Final = 2.0
"""How long an answer to a read may take."""
_HEARTBEAT_S: Final = 1.0
_SILENT_S: Final = 3.5
_INACTIVE_S: Final = 30.0
_ACK_PREFIX: Final = "$JS.ACK."


class NatsBuckets:
    """:class:`~ringcast._bus.buckets.Buckets` over a connection to NATS."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._bus.is_connected

    def on_back(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is back."""
        self._bus.on_back(callback)

    def bucket(self, name: str) -> NatsBucket:
        """The bucket of this name."""
        return NatsBucket(self._bus, name)


class NatsBucket:
    """:class:`~ringcast._bus.buckets.Bucket`, without the stream look-up that the client's own class needs."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.name = name
        self.stream = stream_of(name)
        self.prefix = subject_of(name, "")
        self._bus = bus

    async def exists(self) -> bool:
        """Whether there is such a bucket.

        Raises:
            NoJetStreamError: no server has JetStream.
        """
        try:
            await self._bus.check_stream(self.stream)
        except NotFoundError:
            return False
        return True

    async def get(self, key: str, *, newest: bool = False) -> Entry | None:
        """What stands under a key. ``newest``: from the server that takes writes in. Others may lag behind."""
        try:
            message = await self._bus.last_message(self.stream, self.prefix + key, newest=newest)
        except NotFoundError:
            return None
        return Entry(message.sequence, None if is_marker(message.headers) else message.data)

    async def put(self, key: str, value: bytes, *, last: int, among: str = "") -> int:
        """Writes if the key is at revision ``last``, or the newest ``among`` others, and returns the new revision."""
        return await self._publish(key, value, last, {EXPECTED_AMONG: self.prefix + among} if among else {})

    async def delete(self, key: str, *, last: int, may_call: bool = False) -> int:
        """Deletes if the key is at revision ``last``, and returns the revision of the marker that takes its place."""
        headers = {**DELETED, names.HEADER_MAY_CALL: "1"} if may_call else {**DELETED}
        return await self._publish(key, b"", last, headers)

    async def _publish(self, key: str, value: bytes, last: int, headers: dict[str, str]) -> int:
        headers[EXPECTED] = fixed(last)
        try:
            return await self._bus.store(self.prefix + key, value, headers)
        except RejectedError as error:
            if error.code in WRONG_SEQUENCE:
                raise ConflictError(key) from error
            raise

    async def read(self, keys: Sequence[str], what: str) -> dict[str, Found]:
        """What one server has of these keys at one moment."""
        _check_connected(self._bus)
        async with self.reading(what) as reader:
            return await reader.read(keys)

    @asynccontextmanager
    async def reading(self, what: str) -> AsyncIterator[Reader]:
        """Subscribes to the answers for a while."""
        reader = _Reader(self._bus, self, what)
        async with self._bus.subscribed(f"{reader.inbox}.*", reader.take):
            yield reader

    def watch(
        self, name: str, patterns: Sequence[str], mirror: KvMirror, changed: Callable[[], None], log: EventLog
    ) -> BucketWatch:
        """``name`` is the consumer's: one that the server chose would take the permission to make and delete any."""
        return BucketWatch(self._bus, self, name, patterns, mirror, changed, log)


class _Reader:
    """Asks one server for several keys with one request; the answer to each comes to an inbox of its own."""

    def __init__(self, bus: Bus, bucket: NatsBucket, what: str) -> None:
        self.inbox = bus.new_inbox()
        self._bus = bus
        self._bucket = bucket
        self._what = what
        self._subject = bus.api(f"DIRECT.GET.{bucket.stream}")
        self._number = 0
        self._answer: BucketAnswer | None = None
        self._done: asyncio.Future[None] | None = None

    async def read(self, keys: Sequence[str]) -> dict[str, Found]:
        _check_connected(self._bus)
        self._number += 1
        answer = self._answer = BucketAnswer(self._bucket.name, self._what)
        done = self._done = asyncio.get_running_loop().create_future()
        try:
            async with self._bus.refusals.fail_fast(self._subject), asyncio.timeout(_ANSWER_S):
                reply = f"{self.inbox}.{self._number}"
                await self._bus.publish(self._subject, question(self._bucket.name, keys), reply=reply)
                await done
        finally:
            self._answer = self._done = None
        return {key: Found(record.revision, record.data, record.stored_s) for key, record in answer.records.items()}

    async def take(self, msg: Message) -> None:
        """A message of an answer; one to a question that is over is not taken."""
        answer, done = self._answer, self._done
        if answer is None or done is None or done.done() or not msg.subject.endswith(f".{self._number}"):
            return
        try:
            if answer.take(msg.headers or {}, msg.data):
                done.set_result(None)
        except UnavailableError as error:
            done.set_exception(error)


def _check_connected(bus: Bus) -> None:
    if not bus.is_connected:
        raise UnavailableError("there is no connection to NATS")


class BucketWatch:
    """Keeps a mirror of (a part of) a bucket.

    A consumer that fell silent, skipped a message or lost its connection is replaced, and the snapshot that the new one
    starts with takes the place of the mirror: a change that was missed shows then.
    """

    def __init__(
        self,
        bus: Bus,
        bucket: NatsBucket,
        name: str,
        patterns: Sequence[str],
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
                if isinstance(error, RejectedError):
                    self._bus.refusals.reject(self._bucket.stream, self._name, error)
                await asyncio.sleep(backoff.next_s())

    async def _watch_once(self, backoff: Backoff) -> None:
        self._snapshot, self._sequence = {}, 0
        inbox = self._bus.new_inbox()
        async with self._bus.subscribed(inbox, self._on_message):
            await self._delete()
            state = await self._bus.put_consumer(self._bucket.stream, self._consumer(inbox))
            self._bus.refusals.accept(self._name)
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
