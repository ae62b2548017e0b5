"""Comparing the revisions of a config key with the service's, now and then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from ringcast_wire import WIRE_VERSION, ErrorCode, EventLog, HeadsReply, RingcastError

from ringcast._protocol.anti_entropy import AntiEntropyTimer
from ringcast._protocol.key import KeyMachine


class HeadsCheck:
    """Asks for the heads every ``every_s`` seconds, and when called to.

    ``compared`` is called after each attempt, ``deleted`` when the answer is that the store or the key is deleted.
    """

    def __init__(
        self,
        machine: KeyMachine,
        every_s: float,
        log: EventLog,
        compared: Callable[[], None],
        deleted: Callable[[RingcastError], None],
    ) -> None:
        self._deleted = deleted
        self._machine = machine
        self._every_s = every_s
        self._log = log
        self._compared = compared
        self._wanted = asyncio.Event()
        self.unanswered_since: float | None = None
        """When the first comparison was asked for that got no answer; ``None`` once one has."""

    def hurry(self) -> None:
        """Compares soon."""
        self._wanted.set()

    async def run(self, fetch: Callable[[], Coroutine[Any, Any, HeadsReply]]) -> None:
        """Compares until cancelled. ``fetch`` asks the service."""
        timer = AntiEntropyTimer(random.random, self._every_s)
        failed = False
        while True:
            try:
                async with asyncio.timeout(timer.next_s(failed=failed)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            failed = not await self._compare(fetch)

    async def _compare(self, fetch: Callable[[], Coroutine[Any, Any, HeadsReply]]) -> bool:
        """Compares once; returns whether that was possible."""
        loop = asyncio.get_running_loop()
        asked_at, asked = loop.time(), self._machine.known_revisions()
        if not asked.needed:
            return True
        try:
            reply = await fetch()
        except RingcastError as error:
            self._machine.stats.bad_replies += error.code is ErrorCode.PROTOCOL
            if error.code in (ErrorCode.STORE_DELETED, ErrorCode.KEY_DELETED):
                self._deleted(error)
                return False
            if error.code is not ErrorCode.UNKNOWN_KEY:
                self._log.warning("comparing heads failed", error=str(error))
                if self.unanswered_since is None:
                    self.unanswered_since = asked_at
                self._compared()
                return False
            nothing = [0] * self._machine.partition_count
            reply = HeadsReply(WIRE_VERSION, nothing, "", nothing)
        self.unanswered_since = None
        self._machine.compare_heads(asked, reply.heads, loop.time(), reply.history, reply.rows)
        self._compared()
        return True
