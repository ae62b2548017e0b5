"""What NATS does not let a worker do: log in, or use a subject, so that a request to it fails at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ringcast_wire import EventLog, UnavailableError

SHOWN_FOR_S: Final = 60.0
"""How long a refusal counts, and is not logged again; what is refused for good is tried again sooner than that."""
_MOST: Final = 64


class RefusedError(UnavailableError):
    """NATS refuses the subject that a request goes to: it will until its permissions are others."""


class Refusals:
    """The subjects refused lately, and the requests that wait for an answer. The server names the subject only."""

    def __init__(self, log: EventLog) -> None:
        self.count = 0
        self.login = ""
        """Why there is no connection, where NATS refuses the login; else nothing. May be read from any thread."""
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._at: dict[str, float] = {}
        self._rejected: dict[str, tuple[str, float]] = {}
        self._waiting: dict[asyncio.Timeout, str] = {}

    def add(self, action: str, refused: str) -> None:
        """The server has refused to let this user publish, or subscribe (``action``), to a subject."""
        now = self._loop.time()
        self.count += 1
        known = self._at.pop(refused, None)
        self._at[refused] = now
        if len(self._at) > _MOST:
            del self._at[next(iter(self._at))]
        if known is None or now - known > SHOWN_FOR_S:
            self._log.warning("nats.subject_refused", action=action, subject=refused)
        for timeout, subject in self._waiting.items():
            if _is_below(refused, subject) and not timeout.expired():
                timeout.reschedule(now)

    def reject(self, stream: str, consumer: str, error: Exception) -> None:
        """The server can't make a consumer that this user may make: the stream may have as many as it is let."""
        now = self._loop.time()
        known = self._rejected.get(consumer)
        if known is None or now - known[1] > SHOWN_FOR_S:
            self._log.warning("nats.consumer_rejected", stream=stream, consumer=consumer, error=error)
            self._rejected[consumer] = f"NATS does not make the consumer {consumer} of {stream}: {error}", now

    def accept(self, consumer: str) -> None:
        """The server has made it."""
        self._rejected.pop(consumer, None)

    def clear(self) -> None:
        """There is a new connection, and maybe with it other permissions."""
        self._at.clear()
        self._rejected.clear()

    def sentences(self) -> list[str]:
        """What NATS does not let the worker do."""
        found = [why for why, _ in self._rejected.values()]
        return [f"NATS refuses {', '.join(refused)}", *found] if (refused := self.subjects()) else found

    def subjects(self) -> tuple[str, ...]:
        """What was refused lately; may be read from any thread."""
        now = self._loop.time()
        return tuple(subject for subject, at in list(self._at.items()) if now - at <= SHOWN_FOR_S)

    @asynccontextmanager
    async def fail_fast(self, subject: str) -> AsyncIterator[None]:
        """In the body a request to this subject, or to one below it, is made: a refusal ends it at once.

        Raises:
            RefusedError: NATS refuses the subject.
        """
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
            raise RefusedError(f"NATS refuses {subject} to this user (permissions violation)") from None


def _is_below(subject: str, head: str) -> bool:
    return subject == head or subject.startswith(f"{head}.")
