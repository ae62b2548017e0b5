"""The calls of the handler that have begun and not ended, from the first try to what the poison policy does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Set as AbstractSet

from ringcast_wire import event_within

from ringcast._common.change import Change


class HandlerCall:
    """A change that the handler has now. ``lost``: its partition belongs to another worker by now."""

    __slots__ = ("_lost_event", "began_s", "change", "error", "lost")

    def __init__(self, change: Change) -> None:
        self.change = change
        self.began_s = time.monotonic()
        self.lost = False
        self.error = ""
        """What the last try has raised; empty while there was none."""
        self._lost_event: asyncio.Event | None = None

    def lose(self) -> None:
        """Another worker has the partition: there is no further try."""
        self.lost = True
        if self._lost_event is not None:
            self._lost_event.set()

    async def pause(self, delay_s: float) -> None:
        """Waits before the next try; not once the partition is lost."""
        if self.lost:
            return
        self._lost_event = self._lost_event or asyncio.Event()
        await event_within(self._lost_event, delay_s)


class HandlerCalls:
    """Of one config key. At most ``max_parallel_handlers`` of them, and those of :meth:`ringcast.Worker.unblock`."""

    def __init__(self) -> None:
        self._running: dict[HandlerCall, None] = {}
        self._ended = asyncio.Event()

    def begin(self, change: Change) -> HandlerCall:
        """The handler is about to be called for a change."""
        call = HandlerCall(change)
        self._running[call] = None
        return call

    def end(self, call: HandlerCall) -> None:
        """The change has been handled, or given up; a second call does nothing."""
        self._running.pop(call, None)
        self._ended.set()

    def lose(self, partitions: AbstractSet[int]) -> None:
        """These partitions are another worker's."""
        for call in self._running:
            if call.change.partition in partitions:
                call.lose()

    async def ended(self, partitions: frozenset[int]) -> None:
        """Waits until no call for a change of these partitions is running."""
        while any(call.change.partition in partitions for call in self._running):
            self._ended.clear()
            await self._ended.wait()

    async def those_ended(self) -> None:
        """Waits until none of the calls that run now does any more."""
        running = [*self._running]
        while any(call in self._running for call in running):
            self._ended.clear()
            await self._ended.wait()

    async def row_ended(self, partition: int, row_id: str) -> None:
        """Waits until no call for a change of this row is running."""
        while any((call.change.partition, call.change.row_id) == (partition, row_id) for call in self._running):
            self._ended.clear()
            await self._ended.wait()

    def of(self, partition: int, row_id: str) -> HandlerCall | None:
        """The one for a row, if it runs."""
        calls = (call for call in self._running if call.change.row_id == row_id and call.change.partition == partition)
        return next(calls, None)

    @property
    def count(self) -> int:
        """How many are running."""
        return len(self._running)

    def oldest(self) -> HandlerCall | None:
        """The one that began first; from any thread."""
        return next(iter(list(self._running)), None)

    @property
    def oldest_s(self) -> float:
        """For how long the one that began first has been running; 0 when none is. From any thread."""
        oldest = self.oldest()
        return 0.0 if oldest is None else time.monotonic() - oldest.began_s
