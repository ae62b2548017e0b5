"""Reads the newest entries of buckets by requests alone: what one server has of them at one moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from nats.js import JetStreamContext
from ringcast_wire import UnavailableError, names

_ANSWER_S: Final = 5.0
_MARKERS: Final = ("KV-Operation", "Nats-Marker-Reason")


class Latest(NamedTuple):
    """What one server has of a bucket. ``up_to``: the last message that it knows of; 0 where it has no such entry."""

    entries: dict[str, tuple[int, bytes]]
    """By name, with their revisions."""
    may_call: dict[str, int]
    """Registrations that were deleted while calls of their workers may have run: revisions of the markers."""
    up_to: int


async def read_latest(js: JetStreamContext, bucket: str, patterns: Sequence[str]) -> Latest:
    """The entries of a bucket whose names match.

    Raises:
        UnavailableError: it refuses, or its answer is incomplete.
    """
    stream, prefix = f"KV_{bucket}", f"$KV.{bucket}."
    nc = js._nc  # the client of JetStream has no call for this
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    found = Latest({}, {}, 0)
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
                return Latest({}, {}, 0)
            if status is not None:
                raise UnavailableError(f"{stream} can't be read: {status} {headers.get('Description', '')}".rstrip())
            if headers.get("Nats-Last-Sequence") != last:
                raise UnavailableError(f"an answer about {stream} is incomplete: try again")
            last = headers["Nats-Sequence"]
            name = headers["Nats-Subject"].removeprefix(prefix)
            if not any(marker in headers for marker in _MARKERS):
                found.entries[name] = int(last), message.data
            elif names.HEADER_MAY_CALL in headers:
                found.may_call[name] = int(last)
    finally:
        await answers.unsubscribe()
