"""Calling ``on_assigned`` and ``on_revoked``: one at a time, and an error of theirs ends nothing."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from ringcast_wire import EventLog

from ringcast._common.cancellation import ENDS_THE_PROCESS, Stopping
from ringcast._common.stats import Stats
from ringcast._delivery.gate import Admission, CallEndedError, CallGate

Listener: TypeAlias = Callable[[str, frozenset[int]], Awaitable[None] | None]
"""Takes a config key and the partitions that were assigned or revoked."""


class Listeners(NamedTuple):
    """What the application wants to be called with the partitions that it gets and loses; ``None``: with neither."""

    on_assigned: Listener | None = None
    on_revoked: Listener | None = None


class OwnershipCallbacks:
    """Those of one config key. An error is counted and logged, not more.

    With a ``gate`` only what it lets through is assigned, and only what was assigned is revoked. It may be set, and
    taken away again, while callbacks run.
    """

    def __init__(self, listeners: Listeners, *, stopping: Stopping, stats: Stats, log: EventLog) -> None:
        self._on_assigned, self._on_revoked = listeners
        self._stopping = stopping
        self._stats = stats
        self._log = log
        self._lock = asyncio.Lock()
        self._running_since: float | None = None
        self.gate: CallGate | None = None
        self._announced: set[int] = set()

    @property
    def running_s(self) -> float:
        """For how long one of them has been running; 0 when none is. From any thread."""
        since = self._running_since  # read once: the event loop's thread may change it meanwhile
        return 0.0 if since is None else time.monotonic() - since

    async def ended(self) -> None:
        """Waits until none runs that runs now."""
        async with self._lock:
            pass

    async def call(self, key: str, assigned: bool, partitions: frozenset[int], *, ours: bool = True) -> None:
        """Calls the one that is meant, and waits for it. ``ours``: this runs in a task of this worker's.

        Raises:
            CancelledError: the worker stops or, in a task of the caller's own, that task was cancelled.
        """
        listener, gate = self._on_assigned if assigned else self._on_revoked, self.gate
        try:
            async with self._lock:
                gate = self.gate  # it may have been set meanwhile
                if gate is not None:
                    await self._run_admitted(gate, listener, key, assigned, partitions)
                else:
                    await self._run_free(listener, key, assigned, partitions)
        except ENDS_THE_PROCESS:
            raise
        except CallEndedError:
            pass  # the gate has said so
        except BaseException as error:  # whatever the application raises
            if isinstance(error, asyncio.CancelledError) and not self._stopping.goes_on(ours=ours):
                raise
            self._stats.callback_failures += 1
            name = "on_assigned" if assigned else "on_revoked"
            self._log.error("callback.failed", callback=name, error=repr(error))
        if gate is not None and not assigned:
            for number in partitions:
                gate.end_last(number)

    async def _run(
        self, listener: Listener, key: str, partitions: frozenset[int], admission: Admission | None = None
    ) -> None:
        self._running_since = time.monotonic()
        try:
            result = listener(key, partitions)
            if inspect.isawaitable(result):
                await (result if admission is None else admission.wait(result))
        finally:
            self._running_since = None

    async def _run_free(self, listener: Listener | None, key: str, assigned: bool, partitions: frozenset[int]) -> None:
        if assigned:
            self._announced |= partitions
        else:
            self._announced -= partitions
        if listener is not None:
            await self._run(listener, key, partitions)

    async def _run_admitted(
        self, gate: CallGate, listener: Listener | None, key: str, assigned: bool, partitions: frozenset[int]
    ) -> None:
        begin = gate.begin if assigned else gate.begin_last
        admissions = {number: admission for number in partitions if (admission := begin(number)) is not None}
        try:
            if assigned:
                partitions = frozenset(admissions)
                self._announced |= partitions
            else:
                partitions &= self._announced
                self._announced -= partitions
            if listener is not None and partitions:
                any_of_them = next(iter(admissions.values()), None)  # all have the same time to end
                await self._run(listener, key, partitions, any_of_them)
        finally:
            for admission in admissions.values():
                admission.end()
