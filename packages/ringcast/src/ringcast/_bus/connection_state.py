"""The state of a connection to NATS, as the client's callbacks report it: whether it is lost, since when and why."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from inspect import ismethod
from typing import Any, Final
from weakref import WeakMethod

import nats.errors
from ringcast_wire import (
    Backoff,
    EventLog,
    LoginRefusals,
    UnavailableError,
    field_text,
    login_refusal,
    without_passwords,
)

from ringcast._bus.bus import RECONNECT_MOST_S, TRANSIENT
from ringcast._bus.nats_client import SubjectRefusedError
from ringcast._bus.refusals import Refusals

CLIENT_ERRORS: Final = (*TRANSIENT, nats.errors.Error)


class ConnectionState:
    """Knows no client: :meth:`callbacks` are what one calls. A connection that was never made is lost from the start.

    ``closed`` ends when the connection does; with an error if the server does not let this worker reconnect.
    """

    def __init__(self, log: EventLog) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refusals = Refusals(log)
        self.last_error = ""
        """What the client last reported; a refused login is not replaced by the end of its connection."""
        self._servers = "(no server)"
        self._server_count = 1
        self._login = LoginRefusals()
        self._log = log
        self._backoff = Backoff(random.random, first_s=0.2, most_s=RECONNECT_MOST_S)
        self._lost: list[Callable[[], None]] = []
        self._back: list[Callable[[], Callable[[], None] | None]] = []
        """Each returns its callback, or nothing once the object is gone that it is a method of."""
        self._refused = False
        self._logged_refusal = ""
        self._established = False
        self._lost_at: float | None = asyncio.get_running_loop().time()

    @property
    def lost_for_s(self) -> float:
        """How long there has been no connection, from the start on; 0 while there is one. From any thread."""
        lost_at = self._lost_at  # read once: the event loop's thread may change it meanwhile
        return 0.0 if lost_at is None else self.closed.get_loop().time() - lost_at

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is lost."""
        self._lost.append(callback)

    def on_back(self, callback: Callable[[], None]) -> None:
        """Calls back whenever the connection is back; a method of an object as long as that is used elsewhere."""
        self._back = [callback_of for callback_of in self._back if callback_of() is not None]
        self._back.append(WeakMethod(callback) if ismethod(callback) else lambda: callback)

    def callbacks(self) -> dict[str, Any]:
        """The options of the client by which it reports, and by which it chooses the server to reconnect to."""
        return {
            "error_cb": self._on_error,
            "disconnected_cb": self._on_lost,
            "reconnected_cb": self._on_back,
            "closed_cb": self._on_closed,
            "reconnect_to_server_handler": self._next_server,
        }

    def attempt(self, servers: Sequence[str] = ()) -> None:
        """A first connection is about to be tried, to one of these servers."""
        self._servers, self._server_count = without_passwords(servers), max(1, len(servers))
        self._refused = False

    def establish(self) -> None:
        """The first connection was made."""
        self._established = True
        self._accepted()

    def end(self) -> None:
        """The bus is closed: nothing is called back any more, and ``closed`` has ended."""
        self._lost, self._back = [], []
        if self._lost_at is None:  # a health check that comes later must see that changes are missed from now on
            self._lost_at = asyncio.get_running_loop().time()
        if not self.closed.done():
            self.closed.set_result(None)
        if not self.closed.cancelled():
            self.closed.exception()  # else asyncio logs that it was never retrieved

    def _next_server(self, servers: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
        self._server_count = len(servers)
        server = min(servers, key=lambda candidate: (candidate.reconnects, random.random()))  # noqa: S311
        return server, self._backoff.next_s()

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SubjectRefusedError):
            self.refusals.add(error.action, error.subject)
            return
        text = field_text(error)
        if isinstance(error, CLIENT_ERRORS):
            self._log.debug("nats.client_error", error=text)
        else:  # a message that can't be decoded, or a failure that the library does not foresee
            self._log.warning("nats.unexpected_error", error=repr(error))
        if self._lost_at is not None:  # else it ends a login that was accepted, and the next one may be too
            self._note_refusal(error)
        # A server that refuses a login closes the connection at once, and of a later attempt only that may be seen.
        broke = isinstance(error, OSError | nats.errors.StaleConnectionError) and not login_refusal(error)
        if not (broke and self._refused):
            self.last_error, self._refused = text, not broke

    def _note_refusal(self, error: Exception) -> None:
        words = self._login.note(error, self._server_count)
        if words and self._logged_refusal != words:  # it repeats with each attempt
            self._logged_refusal = words
            self._log.error("nats.login_refused", servers=self._servers, error=words)
        found = self._login.words
        self._logged_refusal = self._logged_refusal if found else ""
        self.refusals.login = f"login refused by NATS at {self._servers}: {found}" if found else ""

    def _accepted(self) -> None:
        self._refused, self.last_error = False, ""
        self._login.accepted()
        self.refusals.login = self._logged_refusal = ""
        self._lost_at = None

    async def _on_lost(self) -> None:
        if self.closed.done() or not self._established or self._lost_at is not None:
            return
        self._lost_at = asyncio.get_running_loop().time()
        self._log.warning("nats.disconnected", error=self.last_error)
        for callback in self._lost:
            callback()

    async def _on_back(self) -> None:
        self._accepted()
        self.refusals.clear()
        self._backoff.reset()
        self._log.info("nats.reconnected")
        for callback_of in list(self._back):
            if (callback := callback_of()) is not None:
                callback()

    async def _on_closed(self) -> None:
        if self._established and not self.closed.done():
            self.closed.set_exception(UnavailableError(f"NATS closed the connection for good: {self.last_error}"))
