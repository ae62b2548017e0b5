"""The service's connection to NATS."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import nats.errors
from nats.aio.client import Client

log = logging.getLogger(__name__)

_HANDLED: Final = ("stale connection", "permissions violation", "authorization violation", "authentication")
"""What the client library itself treats rightly: it reconnects, goes on, or gives up since the login is no good."""


class BusClient(Client):
    """The library's client, which connects again where a server ends the connection over a message.

    The library closes for good on any error line that it does not know: one message that a server does not take (too
    large, say) would end the service, and end it again after each restart. ``on_protocol_error`` hears of it before the
    connection is given up, while what was on its way is still known.
    """

    on_protocol_error: Callable[[str], None] | None = None

    async def _process_err(self, err_msg: str) -> None:
        text = err_msg.strip().strip("'")
        if self.is_connecting or any(known in text.lower() for known in _HANDLED):
            await super()._process_err(err_msg)
            return
        log.error("event=nats.protocol_error error=%s", text)
        if self.on_protocol_error is not None:
            self.on_protocol_error(text)
        await self._process_op_err(nats.errors.Error(f"nats: {text}"))
