"""The messages of a subscription in batches: all that one read of the socket brought, in one call.

The NATS client hands messages on one by one, through a queue and a task for each subscription; that is most of what an
event costs. So its parser is replaced by one with a shorter way for the messages of certain subscriptions. All else
goes the client's own way. This is the one file that knows the inside of the client's parser and of its output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ProtocolError
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, Parser
from ringcast_wire import names

from ringcast._bus.bus import Delivery, Message
from ringcast._bus.nats_client import WorkerClient

_END: Final = b"\r\n"
_MAX_LINE: Final = 4_096
_TRACE: Final = names.HEADER_TRACE.encode()
_MESSAGES: Final = (b"MSG", b"HMSG")
_FIELDS: Final = 5
"""``MSG subject sid reply size``; a message with headers (``HMSG``) has the size of those before the whole size."""


Take = Callable[[Sequence[Delivery]], None]
Other = Callable[[Message], None]


class BatchParser(Parser):
    """The client's parser, with a shorter way for the deliveries of some subscriptions."""

    def __init__(self, nc: Client) -> None:
        super().__init__(nc)
        self.takers: dict[bytes, tuple[Take, bytes]] = {}
        """By the subscription's number: the function that takes its deliveries, and how other subjects begin."""
        self.errors: list[Exception] = []
        """What those functions have raised, until it is reported to the client."""

    async def parse(self, data: bytes = b"") -> None:
        """Takes in what was read from the socket."""
        if self.state == AWAITING_MSG_PAYLOAD:  # to the end of the message that was cut, but no further
            needed = self.needed + len(_END) - len(self.buf)
            await super().parse(data[:needed])
            data = data[needed:]
        while data and self.takers and self.state == AWAITING_CONTROL_LINE:
            if self.buf:
                data = bytes(self.buf) + data
                self.buf.clear()
            at = self._take(data)
            following = _message_end(data, at)
            await super().parse(data[at:following])
            data = data[following:]
        if data:
            await super().parse(data)
        while self.errors:
            await self.nc._error_cb(self.errors.pop(0))

    def _take(self, data: bytes) -> int:
        """Hands over the deliveries that ``data`` begins with; returns where something else begins."""
        at, end = 0, len(data)
        batch: list[Delivery] = []
        take: Take | None = None
        while True:
            line_end = data.find(_END, at, at + _MAX_LINE)
            fields = data[at:line_end].split() if line_end > 0 else []
            found = self.takers.get(fields[2]) if len(fields) >= _FIELDS and fields[0] in _MESSAGES else None
            if found is None or fields[1].startswith(found[1]):
                break
            start = line_end + len(_END)
            stop = start + _size(fields[-1])
            if stop + len(_END) > end:
                break
            if found[0] is not take:
                self._hand_over(take, batch)
                take, batch = found[0], []
            if len(fields) == _FIELDS:
                batch.append(Delivery(_text(fields[1]), _text(fields[3]), data[start:stop]))
            else:
                body = start + _size(fields[4])
                trace = _trace(data[start:body])
                batch.append(Delivery(_text(fields[1]), _text(fields[3]), data[body:stop], trace))
            at = stop + len(_END)
        self._hand_over(take, batch)
        return at

    def _hand_over(self, take: Take | None, batch: list[Delivery]) -> None:
        if take is None or not batch:
            return
        self.nc.stats["in_msgs"] += len(batch)
        self.nc.stats["in_bytes"] += sum([len(delivery.data) for delivery in batch])
        try:
            take(batch)
        except Exception as error:  # noqa: BLE001  # a mistake in here must not end the connection
            self.errors.append(error)


def _message_end(data: bytes, at: int) -> int:
    """The end of the one message or line that begins at ``at``, or of ``data``."""
    line_end = data.find(_END, at, at + _MAX_LINE)
    if line_end < 0:
        return len(data)
    fields = data[at:line_end].split()
    size = _size(fields[-1]) + len(_END) if fields and fields[0] in _MESSAGES else 0
    return min(len(data), line_end + len(_END) + size)


def _trace(headers: bytes) -> str | None:
    """The others are not worth looking at."""
    if _TRACE not in headers:
        return None
    return Client._parse_header_lines(headers).get(names.HEADER_TRACE)


def _text(subject: bytes) -> str:
    """A client may publish to a subject that is no UTF-8; such a subject is none of ours."""
    return subject.decode("utf-8", "replace")


def _size(field: bytes) -> int:
    if not field.isdigit():
        raise ProtocolError("nats: malformed MSG")
    return int(field)


class _Direct:
    """In the place of a subscription's queue: what goes the client's own way is handed over at once, in its turn."""

    def __init__(self, other: Other, errors: list[Exception]) -> None:
        self._other = other
        self._errors = errors

    def put_nowait(self, msg: Msg) -> None:
        try:
            self._other(msg)
        except Exception as error:  # noqa: BLE001  # as above
            self._errors.append(error)

    def empty(self) -> bool:
        return True

    def qsize(self) -> int:
        return 0


def batching_client(*, batches: bool = True) -> Client:
    """A client that can :func:`deliver_batches`; without ``batches`` it has the library's own parser, and can't."""
    client = WorkerClient()
    if batches:
        client._ps = BatchParser(client)
    return client


def deliver_batches(client: Client, subscription: Subscription, take: Take, other: Other) -> None:
    """Has the deliveries of a subscription handed to ``take``; what is not one, or came in parts, to ``other``.

    The order stays the same. Neither may wait. For a new subscription of a :func:`batching_client` to ``<inbox>.*``:
    only messages on other subjects are deliveries.
    """
    parser = client._ps
    assert isinstance(parser, BatchParser)
    parser.takers[str(subscription._id).encode()] = take, subscription.subject.removesuffix("*").encode()
    subscription._stop_processing()
    subscription._pending_queue = cast("asyncio.Queue[Msg]", _Direct(other, parser.errors))


def end_batches(client: Client, subscription: Subscription) -> None:
    """The subscription ends."""
    parser = client._ps
    assert isinstance(parser, BatchParser)
    parser.takers.pop(str(subscription._id).encode(), None)


async def publish_to_all(client: Client, subjects: Sequence[str], body: str = "") -> None:
    """Publishes the same short text to each subject, all in one piece; the subjects must be well-formed."""
    client.stats["out_msgs"] += len(subjects)
    client.stats["out_bytes"] += len(subjects) * len(body)
    rest = f" {len(body)}\r\n{body}\r\n"
    await client._send_command("".join([f"PUB {subject}{rest}" for subject in subjects]).encode())
    if cast(Any, client)._flush_queue.empty():
        await client._flush_pending()
