"""Acknowledgements over NATS, sent in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import nats.errors
from nats.aio.client import Client
from ringcast_wire import EventLog

from ringcast._bus.bus import TRANSIENT
from ringcast._bus.parser import publish_to_all

_IN_PROGRESS: Final = "+WPI"
_DELAY_S: Final = 0.005
"""How long fewer acknowledgements wait for others: nothing waits for them, and sending each alone costs both sides."""
_CLIENT_ERRORS: Final = (*TRANSIENT, nats.errors.Error)


class NatsAcks:
    """:class:`ringcast._bus.bus.Acknowledgements` over the connection that ``client`` returns."""

    def __init__(self, client: Callable[[], Client], log: EventLog) -> None:
        self._client = client
        self._log = log
        self._tokens: list[str] = []
        self._waiting = asyncio.Event()
        self.many = 0
        """So many do not wait for others."""

    def add(self, tokens: list[str]) -> None:
        """Acknowledges deliveries soon. While the connection is lost they are dropped: the deliveries come again."""
        if self._client().is_connected:
            self._tokens += tokens
            self._waiting.set()

    async def run(self) -> None:
        """Sends acknowledgements until cancelled."""
        while True:
            await self._waiting.wait()
            if len(self._tokens) < self.many:
                await asyncio.sleep(_DELAY_S)
            await self.flush()

    async def flush(self) -> None:
        """Sends the acknowledgements that wait. Those that can't be sent are dropped."""
        self._waiting.clear()
        tokens, self._tokens = self._tokens, []
        if not tokens or not self._client().is_connected:
            return
        try:
            await publish_to_all(self._client(), tokens)
        except _CLIENT_ERRORS as error:
            self._log.debug("nats.acks_lost", error=error)

    async def report_progress(self, tokens: Sequence[str]) -> None:
        """Reports that these deliveries are being worked on: the server restarts their acknowledgement timeout."""
        if not self._client().is_connected:
            return
        try:
            await publish_to_all(self._client(), tokens, _IN_PROGRESS)
        except _CLIENT_ERRORS as error:
            self._log.debug("nats.progress_lost", error=error)
