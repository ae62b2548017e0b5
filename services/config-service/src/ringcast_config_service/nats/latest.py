"""Reads the newest entries of buckets: those that are there, and what stands in the places of others."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from typing import Final, NamedTuple

from nats.js import JetStreamContext
from ringcast_wire import UnavailableError, bucket_reads
from ringcast_wire.buckets import StoredRecord, stream_of

_REQUEST_S: Final = 5.0


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


async def server_time_s(js: JetStreamContext, bucket: str) -> float:
    """What time it is by the server that stores the bucket, in Unix time: only its own times are compared with it.

    Raises:
        UnavailableError: the server does not say it.
    """
    answer = await js._nc.request(f"$JS.API.STREAM.INFO.{stream_of(bucket)}", b"", timeout=_REQUEST_S)
    stamp = json.loads(answer.data).get("ts")
    if stamp is None:
        raise UnavailableError(f"NATS does not say what time it is by bucket {bucket}: try again")
    return datetime.fromisoformat(stamp).timestamp()
