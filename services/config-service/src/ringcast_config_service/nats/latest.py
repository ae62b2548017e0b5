"""Reads the newest entries of buckets by requests alone: what one server has of them at one moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from ringcast_wire import UnavailableError, names
from ringcast_wire.migrating import said_gone

_ANSWER_S: Final = 5.0
_MARKERS: Final = ("KV-Operation", "Nats-Marker-Reason")


class Marker(NamedTuple):
    """What stands in place of an entry that was deleted."""

    revision: int
    may_call: bool
    """Of a registration: calls of its worker may have run then."""
    gone: int | None
    """Of a state: an operator has said so of its worker, as of this revision of its registration."""


class Latest(NamedTuple):
    """What one server has of a bucket. ``up_to``: the last message that it knows of; 0 where it has no such entry."""

    entries: dict[str, tuple[int, bytes]]
    """By name, with their revisions."""
    markers: dict[str, Marker]
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
        last = (await js.stream_info(f"KV_{bucket}")).state.last_seq
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
    stream, prefix = f"KV_{bucket}", f"$KV.{bucket}."
    nc = js._nc  # the client of JetStream has no call for this
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    found = Latest({}, {}, {}, 0)
    last = "0"
    try:
        question = json.dumps({"multi_last": [prefix + pattern for pattern in patterns]}).encode()
        await nc.publish(f"$JS.API.DIRECT.GET.{stream}", question, reply=inbox)
        while True:
            message = await answers.next_msg(_ANSWER_S)
            headers = message.headers or {}
            status = headers.get("Status")
            if status == "204" and headers.get("Nats-Last-Sequence") == last:
                return found._replace(up_to=int(headers["Nats-UpTo-Sequence"]))
            if status == "404":
                # Where there was an entry a moment ago the server lags behind, or it has just aged out.
                return Latest({}, {}, {}, 0)
            if status is not None:
                raise UnavailableError(f"{stream} can't be read: {status} {headers.get('Description', '')}".rstrip())
            if headers.get("Nats-Last-Sequence") != last:
                raise UnavailableError(f"an answer about {stream} is incomplete: try again")
            last = headers["Nats-Sequence"]
            name = headers["Nats-Subject"].removeprefix(prefix)
            if not any(marker in headers for marker in _MARKERS):
                found.entries[name] = int(last), message.data
                found.stored_s[name] = datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp()
            else:
                found.markers[name] = Marker(int(last), names.HEADER_MAY_CALL in headers, said_gone(headers))
    finally:
        await answers.unsubscribe()
