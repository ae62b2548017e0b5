"""One unbroken piece of a watch of etcd: pages of a range at one revision, and a watch from the next one on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from aetcd import rpc
from ringcast_wire import RingcastError

from ringcast_meta._etcd.connection import CompactedError, EtcdConnection, translated
from ringcast_meta._limits import MAX_SNAPSHOT_BYTES, check_snapshot
from ringcast_meta._types import Change, Entry
from ringcast_meta._watch import Deliver, WatchBrokenError

_PAGE: Final = 64
"""Entries a page: with 512 KiB each they fit into a message."""


class EtcdSession:
    """Follows the keys below a prefix.

    etcd delivers every change in the order of its revision, so there is no gap in the middle. Whether one is missing at
    the end is asked of the leader, by a read: it must find no entry that is newer than what was delivered, and as many
    as are known. (etcd has progress notifications for that. Before 3.4.25 and 3.5.8 they could overtake changes.)
    """

    def __init__(self, connection: EtcdConnection, namespace: str, prefix: str, deliver: Deliver) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.revision = 0
        self._connection = connection
        self._namespace = namespace
        self._prefix = prefix
        self._first_key = f"{namespace}{prefix}".encode()
        self._range_end = range_end(self._first_key)
        self._deliver = deliver
        self._member = connection.member
        self._keys: set[str] = set()
        self._moved = asyncio.Event()
        self._fragments: list[Any] = []
        self._fragment_bytes = 0
        self._cluster = 0
        self._reading: asyncio.Task[None] | None = None

    async def snapshot(self) -> tuple[list[Entry], int]:
        entries, header = await read_pages(self._connection, self._namespace, self._prefix)
        self.revision = header.revision
        self._cluster = header.cluster_id
        self._keys = {entry.key for entry in entries}
        self._member = self._connection.member
        self._reading = asyncio.create_task(self._read(self.revision + 1), name=f"etcd watch {self._prefix}")
        return entries, self.revision

    async def check(self) -> None:
        while True:
            self._moved.clear()
            heard = self.revision  # what comes while the server answers may be newer than its answer
            head = (await self._range(count_only=True)).header
            if head.cluster_id != self._cluster or head.revision < heard:
                raise WatchBrokenError(f"the watch of {self._prefix!r} is broken: etcd has lost its history")
            if self.revision >= head.revision or await self._holds_all(head.revision):
                self.revision = max(self.revision, head.revision)
                return

    async def _holds_all(self, head: int) -> bool:
        """Whether what was delivered is what stands there at ``head``; waits for what is on its way."""
        since = self.revision + 1
        try:
            newest = await self._range(
                keys_only=True,
                revision=head,
                min_mod_revision=since,
                limit=1,
                sort_order=rpc.RangeRequest.SortOrder.DESCEND,
                sort_target=rpc.RangeRequest.SortTarget.MOD,
            )
        except CompactedError:
            return False
        if self.revision >= head:
            return True
        if newest.count == len(self._keys) and all(each.mod_revision <= self.revision for each in newest.kvs):
            return True
        # The one who asks us does not wait forever.
        await self._moved.wait()
        return False

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    async def _range(self, **more: Any) -> Any:
        return await _range(self._connection, self._first_key, self._range_end, **more)

    async def _read(self, revision: int) -> None:
        """Reads the watch until it ends, and says why it did."""
        error = WatchBrokenError(f"the watch of {self._prefix!r} is broken: etcd has ended it")
        try:
            with translated("Watch", False):
                await self._read_responses(revision)
        except WatchBrokenError as broken:
            error = broken
        except RingcastError as lost:
            self._connection.avoid(self._member)
            error = WatchBrokenError(f"the watch of {self._prefix!r} is broken: {lost}")
        if not self.failed.done():
            self.failed.set_exception(error)

    async def _read_responses(self, revision: int) -> None:
        request = rpc.WatchCreateRequest(
            key=self._first_key, range_end=self._range_end, start_revision=revision, fragment=True
        )
        ended = asyncio.Event()

        async def requests() -> AsyncIterator[Any]:
            yield rpc.WatchRequest(create_request=request)
            await ended.wait()  # an end of the requests would end the watch

        async with self._connection.channel() as (channel, metadata):
            responses: Any = rpc.WatchStub(channel).Watch(requests(), metadata=metadata)
            try:
                async for response in responses:
                    self._take(response)
            finally:
                ended.set()
                responses.cancel()

    def _take(self, response: Any) -> None:
        if response.compact_revision:
            raise WatchBrokenError(
                f"the watch of {self._prefix!r} is broken: etcd has compacted revision {response.compact_revision}"
            )
        if response.canceled:
            raise WatchBrokenError(f"the watch of {self._prefix!r} is broken: etcd says {response.cancel_reason!r}")
        self._fragments += response.events
        self._fragment_bytes += sum(len(event.kv.value) for event in response.events)
        if self._fragment_bytes > MAX_SNAPSHOT_BYTES:
            raise WatchBrokenError(
                f"the watch of {self._prefix!r} is broken: changes of {self._fragment_bytes} bytes come at once"
            )
        if not response.fragment:  # else more of the same revisions is to come
            events, self._fragments, self._fragment_bytes = self._fragments, [], 0
            for event in events:
                self._take_event(event)
            self._moved.set()

    def _take_event(self, event: Any) -> None:
        entry = entry_of(event.kv, self._namespace)
        if event.type == rpc.Event.EventType.DELETE:
            self._keys.discard(entry.key)
            self._deliver(Change(entry.key, None, entry.revision))
        else:
            self._keys.add(entry.key)
            self._deliver(Change(entry.key, entry, entry.revision))
        self.revision = entry.revision


async def read_pages(connection: EtcdConnection, namespace: str, prefix: str) -> tuple[list[Entry], Any]:
    """Everything below a prefix at one revision, in the order of the keys, and the header that names the revision."""
    first_key = f"{namespace}{prefix}".encode()
    end = range_end(first_key)
    answer = await _range(connection, first_key, end, limit=_PAGE)
    header = answer.header
    entries: list[Entry] = []
    size = 0
    while True:
        check_snapshot(prefix, answer.count)
        for each in answer.kvs:
            entry = entry_of(each, namespace)
            size += len(entry.key) + len(entry.value)
            entries.append(entry)
        check_snapshot(prefix, len(entries), size)
        if not answer.more:
            return entries, header
        after = answer.kvs[-1].key + b"\0"
        answer = await _range(connection, after, end, limit=_PAGE, revision=header.revision)


async def _range(connection: EtcdConnection, first_key: bytes, end: bytes, **more: Any) -> Any:
    return await connection.call("Range", rpc.RangeRequest(key=first_key, range_end=end, **more))


def entry_of(each: Any, namespace: str) -> Entry:
    """What etcd calls a key-value."""
    key = each.key.decode(errors="replace").removeprefix(namespace)
    return Entry(key, bytes(each.value), int(each.mod_revision), bool(each.lease))


def range_end(first_key: bytes) -> bytes:
    """The end of the range of all keys that begin like this. Ours are ASCII, so that the last byte has a next one."""
    return first_key[:-1] + bytes([first_key[-1] + 1])
