"""Pulling the messages of one consumer, with raw requests: a third of the cost of the client's ``fetch``.

One request is open at a time, for as many messages as the handlers have room for; the next goes out when it is used up,
when the server ends it, when heartbeats stop, or when the connection is back. The loop never restarts when the filters
of the consumer change.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ringcast_wire import Backoff, EventLog, event_within, names

from ringcast._bus.bus import TRANSIENT, Bus, Delivery, Message
from ringcast._common.measures import ConsumerCounters

_EXPIRES_S: Final = 30.0
_HEARTBEAT_S: Final = 2.0
_SILENT_S: Final = 5.0
_NANOSECONDS: Final = 1_000_000_000
_MISSING: Final = ("Consumer Deleted", "Consumer not found", "No Responders")


class PullLoop:
    """Gives the messages of a consumer to ``deliver`` as they come, many at once; it must not wait.

    ``demand`` waits until some are wanted, and returns how many. ``missing()`` is called when the server does not have
    the consumer.
    """

    def __init__(
        self,
        bus: Bus,
        stream: str,
        consumer: str,
        *,
        deliver: Callable[[Sequence[Delivery]], None],
        demand: Callable[[], Awaitable[int]],
        missing: Callable[[], None],
        counters: ConsumerCounters,
        log: EventLog,
    ) -> None:
        self._bus = bus
        self._subject = bus.api(f"CONSUMER.MSG.NEXT.{stream}.{consumer}")
        self._deliver = deliver
        self._demand = demand
        self._missing = missing
        self._counters = counters
        self._first_delivery = f".{consumer}.1."
        self._log = log.bind(consumer=consumer)
        self._backoff = Backoff(random.random, first_s=0.25, most_s=10.0)
        self._again = asyncio.Event()
        self._request = 0
        self._left = 0
        self._inbox = ""
        self._heard_at = 0.0
        self._delay_s = 0.0
        self._waited_enough = asyncio.Event()
        bus.on_back(self._pull_now)

    async def run(self) -> None:
        """Pulls until cancelled."""
        loop = asyncio.get_running_loop()
        self._inbox = self._bus.new_inbox()
        async with self._bus.delivered(self._inbox, self._on_batch, self._on_other):
            while True:
                await self._ask()
                self._heard_at = loop.time()
                await self._until_again()

    async def _ask(self) -> None:
        self._again.clear()
        self._waited_enough.clear()
        self._left = await self._demand()
        self._request += 1
        wanted = {
            "batch": self._left,
            "expires": int(_EXPIRES_S * _NANOSECONDS),
            "idle_heartbeat": int(_HEARTBEAT_S * _NANOSECONDS),
        }
        try:
            await self._bus.publish(self._subject, json.dumps(wanted).encode(), reply=f"{self._inbox}.{self._request}")
        except TRANSIENT as error:
            self._log.debug("pull.request_failed", error=error)

    async def _until_again(self) -> None:
        """Waits until another request is called for; heartbeats that stop call for one too."""
        loop = asyncio.get_running_loop()
        while True:
            rest = self._heard_at + _SILENT_S - loop.time()
            if rest <= 0:
                return
            if await event_within(self._again, rest):
                break
        if self._delay_s:
            delay_s, self._delay_s = self._delay_s, 0.0
            await event_within(self._waited_enough, delay_s)

    def _on_batch(self, batch: Sequence[Delivery]) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._backoff.reset()
        counters, first = self._counters, self._first_delivery
        counters.messages += len(batch)
        counters.redeliveries += sum([first not in delivery.reply for delivery in batch])
        counters.last_reply = batch[-1].reply
        self._left -= len(batch)
        if self._left <= 0:
            self._again.set()
        self._deliver(batch)

    def _on_other(self, msg: Message) -> None:
        if msg.reply and not msg.subject.startswith(self._inbox):
            trace = (msg.headers or {}).get(names.HEADER_TRACE)
            self._on_batch([Delivery(msg.subject, msg.reply, msg.data, trace)])
        else:
            self._heard_at = asyncio.get_running_loop().time()
            self._on_status(msg)

    def _on_status(self, msg: Message) -> None:
        headers = msg.headers or {}
        status, description = headers.get("Status"), headers.get("Description", "")
        if status == "100" or not msg.subject.endswith(f".{self._request}"):
            return
        if status == "503" or any(word in description for word in _MISSING):
            self._delay_s = self._backoff.next_s()
            self._missing()
        elif status != "408":  # 408: the request ran out of time, as it should
            self._delay_s = self._backoff.next_s()
            self._log.debug("pull.request_ended", status=status, description=description)
        self._again.set()

    def created(self) -> None:
        """The server has the consumer now: a pull that waits for its retry is sent at once."""
        self._waited_enough.set()

    def _pull_now(self) -> None:
        self._delay_s = 0.0
        self._waited_enough.set()
        self._again.set()
