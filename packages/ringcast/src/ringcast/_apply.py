"""Handing changes to the application: in parallel up to a limit, again after a failure, and on to the poison policy."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeAlias

from ringcast._change import Change
from ringcast._config import WorkerConfig
from ringcast._log import Log
from ringcast._machine.backoff import Backoff
from ringcast._measures import KeyMeasures
from ringcast._poison import DeadLetters, Poison
from ringcast._stats import Stats

Handler: TypeAlias = Callable[[Change], Awaitable[None] | None]
"""Takes a change. A plain function runs in the event loop, so it must not block."""
Listener: TypeAlias = Callable[[str, frozenset[int]], Awaitable[None] | None]
"""Takes a config key and the partitions that were assigned or revoked."""

_BREATHE: Final = 256
"""Changes after which a plain handler lets other tasks run."""


class Applier:
    """Calls the application's functions for one config key."""

    def __init__(
        self,
        config: WorkerConfig,
        stats: Stats,
        log: Log,
        *,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
        owned: Callable[[int], bool],
        letters: DeadLetters,
        measures: KeyMeasures,
    ) -> None:
        self._handler: Handler | None = None
        self._after = 0
        self._config = config
        self._stats = stats
        self._log = log
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._owned = owned
        self.poison = Poison(config, stats, log, letters, owned)
        self._latency = measures.handler_latency if measures.timed else None

    def attach(self, handler: Handler | None, *, after: int = 0) -> None:
        """Sets who takes the changes of the jobs whose number is above ``after``; ``None``: nobody."""
        self._handler = handler
        self._after = after

    @property
    def attached(self) -> bool:
        """Whether anybody takes changes."""
        return self._handler is not None

    async def apply(self, job: int, changes: list[Change]) -> None:
        """Hands each change over; returns when the last has been taken or given up."""
        if self._handler is None or job <= self._after:
            return
        runners = min(len(changes), self._config.max_parallel_handlers)
        source = iter(changes)
        if runners == 1:
            await self._run(source)
            return
        async with asyncio.TaskGroup() as tasks:
            for _ in range(runners):
                tasks.create_task(self._run(source))

    async def announce(self, key: str, assigned: bool, partitions: frozenset[int]) -> None:
        """Tells the application which partitions it got or lost. An error of its own is logged, not more."""
        if not assigned:
            await self.poison.lose(partitions)
        listener = self._on_assigned if assigned else self._on_revoked
        if listener is None:
            return
        try:
            result = listener(key, partitions)
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001  # whatever the application raises
            name = "on_assigned" if assigned else "on_revoked"
            self._log.error("callback failed", callback=name, error=repr(error))

    async def _run(self, changes: Iterator[Change]) -> None:
        for count, change in enumerate(changes, 1):
            if self._handler is not None and self._owned(change.partition):
                await self._hand_over(self._handler, change)
            if count % _BREATHE == 0:
                await asyncio.sleep(0)

    async def unblock(self, partition: int, row_id: str) -> bool:
        """Tries the newest change of a blocked row again; returns whether the row is free now."""

        async def attempt(change: Change) -> Exception | None:
            return None if self._handler is None else await self._attempt(self._handler, change)

        return await self.poison.unblock(partition, row_id, attempt)

    async def _hand_over(self, handler: Handler, change: Change) -> None:
        if not self.poison.hold(change):
            error = await self._attempt(handler, change)
            if error is not None:
                await self.poison.give_up(change, error)

    async def _attempt(self, handler: Handler, change: Change) -> Exception | None:
        """Calls the handler as often as it may be called; returns the last error if it raised every time."""
        last: Exception | None = None
        backoff: Backoff | None = None
        latency, began_s = self._latency, 0.0
        for tries_left in reversed(range(self._config.handler_tries)):
            if latency is not None:
                began_s = time.perf_counter()
            try:
                result = handler(change)
                if inspect.isawaitable(result):
                    await result
            except Exception as error:  # noqa: BLE001  # whatever the application raises
                self._stats.handler_failures += 1
                last = error
            else:
                return None
            finally:
                if latency is not None:
                    latency.observe(time.perf_counter() - began_s)
            if tries_left:
                facts = {"partition": change.partition, "version": change.version, "error": repr(last)}
                self._log.warning("handler failed: it is tried again", **facts, tries_left=tries_left)
                backoff = backoff or Backoff(random.random, first_s=0.1, most_s=5.0)
                await asyncio.sleep(backoff.next_s())
        return last
