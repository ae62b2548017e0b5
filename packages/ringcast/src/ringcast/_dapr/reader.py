"""Reads rows of a config key over NATS, for clients that are not subscribed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
from ringcast_wire import (
    HeadsReply,
    LimitExceededError,
    NatsLogin,
    PartitionRows,
    UnknownKeyError,
    batch_payload,
    decode_fetch_reply,
    decode_heads_reply,
    full_payload,
    heads_payload,
    limits,
    names,
    partition_payload,
)
from ringcast_wire.key_ring import KeyRing

from ringcast._bus.bus import Bus, OpenBus, connected
from ringcast._bus.nats_bus import NatsBus
from ringcast._bus.requests import FetchClient, UnfinishedFetchError
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._common.opening import Openings

_FETCHES_AT_ONCE: Final = 8
_FIRST_ROWS: Final = 8


class Budget:
    """How many bytes of answers a read may still take in. What is beyond is refused, before it is in memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.left = max_bytes

    async def request(self, fetch: FetchClient, subject: str, payload: bytes = b"") -> bytes:
        """One fetch of the read.

        Raises:
            LimitExceededError: it has more bytes than are left.
        """
        try:
            body = await fetch.request(subject, payload, max_bytes=min(max(1, self.left), limits.MAX_REPLY_BYTES))
        except LimitExceededError:
            raise self.exceeded() from None
        self.left -= len(body)
        return body

    def exceeded(self) -> LimitExceededError:
        """The error of a read that is too large."""
        return LimitExceededError(f"the rows have over {self._max_bytes} bytes")


class KeyReader:
    """Reads keys over a connection of its own: opened when it is first needed, and again when it was lost for good.

    Every method raises ``UnavailableError`` when NATS or the config service does not answer, and what the service
    refused with. :meth:`key` and :meth:`rows` open encrypted values, and raise ``ValueSealedError`` where one can't be.
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        *,
        worker_id: str | None = None,
        timeout_s: float | None = None,
        login: NatsLogin | None = None,
        key_ring: str | None = None,
        open_bus: OpenBus = NatsBus.prepared,
    ) -> None:
        self._open_bus = open_bus
        self._given: dict[str, Any] = {"servers": servers, "worker_id": worker_id, "key_ring": key_ring}
        self._given |= login_settings(login)
        if timeout_s is not None:
            self._given.update(connect_timeout_s=timeout_s, fetch_timeout_s=timeout_s)
        self._opening = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._bus: Bus | None = None
        self._openings = Openings(None)
        self._fetches: FetchClient | None = None

    async def key(self, store: str, key: str) -> list[PartitionRows]:
        """Every live row of a key; see :func:`read_key`."""
        found = await read_key(await self._client(store, key), store, key)
        return [self._opened(store, key, part) for part in found]

    async def rows(self, store: str, key: str, row_ids: Sequence[str]) -> list[PartitionRows]:
        """The named rows of a key, tombstones among them; see :func:`read_rows`."""
        found = await read_rows(await self._client(store, key), store, key, row_ids)
        return [self._opened(store, key, part) for part in found]

    def _opened(self, store: str, key: str, part: PartitionRows) -> PartitionRows:
        opening = self._openings.of(store, key)
        rows = [row if row.deleted else opening.row(row) for row in part.rows]
        return msgspec.structs.replace(part, rows=rows)

    async def key_within(self, store: str, key: str, budget: Budget) -> list[PartitionRows]:
        """As :meth:`key`, if that has no more bytes than the budget.

        The partition with the most rows comes first and says about how large the rows are: what is clearly too much
        is not asked for, since an answer that is on its way can't be called back.

        Raises:
            LimitExceededError: it has more.
        """
        try:
            heads = await self.heads(store, key)
        except UnknownKeyError:
            return []
        counts = heads.rows or heads.heads
        if not any(counts):
            return []
        fetch, most = await self._client(store, key), max(counts)
        sample = names.fetch_subject(store, key, counts.index(most))
        body = await Budget(min(max(1, budget.left), limits.MAX_REPLY_BYTES)).request(
            fetch, sample, partition_payload()
        )
        if len(body) / most * sum(counts) > 2 * budget.left:
            raise budget.exceeded()
        full = await budget.request(fetch, names.fetch_subject(store, key, names.FETCH_FULL), full_payload())
        return decode_fetch_reply(full).partitions

    async def rows_within(self, store: str, key: str, row_ids: Sequence[str], budget: Budget) -> list[PartitionRows]:
        """As :meth:`rows`, a few at first and more while they are small, if they have no more bytes than the budget.

        Raises:
            LimitExceededError: they have more.
        """
        fetch = await self._client(store, key)
        subject = names.fetch_subject(store, key, names.FETCH_BATCH)
        found: list[PartitionRows] = []
        start, count = 0, _FIRST_ROWS
        while start < len(row_ids):
            request = batch_payload(row_ids[start : start + count])
            try:
                body = await budget.request(fetch, subject, request)
            except UnknownKeyError:
                return []
            found += decode_fetch_reply(body).partitions
            start += count
            count = min(2 * count, limits.MAX_BATCH_ROWS) if len(body) < limits.MIB else max(1, count // 2)
        return found

    async def heads(self, store: str, key: str) -> HeadsReply:
        """The revision of each partition now; raises ``UnknownKeyError`` for a key that was never written to."""
        client = await self._client(store, key)
        subject = names.fetch_subject(store, key, names.FETCH_HEADS)
        return decode_heads_reply(await client.request(subject, heads_payload()))

    async def partition(
        self, store: str, key: str, partition: int, *, since: int | None = None, history: str = ""
    ) -> tuple[PartitionRows, str]:
        """One partition: whole, or what has changed after a revision of that history, tombstones among it.

        It is whole all the same, without tombstones, where the history is another now, the revision too old, or too
        much has changed. Beside it the history that its revision is of.
        """
        client = await self._client(store, key)
        request = partition_payload(since, history)
        reply = await client.request(names.fetch_subject(store, key, partition), request)
        answer = decode_fetch_reply(reply)
        found = answer.partitions[0] if answer.partitions else PartitionRows(partition, 0, True, [])
        return found, answer.history

    async def close(self) -> None:
        """Ends the connection. It is opened again at the next read."""
        async with self._opening:
            await self._disconnect()

    async def _client(self, store: str, key: str) -> FetchClient:
        async with self._opening:
            if self._bus is not None and self._bus.is_closed:
                await self._disconnect()
            if self._fetches is None:
                await self._connect(store, key)
            assert self._fetches is not None
            return self._fetches

    async def _connect(self, store: str, key: str) -> None:
        given = {"store": store, "keys": [key], "name": "ringcast-dapr-client", "cache_dir": "", **self._given}
        config = WorkerConfig.resolve(given)
        self._openings = Openings(KeyRing.from_file(config.key_ring) if config.key_ring else None)
        async with AsyncExitStack() as stack:
            log = worker_log(logging.getLogger("ringcast.dapr"))
            self._bus = await stack.enter_async_context(connected(self._open_bus, config, log))
            self._fetches = await stack.enter_async_context(FetchClient.open(self._bus, config.fetch_timeout_s))
            self._stack = stack.pop_all()

    async def _disconnect(self) -> None:
        stack, self._stack, self._bus, self._fetches = self._stack, None, None, None
        if stack is not None:
            await stack.aclose()


def login_settings(login: NatsLogin | None) -> Mapping[str, Any]:
    """The worker settings that a login is made of."""
    return {name: value for name, value in msgspec.structs.asdict(login).items() if value} if login else {}


async def read_key(fetch: FetchClient, store: str, key: str) -> list[PartitionRows]:
    """Every live row of a key; nothing when it was never written to.

    In one snapshot, unless the key is too large for one answer, or for the time of one: then each partition is a
    snapshot of its own.

    Raises:
        UnavailableError: no config service answers.
        RingcastError: what the service refused with.
    """
    try:
        reply = await fetch.request(names.fetch_subject(store, key, names.FETCH_FULL), full_payload())
    except UnknownKeyError:
        return []
    except (LimitExceededError, UnfinishedFetchError):
        return await _read_by_partition(fetch, store, key)
    return decode_fetch_reply(reply).partitions


async def _read_by_partition(fetch: FetchClient, store: str, key: str) -> list[PartitionRows]:
    subject = names.fetch_subject(store, key, names.FETCH_HEADS)
    heads = decode_heads_reply(await fetch.request(subject, heads_payload())).heads
    turns = asyncio.Semaphore(_FETCHES_AT_ONCE)

    async def read(partition: int) -> list[PartitionRows]:
        async with turns:
            body = await fetch.request(names.fetch_subject(store, key, partition), partition_payload())
        return decode_fetch_reply(body).partitions

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(partition)) for partition, head in enumerate(heads) if head > 0]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [rows for task in tasks for rows in task.result()]


async def read_rows(fetch: FetchClient, store: str, key: str, row_ids: Sequence[str]) -> list[PartitionRows]:
    """The named rows of a key, tombstones among them. What was never written is left out. Raises as `read_key`."""
    found: list[PartitionRows] = []
    for start in range(0, len(row_ids), limits.MAX_BATCH_ROWS):
        request = batch_payload(row_ids[start : start + limits.MAX_BATCH_ROWS])
        try:
            reply = await fetch.request(names.fetch_subject(store, key, names.FETCH_BATCH), request)
        except UnknownKeyError:
            return []
        found += decode_fetch_reply(reply).partitions
    return found
