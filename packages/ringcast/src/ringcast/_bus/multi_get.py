"""The last messages of several subjects of a stream, with one request: what one server has at one moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from ringcast_wire import UnavailableError

from ringcast._bus.bus import Bus, Message
from ringcast._bus.kv import is_marker

ANSWER_S: Final = 2.0
"""How long an answer may take."""


class Found(NamedTuple):
    """A message of an answer. ``data`` is ``None`` for a marker; ``stored_s``: by the server's clock."""

    sequence: int
    data: bytes | None
    stored_s: float


class MultiGetAnswer:
    """What has come of an answer about ``what``, by subject without ``prefix``.

    Each message names the one before it, so that one that is missing shows.
    """

    def __init__(self, prefix: str, what: str) -> None:
        self.found: dict[str, Found] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._prefix = prefix
        self._what = what
        self._last = "0"

    def take(self, msg: Message) -> None:
        """Takes the next message in; what can't be read fails the answer."""
        if self.done.done():
            return
        try:
            self._take(msg)
        except (KeyError, ValueError) as error:
            self._fail(f"an answer about {self._what} can't be read: {error!r}")

    def _take(self, msg: Message) -> None:
        headers = msg.headers or {}
        status = headers.get("Status")
        if status in ("204", "404") and not msg.data:
            whole = status == "204" and headers.get("Nats-Last-Sequence") == self._last
            if whole or (status == "404" and self._last == "0" and headers.get("Description") == "No Results"):
                self.done.set_result(None)
            else:
                self._fail(f"an answer about {self._what} is incomplete")
        elif status is not None:
            self._fail(f"the {self._what} can't be read: {status} {headers.get('Description', '')}".rstrip())
        elif headers.get("Nats-Last-Sequence") != self._last:
            self._fail(f"an answer about {self._what} is incomplete")
        else:
            self._last = headers["Nats-Sequence"]
            stored_s = datetime.fromisoformat(headers["Nats-Time-Stamp"]).timestamp()
            name = headers["Nats-Subject"].removeprefix(self._prefix)
            self.found[name] = Found(int(self._last), None if is_marker(headers) else msg.data, stored_s)

    def _fail(self, why: str) -> None:
        self.done.set_exception(UnavailableError(why))


async def ask_for(bus: Bus, stream: str, prefix: str, keys: Sequence[str], reply: str) -> None:
    """Sends the request for these keys of a bucket. The answer comes to ``reply``."""
    question = {"multi_last": [prefix + key for key in keys]}
    await bus.publish(bus.api(f"DIRECT.GET.{stream}"), json.dumps(question).encode(), reply=reply)


async def read_entries(bus: Bus, bucket: str, keys: Sequence[str], what: str) -> dict[str, Found]:
    """What stands under these keys of a bucket, at most a few hundred; markers among them.

    Raises:
        UnavailableError: the bucket can't be read, or the answer is incomplete.
        BusError, TimeoutError: there is no connection, or no answer.
    """
    if not bus.is_connected:
        raise UnavailableError("there is no connection to NATS")
    prefix, stream, inbox = f"$KV.{bucket}.", f"KV_{bucket}", bus.new_inbox()
    answer = MultiGetAnswer(prefix, what)

    async def take(msg: Message) -> None:
        answer.take(msg)

    async with bus.subscribed(inbox, take), bus.refusals.fail_fast(bus.api(f"DIRECT.GET.{stream}")):
        async with asyncio.timeout(ANSWER_S):
            await ask_for(bus, stream, prefix, keys, inbox)
            await answer.done
    return answer.found
