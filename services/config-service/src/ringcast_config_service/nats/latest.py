"""Reads the newest entries of buckets: those that are there, and what stands in the places of others."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from nats.js import JetStreamContext
from ringcast_wire import bucket_reads
from ringcast_wire.buckets import StoredRecord

from ringcast_config_service.repository import StoreRecord


class Latest(NamedTuple):
    """What a bucket has. Nothing if there is no such bucket."""

    entries: dict[str, tuple[int, bytes]]
    """By name, with their revisions."""
    markers: dict[str, StoredRecord]
    """What stands in the places of entries that were deleted."""
    stored_s: dict[str, float]
    """When each entry was stored, in Unix time by the server's clock."""


async def read_newest(
    js: JetStreamContext, bucket: str, pattern: str = ">", *, among: Collection[str] | None = None
) -> Latest:
    """As :func:`ringcast_wire.bucket_reads.read_newest`."""
    found = Latest({}, {}, {})
    nc = js._nc  # the client of JetStream has no call for this
    for name, record in (await bucket_reads.read_newest(nc, bucket, pattern, among=among) or {}).items():
        if record.data is not None:
            found.entries[name] = record.revision, record.data
            found.stored_s[name] = record.stored_s
        else:
            found.markers[name] = record
    return found


async def read_sessions(js: JetStreamContext, store: StoreRecord, workers: Collection[str]) -> dict[str, bytes]:
    """As :func:`ringcast_wire.bucket_reads.read_sessions`; the store is one of exclusive ownership."""
    ttl_ms = store.settings_now.lease_ttl_ms
    assert ttl_ms is not None
    return await bucket_reads.read_sessions(js._nc, store.name, ttl_ms, workers)


async def server_time_s(js: JetStreamContext, bucket: str) -> float:
    """As :func:`ringcast_wire.bucket_reads.server_time_s`."""
    return await bucket_reads.server_time_s(js._nc, bucket)
