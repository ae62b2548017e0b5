"""Compares the revisions of a config key with the service's head revisions, every few seconds and when called to."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from ringcast_wire import WIRE_VERSION, ErrorCode, EventLog, HeadsReply, RingcastError, event_within

from ringcast._protocol.anti_entropy import AntiEntropyTimer
from ringcast._protocol.key import KeyMachine
from ringcast._worker.fetches import KeyFetches
from ringcast._worker.observer import KeyObserver

_UNWRITTEN: Final = 6
"""Of so many comparisons of a key that was never written, one has the settings of the store read."""


class AntiEntropy:
    """Finds what no event showed: events that were lost, and rows that differ since the database was restored."""

    def __init__(
        self, machine: KeyMachine, fetches: KeyFetches, every_s: float, log: EventLog, *, observer: KeyObserver
    ) -> None:
        self._machine = machine
        self._fetches = fetches
        self._every_s = every_s
        self._log = log
        self._observer = observer
        self._wanted = asyncio.Event()
        self._unwritten = 0
        self.unanswered_since: float | None = None
        """When the first comparison since the last answer was sent; ``None`` while the service answers."""

    def compare_now(self) -> None:
        """Compares soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Compares until cancelled."""
        timer = AntiEntropyTimer(random.random, self._every_s)
        failed = False
        while True:
            await event_within(self._wanted, timer.next_s(failed=failed))
            self._wanted.clear()
            failed = not await self._compare()

    async def _compare(self) -> bool:
        """Compares once; returns whether that was possible."""
        loop = asyncio.get_running_loop()
        asked_at, known = loop.time(), self._machine.known_revisions()
        if not known.needed:
            return True
        try:
            reply = await self._fetches.heads()
        except RingcastError as error:
            if error.code is ErrorCode.PROTOCOL:
                self._machine.stats.bad_replies += 1
                self._observer.check_store()
            if error.code in (ErrorCode.STORE_DELETED, ErrorCode.KEY_DELETED):
                self._observer.deleted(error)
                return False
            if error.code is not ErrorCode.UNKNOWN_KEY:
                self._log.warning("anti_entropy.failed", error=error)
                if self.unanswered_since is None:
                    self.unanswered_since = asked_at
                self._observer.pump()
                return False
            self._look_at_the_store()
            nothing = [0] * self._machine.partition_count
            reply = HeadsReply(WIRE_VERSION, nothing, "", nothing)
        self.unanswered_since = None
        self._machine.compare_heads(known, reply.heads, loop.time(), reply.history, reply.rows)
        self._observer.pump()
        return True

    def _look_at_the_store(self) -> None:
        """A key that was never written has no history which would show that its store was created again."""
        self._unwritten += 1
        if self._unwritten % _UNWRITTEN == 0:
            self._observer.check_store()
