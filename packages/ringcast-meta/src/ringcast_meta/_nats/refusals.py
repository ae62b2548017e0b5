"""What NATS does not let the user of a connection do. The server says so beside the calls, naming a subject only."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from nats.aio.client import Client
from ringcast_wire import PermissionDeniedError

_REFUSED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


class Refusals:
    """The calls that wait for an answer, which a refusal ends at once."""

    def __init__(self, connection: Client, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._waiting: dict[asyncio.Timeout, str] = {}
        self._inbox = ""
        """The inbox that was refused; empty: none was."""
        self._inbox_at = -1
        """At which reconnection: the next one may have other permissions."""

    def take(self, error: Exception) -> None:
        """An error of the connection; those that are no refusals are ignored."""
        found = _REFUSED.search(str(error))
        if found is None:
            return
        action, refused = found[1].lower(), found[2].lower()
        if action == "subscription":
            if refused.startswith(self._connection.new_inbox().rpartition(".")[0].lower()):
                self._inbox, self._inbox_at = found[2], self._connection.stats["reconnects"]
                self._end(list(self._waiting))
            return
        # The library tells the subject in lower case: of two that differ in nothing else, neither is known to be meant.
        meant = [timeout for timeout, subject in self._waiting.items() if subject.lower() == refused]
        if len({self._waiting[timeout] for timeout in meant}) == 1:
            self._end(meant)

    def _end(self, timeouts: list[asyncio.Timeout]) -> None:
        for timeout in timeouts:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def ending(self, subject: str) -> AsyncIterator[None]:
        """In the body a subject is published to, and an answer is waited for: a refusal ends it at once.

        Raises:
            PermissionDeniedError: NATS refuses the subject, or the inbox.
        """
        if self._has_no_inbox:
            raise self._error(subject)
        try:
            async with asyncio.timeout(None) as timeout:
                self._waiting[timeout] = subject
                try:
                    yield
                finally:
                    del self._waiting[timeout]
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self._error(subject) from None

    def _error(self, subject: str) -> PermissionDeniedError:
        if self._has_no_inbox:
            return PermissionDeniedError(
                f"bucket {self._bucket!r}: NATS does not let this user subscribe to {self._inbox}, where answers come"
            )
        return PermissionDeniedError(f"bucket {self._bucket!r}: NATS does not let this user publish to {subject}")

    @property
    def _has_no_inbox(self) -> bool:
        """Whether no answer can come over this connection."""
        return bool(self._inbox) and self._inbox_at == self._connection.stats["reconnects"]
