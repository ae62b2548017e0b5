"""The clock of a group, and the timer for what its core has due next."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class DeadlineTimer:
    """Calls ``tick`` once the earliest deadline that was armed has come. Makes no task."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._handle: asyncio.Handle | None = None
        self._due = 0.0  # uvloop's handle of a time that has come does not say it
        self._closed = False

    @staticmethod
    def now_ms() -> int:
        """Milliseconds, rounded up: a tick finds what is due."""
        return math.ceil(asyncio.get_running_loop().time() * 1000)

    def arm(self, due_ms: int | None) -> None:
        """Has ``tick`` called at a time of :meth:`now_ms`, or before it; ``None``: nothing is due."""
        if self._closed or due_ms is None:
            return
        due = due_ms / 1000
        if self._handle is not None:
            if self._due <= due:
                return  # the tick arms it again
            self._handle.cancel()
        self._due, self._handle = due, asyncio.get_running_loop().call_at(due, self._on_time)

    def close(self) -> None:
        """Calls ``tick`` no more, and ignores every later deadline."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()

    def _on_time(self) -> None:
        self._handle = None
        self._tick()
