"""Deliveries in batches: wherever the stream of bytes is cut, all come once and in order, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import ProtocolError
from ringcast._bus.bus import Delivery, Message
from ringcast._bus.parser import batching_client, deliver_batches, end_batches

INBOX = "_INBOX_w.abc"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Taken:
    """What came, in order: deliveries by their reply subject, all else by its own subject."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.traces: dict[str, str | None] = {}
        self.batches: list[int] = []

    def take(self, batch: Sequence[Delivery]) -> None:
        self.batches.append(len(batch))
        for delivery in batch:
            assert delivery.data == delivery.reply.encode()
            self.names.append(delivery.reply)
            self.traces[delivery.reply] = delivery.trace

    def other(self, msg: Message) -> None:
        if msg.reply:
            trace = (msg.headers or {}).get("traceparent")
            self.take([Delivery(msg.subject, msg.reply, msg.data, trace)])
        else:
            self.names.append(msg.subject)


async def subscribed(number: int, subject: str) -> tuple[Client, Subscription]:
    """A client that is not connected, with one subscription that keeps what comes."""
    client = batching_client()
    subscription = Subscription(client, number, subject, pending_bytes_limit=0)
    client._subs[number] = subscription
    return client, subscription


def delivery(number: int, sid: int = 1, headers: bytes = b"") -> bytes:
    """An event as a consumer delivers it."""
    reply = f"$JS.ACK.s.w.1.{number}.{number}.0.0".encode()
    if not headers:
        return b"MSG config.notify.s.k.7 %d %b %d\r\n%b\r\n" % (sid, reply, len(reply), reply)
    headers = b"NATS/1.0\r\n%b\r\n\r\n" % headers
    sizes = len(headers), len(headers) + len(reply)
    return b"HMSG config.notify.s.k.7 %d %b %d %d\r\n%b%b\r\n" % (sid, reply, *sizes, headers, reply)


def status(number: int) -> bytes:
    """What the server says of a pull request."""
    headers = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"
    return b"HMSG %b.%d 1 %d %d\r\n%b\r\n" % (INBOX.encode(), number, len(headers), len(headers), headers)


def traffic(random: Random, count: int) -> tuple[bytes, list[str]]:
    """Bytes of all kinds, and what should be taken of them."""
    found, names = b"", []
    for number in range(count):
        match random.randrange(8):
            case 0:
                found += status(number)
                names.append(f"{INBOX}.{number}")
            case 1:
                found += b"PING\r\n" if random.random() < 0.5 else b"+OK\r\n"
            case 2:
                found += delivery(number, sid=9)  # of a subscription that is no more
            case 3:
                found += delivery(number, headers=b"Nats-Msg-Id: x\r\ntraceparent: " + TRACE.encode())
                names.append(f"$JS.ACK.s.w.1.{number}.{number}.0.0")
            case 4:
                found += delivery(number, headers=b"Nats-Msg-Id: x")
                names.append(f"$JS.ACK.s.w.1.{number}.{number}.0.0")
            case _:
                found += delivery(number)
                names.append(f"$JS.ACK.s.w.1.{number}.{number}.0.0")
    return found, names


@pytest.mark.parametrize("seed", range(20))
async def test_it_does_not_matter_where_the_bytes_are_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(seed)
    client, subscription = await subscribed(1, f"{INBOX}.*")
    pings = 0

    async def ping() -> None:
        nonlocal pings
        pings += 1

    monkeypatch.setattr(client, "_process_ping", ping)
    taken = Taken()
    deliver_batches(client, subscription, taken.take, taken.other)
    stream, names = traffic(random, 300)
    at = 0
    while at < len(stream):
        size = random.choice((1, 7, 60, 500, 4_000))
        await client._ps.parse(stream[at : at + size])
        at += size
    assert taken.names == names
    assert pings == stream.count(b"PING\r\n")
    assert sum(trace == TRACE for trace in taken.traces.values()) == stream.count(TRACE.encode())


async def test_what_comes_together_is_handed_over_together() -> None:
    client, subscription = await subscribed(1, f"{INBOX}.*")
    taken = Taken()
    deliver_batches(client, subscription, taken.take, taken.other)
    await client._ps.parse(b"".join(map(delivery, range(100))))
    assert taken.batches == [100]
    assert client.stats["in_msgs"] == 100
    assert client.stats["in_bytes"] == sum(len(name) for name in taken.names)


async def test_two_subscriptions_are_kept_apart() -> None:
    client, first = await subscribed(1, f"{INBOX}.*")
    second = Subscription(client, 2, "_INBOX_w.def.*", pending_bytes_limit=0)
    client._subs[2] = second
    one, two = Taken(), Taken()
    deliver_batches(client, first, one.take, one.other)
    deliver_batches(client, second, two.take, two.other)
    await client._ps.parse(b"".join(delivery(number, sid=1 + number // 3 % 2) for number in range(12)))
    assert one.batches == two.batches == [3, 3]
    end_batches(client, second)
    await client._ps.parse(delivery(99, sid=1))
    assert len(one.names) == 7


async def test_who_takes_them_may_raise() -> None:
    client, subscription = await subscribed(1, f"{INBOX}.*")
    told: list[Exception] = []

    async def tell(error: Exception) -> None:
        told.append(error)

    client._error_cb = tell

    def refuse(_burst: object) -> None:
        raise ValueError("not today")

    deliver_batches(client, subscription, refuse, refuse)
    await client._ps.parse(delivery(1) + status(2) + delivery(3))
    assert [str(error) for error in told] == ["not today"] * 3


@pytest.mark.parametrize("size", [b"x", b"-1", b"1.5"])
async def test_a_size_that_is_no_number_breaks_the_protocol(size: bytes) -> None:
    client, subscription = await subscribed(1, f"{INBOX}.*")
    taken = Taken()
    deliver_batches(client, subscription, taken.take, taken.other)
    with pytest.raises(ProtocolError):
        await client._ps.parse(b"MSG config.notify.s.k.7 1 $JS.ACK.a " + size + b"\r\nabc\r\n")
    assert not taken.names
