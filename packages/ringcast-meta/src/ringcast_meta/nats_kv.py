"""The store over a bucket of NATS KV; needs the extra ``nats``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

from nats.aio.client import Client
from ringcast_wire import InvalidInputError, UnavailableError, names

from ringcast_meta._conflict import conflict
from ringcast_meta._lease import Lease
from ringcast_meta._limits import (
    check_key,
    check_last,
    check_prefix,
    check_snapshot,
    check_ttl,
    check_value,
    no_leases,
    no_watches,
)
from ringcast_meta._nats.bucket import Bucket, Stored, WrongSequenceError
from ringcast_meta._nats.leases import BucketLeases
from ringcast_meta._nats.session import BucketSession
from ringcast_meta._options import StoreOptions
from ringcast_meta._types import Entry
from ringcast_meta._watch import Deliver, Watch

__all__ = ["NatsKvStore"]

_TRIES: Final = 8
_READS: Final = 64
"""Entries that are read together."""


class NatsKvStore:
    """A :class:`~ringcast_meta.MetadataStore` in one bucket. It reads and writes it, and leaves the connection open.

    Reads, and the checks of watches, are answered by the leader of the stream. The bucket needs ``allow_msg_ttl`` for
    leases (a server of 2.11 or later), and neither limit markers nor roll-ups. A user of NATS needs

    - ``$JS.API.STREAM.INFO.KV_<bucket>`` and ``$JS.API.STREAM.MSG.GET.KV_<bucket>`` for all of it;
    - ``$JS.API.CONSUMER.CREATE.KV_<bucket>.*.$KV.<bucket>.>`` and ``$JS.API.CONSUMER.DELETE.KV_<bucket>.*`` to watch;
    - ``$KV.<bucket>.>`` to write;
    - to subscribe to the inboxes of the connection.

    ``jetstream_api``: where the user has the API of JetStream, if not at ``$JS.API``.
    """

    def __init__(
        self,
        connection: Client,
        bucket: str,
        options: StoreOptions | None = None,
        *,
        jetstream_api: str = "$JS.API",
    ) -> None:
        self._options = options or StoreOptions()
        names.check_name("bucket", bucket)
        self._bucket = Bucket(connection, bucket, self._options.call_timeout_s, jetstream_api)
        self._kept = BucketLeases(self._bucket)
        self._watches = no_watches()
        self._leases = no_leases()

    def take_error(self, error: Exception) -> None:
        """For the ``error_cb`` of the connection, by which a server says what it refuses.

        What is refused then ends at once with ``PermissionDeniedError``. Where nothing calls this, it ends like what
        nobody answers: after ``call_timeout_s``.
        """
        self._bucket.refusals.take(error)

    async def create_bucket(self, *, replicas: int = 1) -> None:
        """Makes the bucket where there is none, on so many servers (1, 3 or 5).

        Raises:
            InvalidInputError: it is there without ``allow_msg_ttl``.
            UnavailableError: NATS did not answer, or did not make it.
        """
        if replicas not in (1, 3, 5):
            raise InvalidInputError(f"replicas {replicas!r} is not allowed: 1, 3 or 5 are", field="replicas")
        await self._bucket.make(replicas)

    async def get(self, key: str) -> Entry | None:
        """See :class:`~ringcast_meta.MetadataStore`."""
        last = await self._bucket.last(check_key(key))
        return None if last is None else last.entry

    async def read(self, prefix: str = "") -> list[Entry]:
        """See :class:`~ringcast_meta.MetadataStore`."""
        keys = sorted(await self._bucket.keys(check_prefix(prefix)))
        check_snapshot(prefix, len(keys))
        entries: list[Entry] = []
        size = 0
        for first in range(0, len(keys), _READS):
            lasts = await asyncio.gather(*map(self._bucket.last, keys[first : first + _READS]))
            found = [last.entry for last in lasts if last is not None and last.entry is not None]
            entries += found
            size += sum(len(entry.key) + len(entry.value) for entry in found)
            check_snapshot(prefix, len(entries), size)
        return entries

    async def create(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return await self._write(check_key(key), 0, self._writer(key, check_value(value), lease))

    async def put(self, key: str, value: bytes, *, last: int, lease: Lease | None = None) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return await self._write(check_key(key), check_last(last), self._writer(key, check_value(value), lease))

    async def delete(self, key: str, *, last: int) -> int:
        """See :class:`~ringcast_meta.MetadataStore`."""

        async def write(expected: int) -> int:
            return await self._bucket.publish_deletion(key, expected=expected)

        return await self._write(check_key(key), check_last(last), write)

    def _writer(self, key: str, value: bytes, lease: Lease | None) -> Callable[[int], Awaitable[int]]:
        """What writes the entry over the message with a sequence."""
        if lease is None:
            return lambda expected: self._bucket.publish(key, value, expected=expected)
        self._kept.of(lease.id)
        lease.attach(key)
        return lambda expected: self._kept.write(lease.id, key, value, expected)

    async def _write(self, key: str, revision: int, write: Callable[[int], Awaitable[int]]) -> int:
        """Writes over the entry of a revision (0: nothing stands there).

        The sequence of its message is another where it was deleted, or where its lease was refreshed. What is to be
        written over is read first: a deletion has a sequence too, which must not pass for the revision of an entry.
        """
        last: Stored | None = None
        for attempt in range(_TRIES):
            if revision or attempt:
                last = await self._bucket.last(key)
                found = 0 if last is None or last.entry is None else last.entry.revision
                if found != revision:
                    raise conflict(key, revision, found)
            with suppress(WrongSequenceError):
                return await write(0 if last is None else last.sequence)
        raise UnavailableError(f"key {key!r} has changed during {_TRIES} tries to write it")

    def watch(self, prefix: str = "") -> Watch:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return Watch(check_prefix(prefix), self._open_session, self._options, self._watches)

    def _open_session(self, prefix: str, deliver: Deliver) -> BucketSession:
        return BucketSession(self._bucket, prefix, deliver)

    def lease(self, ttl_s: int) -> AbstractAsyncContextManager[Lease]:
        """See :class:`~ringcast_meta.MetadataStore`."""
        return Lease(self._kept, check_ttl(ttl_s), self._options.call_timeout_s, self._leases)
