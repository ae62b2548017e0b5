"""Leaves the event loop a part of the time while functions of the application block it."""

from __future__ import annotations

import asyncio
import time
from typing import Final

_MOST_S: Final = 0.05
"""No call of the application begins when the event loop has stood still for so long: it goes on first."""
_PART: Final = 20
"""Then it has one part in so many of the time for which it stood still. One turn of it would not do: the answer to a
heartbeat or a pull takes several, and what is not refreshed in time is lost to others."""


class LoopShare:
    """That of one config key: :meth:`begin` before a call, :meth:`blocked` after it, :meth:`rest` before the next.

    A call that waits in the event loop does not count, since the loop goes on meanwhile.
    """

    def __init__(self) -> None:
        self._still_since_s: float | None = None
        self._until_s = 0.0

    def begin(self) -> float:
        """A call begins; returns until when others may without a call of :meth:`blocked`, on the monotonic clock."""
        if self._still_since_s is None:
            self._still_since_s = time.monotonic()
            asyncio.get_running_loop().call_soon(self._turned)
        return self._still_since_s + _MOST_S

    def blocked(self) -> bool:
        """Returns, after a call, whether the event loop has to go on before the next."""
        since_s = self._still_since_s
        if since_s is None:
            return False
        now_s = time.monotonic()
        if now_s - since_s < _MOST_S:
            return False
        self._until_s = now_s + (now_s - since_s) / _PART
        return True

    @property
    def is_due(self) -> bool:
        """Whether :meth:`rest` would wait."""
        return time.monotonic() < self._until_s

    async def rest(self) -> None:
        """Lets the event loop go on if it has to. Of several that wait here one goes on after the other."""
        left_s = self._until_s - time.monotonic()
        while left_s > 0:
            await asyncio.sleep(left_s)
            left_s = self._until_s - time.monotonic()

    def _turned(self) -> None:
        self._still_since_s = None
