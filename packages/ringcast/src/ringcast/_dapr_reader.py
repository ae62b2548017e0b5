"""Reads rows of a config key over NATS, for clients that are not subscribed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ringcast_wire import (
    WIRE_VERSION,
    BatchRequest,
    LimitExceededError,
    PartitionRequest,
    PartitionRows,
    UnknownKeyError,
    decode_fetch_reply,
    decode_heads_reply,
    encode,
    limits,
    names,
)

from ringcast._fetch import FetchClient

_FETCHES_AT_ONCE: Final = 8


async def read_key(fetch: FetchClient, store: str, key: str) -> list[PartitionRows]:
    """Every live row of a key; nothing when it was never written to.

    In one snapshot, unless the key is too large for one answer: then each partition is a snapshot of its own.

    Raises:
        UnavailableError: no config service answers.
        RingcastError: what the service refused with.
    """
    try:
        reply = await fetch.request(names.fetch_subject(store, key, names.FETCH_FULL))
    except UnknownKeyError:
        return []
    except LimitExceededError:
        return await _read_by_partition(fetch, store, key)
    return decode_fetch_reply(reply).partitions


async def _read_by_partition(fetch: FetchClient, store: str, key: str) -> list[PartitionRows]:
    heads = decode_heads_reply(await fetch.request(names.fetch_subject(store, key, names.FETCH_HEADS))).heads
    turns = asyncio.Semaphore(_FETCHES_AT_ONCE)

    async def read(partition: int) -> list[PartitionRows]:
        async with turns:
            body = await fetch.request(names.fetch_subject(store, key, partition), encode(PartitionRequest()))
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
        request = BatchRequest(WIRE_VERSION, list(row_ids[start : start + limits.MAX_BATCH_ROWS]))
        try:
            reply = await fetch.request(names.fetch_subject(store, key, names.FETCH_BATCH), encode(request))
        except UnknownKeyError:
            return []
        found += decode_fetch_reply(reply).partitions
    return found
