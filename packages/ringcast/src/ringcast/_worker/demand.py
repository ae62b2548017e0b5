"""How many events the consumers of a worker pull."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ringcast._worker.session import KeySession

MOST_AT_ONCE: Final = 256
"""Events of one request: as many as one turn of the event loop should take in."""


class Demand:
    """As many as the handlers of all keys have room for, by their pace; nothing while none has any.

    One key that is slow does not keep the others from their events: what it can't hold is fetched later.
    """

    def __init__(self, sessions: Mapping[str, KeySession]) -> None:
        self._sessions = sessions
        self._any = asyncio.Event()

    def look(self) -> None:
        """Some key has room now, or none any more."""
        if any(session.hungry for session in self._sessions.values()):
            self._any.set()
        else:
            self._any.clear()

    async def next(self, consumers: int) -> int:
        """Waits until there is room; returns how many events one of so many consumers should pull."""
        await self._any.wait()
        room = sum(session.machine.handover.room for session in self._sessions.values() if session.hungry)
        return max(1, min(room // max(1, consumers), MOST_AT_ONCE))
