"""A process gives up what it does, one thing after the other, and takes it up again, as an operator wants it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from ringcast_wire import EventLog

from ringcast_meta._members import MemberState

log = EventLog(logging.getLogger("ringcast.meta"))


class Drainable(Protocol):
    """What a drain does to a process."""

    async def begin_drain(self) -> None:
        """From now on it takes nothing new."""

    async def finish_drain(self) -> None:
        """Returns when it has nothing left. It may be cancelled, and called again."""

    async def end_drain(self) -> None:
        """It takes everything again."""


class Drain:
    """``changed`` is called when :attr:`state` has changed."""

    def __init__(self, process: Drainable, changed: Callable[[], None] = lambda: None) -> None:
        self.state = MemberState.ACTIVE
        self.changed = changed
        self._process = process
        self._wanted = False
        self._news = asyncio.Event()

    def want(self, drain: bool) -> None:
        """Whether the process is to drain; it begins, or goes back, soon."""
        self._wanted = drain
        self._news.set()

    async def run(self) -> None:
        """Does what is wanted for as long as it is not cancelled."""
        while True:
            await self._until_wanted(True)
            self._set(MemberState.DRAINING)
            log.info("cluster.draining")
            await self._process.begin_drain()
            if await self._finished():
                self._set(MemberState.DRAINED)
                log.info("cluster.drained")
                await self._until_wanted(False)
            await self._process.end_drain()
            self._set(MemberState.ACTIVE)
            log.info("cluster.activated")

    async def _finished(self) -> bool:
        """Whether nothing is left; false if that is not wanted any more before."""
        finishing = asyncio.create_task(self._process.finish_drain(), name="drain")
        unwanted = asyncio.create_task(self._until_wanted(False), name="drain-unwanted")
        try:
            await asyncio.wait({finishing, unwanted}, return_when=asyncio.FIRST_COMPLETED)
            return finishing.done() and finishing.result() is None
        finally:
            finishing.cancel()
            unwanted.cancel()
            await asyncio.wait({finishing, unwanted})

    async def _until_wanted(self, drain: bool) -> None:
        while self._wanted is not drain:
            self._news.clear()
            await self._news.wait()

    def _set(self, state: MemberState) -> None:
        self.state = state
        self.changed()
