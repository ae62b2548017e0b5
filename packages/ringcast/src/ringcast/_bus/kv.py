"""Key-value buckets: compare-and-set writes, and a watch that survives restarts of the server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from nats.aio.msg import Msg
from nats.js import api
from nats.js import errors as js_errors

from ringcast._bus.connection import TRANSIENT, Connection
from ringcast._common.backoff import Backoff
from ringcast._common.log import Log
from ringcast._protocol.membership import Entry, Mirror

_HEARTBEAT_S: Final = 1.0
_SILENT_S: Final = 3.5
_MARKER: Final = "Nats-Marker-Reason"
_OPERATION: Final = "KV-Operation"
_WRONG_SEQUENCE: Final = (10071, 10164)


class ConflictError(Exception):
    """The key is not at the revision that a compare-and-set named."""


class Bucket:
    """One bucket, without the stream look-up that the client's own class needs."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.name = name
        self.stream = f"KV_{name}"
        self.prefix = f"$KV.{name}."
        self._connection = connection

    async def get(self, key: str) -> Entry | None:
        """What stands under a key; ``None`` if nothing ever did, an entry without value for a marker."""
        try:
            message = await self._connection.last_message(self.stream, self.prefix + key)
        except js_errors.NotFoundError:
            return None
        assert message.seq is not None
        gone = message.headers is not None and is_marker(message.headers)
        return Entry(message.seq, None if gone else message.data or b"")

    async def put(self, key: str, value: bytes, *, last: int) -> int:
        """Writes if the key is at revision ``last`` (0: it never was), and returns the new revision.

        Raises:
            ConflictError: it is at another.
        """
        return await self._publish(key, value, last, {})

    async def delete(self, key: str, *, last: int) -> None:
        """Deletes if the key is at revision ``last``.

        Raises:
            ConflictError: it is at another.
        """
        await self._publish(key, b"", last, {_OPERATION: "DEL"})

    async def _publish(self, key: str, value: bytes, last: int, headers: dict[str, str]) -> int:
        headers[str(api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value)] = str(last)
        try:
            return await self._connection.store(self.prefix + key, value, headers)
        except js_errors.APIError as error:
            if error.err_code in _WRONG_SEQUENCE:
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
        connection: Connection,
        bucket: Bucket,
        name: str,
        patterns: list[str],
        mirror: Mirror,
        changed: Callable[[], None],
        log: Log,
    ) -> None:
        self._connection = connection
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
        connection.on_back(self._broken.set)

    async def run(self) -> None:
        """Watches until cancelled."""
        backoff = Backoff(random.random, first_s=0.2, most_s=5.0)
        while True:
            self._broken.clear()
            try:
                await self._watch_once(backoff)
            except TRANSIENT as error:
                self._log.debug("watch failed", bucket=self._bucket.name, error=repr(error))
                await asyncio.sleep(backoff.next_s())

    async def _watch_once(self, backoff: Backoff) -> None:
        self._snapshot, self._sequence = {}, 0
        inbox = self._connection.new_inbox()
        async with self._connection.subscribed(inbox, self._on_message):
            await self._delete()
            info = await self._connection.put_consumer(self._bucket.stream, self._consumer(inbox))
            if not info.num_pending and not (info.delivered and info.delivered.consumer_seq):
                self._complete()
            backoff.reset()
            await self._until_broken()
            if self._connection.is_connected:
                await self._delete()

    async def _delete(self) -> None:
        await self._connection.delete_consumer(self._bucket.stream, self._name)

    def _consumer(self, inbox: str) -> api.ConsumerConfig:
        return api.ConsumerConfig(
            name=self._name,
            deliver_subject=inbox,
            deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT,
            ack_policy=api.AckPolicy.NONE,
            filter_subjects=self._patterns,
            idle_heartbeat=_HEARTBEAT_S,
            inactive_threshold=30.0,
            mem_storage=True,
            num_replicas=1,
        )

    async def _until_broken(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while loop.time() < (due := self._heard_at + _SILENT_S):
            try:
                async with asyncio.timeout_at(due):
                    await self._broken.wait()
            except TimeoutError:
                continue
            return

    async def _on_message(self, msg: Msg) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if not msg.reply:
            last = (msg.headers or {}).get("Nats-Last-Consumer")
            if last is not None and int(last) != self._sequence:
                self._broken.set()
            return
        if not msg.reply.startswith("$JS.ACK."):
            return
        meta = msg.metadata
        if meta.sequence.consumer != self._sequence + 1:
            self._broken.set()
            return
        self._sequence += 1
        gone = is_marker(msg.headers or {})
        entry = Entry(meta.sequence.stream, None if gone else msg.data)
        self._take(msg.subject.removeprefix(self._bucket.prefix), entry)
        if meta.num_pending == 0 and self._snapshot is not None:
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


def is_marker(headers: dict[str, str]) -> bool:
    """Whether a message stands for an entry that is gone."""
    return _MARKER in headers or headers.get(_OPERATION) in ("DEL", "PURGE")
