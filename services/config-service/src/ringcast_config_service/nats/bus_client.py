"""The service's connection to NATS."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ringcast_meta.nats_client import LastingClient
from ringcast_wire import EventLog

log = EventLog(logging.getLogger(__name__))

_LOGIN: Final = ("authorization violation", "authentication")
"""The login is no good any more, or not just now: no message is to blame."""


class BusClient(LastingClient):
    """One message that a server does not take (too large, say) may end the connection, and would end the next one too.
    ``on_protocol_error`` is called before the connection is given up, while what was on its way is still known."""

    on_protocol_error: Callable[[str], None] | None = None

    def _ended_by_server(self, text: str) -> None:
        if any(known in text.lower() for known in _LOGIN):
            log.error("nats.login_ended", error=text)
            return
        log.error("nats.protocol_error", error=text)
        if self.on_protocol_error is not None:
            self.on_protocol_error(text)
