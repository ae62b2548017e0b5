"""Reads the newest entries of buckets by requests alone: what one server has of them at one moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from nats.js import JetStreamContext
from ringcast_wire import UnavailableError

_ANSWER_S: Final = 5.0
_MARKERS: Final = ("KV-Operation", "Nats-Marker-Reason")


async def read_latest(
    js: JetStreamContext, bucket: str, patterns: Sequence[str]
) -> tuple[dict[str, tuple[int, bytes]], int]:
    """The entries of a bucket whose names match, with their revisions, and the last message that the server knows of.

    That is 0 where it has no such entry.

    Raises:
        UnavailableError: it refuses, or its answer is incomplete.
    """
    stream, prefix = f"KV_{bucket}", f"$KV.{bucket}."
    nc = js._nc  # the client of JetStream has no call for this
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    found: dict[str, tuple[int, bytes]] = {}
    last = "0"
    try:
        question = json.dumps({"multi_last": [prefix + pattern for pattern in patterns]}).encode()
        await nc.publish(f"$JS.API.DIRECT.GET.{stream}", question, reply=inbox)
        while True:
            message = await answers.next_msg(_ANSWER_S)
            headers = message.headers or {}
            status = headers.get("Status")
            if status == "204" and headers.get("Nats-Last-Sequence") == last:
                return found, int(headers["Nats-UpTo-Sequence"])
            if status == "404":
                return {}, 0  # where there was an entry a moment ago the server lags behind, or it has just aged out
            if status is not None:
                raise UnavailableError(f"{stream} can't be read: {status} {headers.get('Description', '')}".rstrip())
            if headers.get("Nats-Last-Sequence") != last:
                raise UnavailableError(f"an answer about {stream} is incomplete: try again")
            last = headers["Nats-Sequence"]
            if not any(name in headers for name in _MARKERS):
                found[headers["Nats-Subject"].removeprefix(prefix)] = int(last), message.data
    finally:
        await answers.unsubscribe()
