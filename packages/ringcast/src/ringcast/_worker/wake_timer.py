"""A timer that wakes a session when its machine has something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class WakeTimer:
    """Calls ``wake`` at the time that was set last. Setting the same time again costs nothing."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._at = 0.0  # uvloop's handle of a time that has come does not say it

    def set(self, at: float | None) -> None:
        """Wakes at this time of the loop's clock and at no other; ``None``: not at all."""
        if self._handle is not None:
            if self._at == at and not self._handle.cancelled():
                return
            self._handle.cancel()
            self._handle = None
        if at is not None:
            self._at, self._handle = at, self._loop.call_at(at, self._ring)

    def cancel(self) -> None:
        """Does not wake any more."""
        self.set(None)

    def _ring(self) -> None:
        self._handle = None
        self._wake()
