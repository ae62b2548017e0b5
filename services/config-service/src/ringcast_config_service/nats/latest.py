"""Reads the newest entries of buckets by requests alone: what one server has of them at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from ringcast_wire import UnavailableError
from ringcast_wire.buckets import BucketAnswer, StoredRecord, question, stream_of

_ANSWER_S: Final = 5.0


class Latest(NamedTuple):
    """What one server has of a bucket. ``up_to``: the last message that it knows of; 0 where it has no such entry."""

    entries: dict[str, tuple[int, bytes]]
    """By name, with their revisions."""
    markers: dict[str, StoredRecord]
    """What stands in the places of entries that were deleted."""
    stored_s: dict[str, float]
    """When each entry was stored, in Unix time by the server's clock."""
    up_to: int


_AT_ONCE: Final = 256
_TRIES: Final = 20
_PAUSE_S: Final = 0.05


async def read_newest(js: JetStreamContext, bucket: str, patterns: Sequence[str]) -> Latest:
    """As :func:`read_latest`, from a server that has all that was written before this call.

    Nothing from a server that has nothing: what follows from that is never a proof.
    """
    whole = Latest({}, {}, {}, 0)
    for at in range(0, len(patterns), _AT_ONCE):
        found = await _read_newest(js, bucket, patterns[at : at + _AT_ONCE])
        whole.entries.update(found.entries)
        whole.markers.update(found.markers)
        whole.stored_s.update(found.stored_s)
    return whole


async def _read_newest(js: JetStreamContext, bucket: str, patterns: Sequence[str]) -> Latest:
    try:
        last = (await js.stream_info(stream_of(bucket))).state.last_seq
    except NotFoundError:
        return Latest({}, {}, {}, 0)
    for _ in range(_TRIES):
        found = await read_latest(js, bucket, patterns)
        if not found.up_to or found.up_to >= last:
            return found
        await asyncio.sleep(_PAUSE_S)
    raise UnavailableError(f"bucket {bucket} is read from a server that lags behind: try again")


async def read_latest(js: JetStreamContext, bucket: str, patterns: Sequence[str]) -> Latest:
    """The entries of a bucket whose names match.

    Raises:
        UnavailableError: it refuses, or its answer is incomplete.
    """
    stream = stream_of(bucket)
    nc = js._nc  # the client of JetStream has no call for this
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    answer = BucketAnswer(bucket, stream)
    try:
        await nc.publish(f"$JS.API.DIRECT.GET.{stream}", question(bucket, patterns), reply=inbox)
        while True:
            message = await answers.next_msg(_ANSWER_S)
            if answer.take(message.headers or {}, message.data):
                break
    finally:
        await answers.unsubscribe()
    found = Latest({}, {}, {}, answer.up_to)
    for name, record in answer.records.items():
        if record.data is not None:
            found.entries[name] = record.revision, record.data
            found.stored_s[name] = record.stored_s
        else:
            found.markers[name] = record
    return found
