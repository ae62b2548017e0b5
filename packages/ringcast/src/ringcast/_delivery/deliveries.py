"""Hands what the machine of a config key gives out to the application: changes, and beside them what it owns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Protocol

from ringcast._delivery.handler import Applier
from ringcast._delivery.traces import KeyTraces
from ringcast._protocol.actions import Announce, Apply

_PARTS_S: Final = 0.1
"""How often a job that takes long reports which partitions are done."""


class DeliveryObserver(Protocol):
    """What :class:`Deliveries` reports to. A job is an action, by its number."""

    def delivered(self, job: int) -> None:
        """The job is done."""

    def partly_delivered(self, job: int, partitions: set[int]) -> None:
        """A job that takes long has handed everything over that it has of these partitions."""


class Deliveries:
    """The tasks that call the application for one config key.

    Changes go one job at a time. An announcement does not wait for them: only that of a loss waits for the calls that
    run for the lost partitions. The callbacks are called one at a time.
    """

    def __init__(
        self,
        key: str,
        applier: Applier,
        traces: KeyTraces | None,
        *,
        observer: DeliveryObserver,
    ) -> None:
        self._key = key
        self._applier = applier
        self._traces = traces
        self._observer = observer
        self._changes: asyncio.Queue[Apply] = asyncio.Queue(1)
        # Bounded by the partitions: each is in one announcement at a time.
        self._announcements: asyncio.Queue[Announce] = asyncio.Queue()
        self._turn = asyncio.Lock()
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether the application has anything, or is about to get it."""
        return self._under_way > 0

    @asynccontextmanager
    async def between_jobs(self) -> AsyncIterator[None]:
        """For what is handed over that is in no job: none runs meanwhile, and a worker that stops waits for the end."""
        async with self._turn:
            self._under_way += 1
            try:
                yield
            finally:
                self._under_way -= 1

    def take(self, action: Apply | Announce) -> None:
        """Takes what is to be handed over next."""
        self._under_way += 1
        if isinstance(action, Announce):
            self._announcements.put_nowait(action)
        else:
            self._applier.begin()
            self._changes.put_nowait(action)

    async def run(self) -> None:
        """Hands over until the worker stops: it calls ``stopping.begin()`` before it cancels this.

        Raises:
            RuntimeError: this was cancelled though the worker does not stop; without it the worker must not go on.
        """
        stopping, meant = self._applier.stopping, True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._hand_over_changes())
                try:
                    while True:
                        announce = await self._announcements.get()
                        tasks.create_task(self._announce(announce))
                except asyncio.CancelledError:
                    meant = stopping.begun
                    stopping.begin()  # else the other tasks would take it for the application's doing
                    raise
        except asyncio.CancelledError:
            if meant:
                raise
            raise RuntimeError(f"the task that hands over the changes of key {self._key} was cancelled") from None

    async def _hand_over_changes(self) -> None:
        stopping = self._applier.stopping
        while True:
            action = await stopping.through(self._changes.get)
            await stopping.through(self._turn.acquire)
            try:
                await self._apply(action)
            finally:
                self._turn.release()
            if stopping.begun:
                return  # a handler has swallowed the cancellation: what it has left is not known
            self._end(action.number)

    async def _apply(self, action: Apply) -> None:
        with self._reporting_parts(action.number):
            if self._traces is None:
                await self._applier.apply(action.number, action.changes)
            else:
                with self._traces.applying(action):
                    await self._applier.apply(action.number, action.changes)

    @contextmanager
    def _reporting_parts(self, job: int) -> Iterator[None]:
        self._report_later(job)
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _report_later(self, job: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PARTS_S, self._report_parts, job)

    def _report_parts(self, job: int) -> None:
        self._report_later(job)
        if finished := self._applier.take_finished():
            self._observer.partly_delivered(job, finished)

    async def _announce(self, announce: Announce) -> None:
        await self._applier.announce(self._key, announce.assigned, announce.partitions)
        self._end(announce.number)

    def _end(self, job: int) -> None:
        self._under_way -= 1
        self._observer.delivered(job)
