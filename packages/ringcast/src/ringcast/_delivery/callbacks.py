"""Calling ``on_assigned`` and ``on_revoked``: one at a time, and an error of theirs ends nothing."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ringcast_wire import EventLog

from ringcast._common.cancellation import ENDS_THE_PROCESS, Stopping
from ringcast._common.stats import Stats

Listener: TypeAlias = Callable[[str, frozenset[int]], Awaitable[None] | None]
"""Takes a config key and the partitions that were assigned or revoked."""


class OwnershipCallbacks:
    """Those of one config key. An error is counted and logged, not more."""

    def __init__(
        self,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
        *,
        stopping: Stopping,
        stats: Stats,
        log: EventLog,
    ) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._stopping = stopping
        self._stats = stats
        self._log = log
        self._lock = asyncio.Lock()
        self._running_since: float | None = None

    @property
    def running_s(self) -> float:
        """For how long one of them has been running; 0 when none is. From any thread."""
        since = self._running_since  # read once: the event loop's thread may change it meanwhile
        return 0.0 if since is None else time.monotonic() - since

    async def call(self, key: str, assigned: bool, partitions: frozenset[int], *, ours: bool = True) -> None:
        """Calls the one that is meant, and waits for it. ``ours``: this runs in a task of this worker's.

        Raises:
            CancelledError: the worker stops or, in a task of the caller's own, that task was cancelled.
        """
        listener = self._on_assigned if assigned else self._on_revoked
        if listener is None:
            return
        try:
            async with self._lock:
                self._running_since = time.monotonic()
                try:
                    result = listener(key, partitions)
                    if inspect.isawaitable(result):
                        await result
                finally:
                    self._running_since = None
        except ENDS_THE_PROCESS:
            raise
        except BaseException as error:  # whatever the application raises
            if isinstance(error, asyncio.CancelledError) and not self._stopping.goes_on(ours=ours):
                raise
            self._stats.callback_failures += 1
            name = "on_assigned" if assigned else "on_revoked"
            self._log.error("callback.failed", callback=name, error=repr(error))
