"""Handing changes to the application: in parallel up to a limit, again after a failure, and on to the poison policy."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Final, TypeAlias

from ringcast_wire import Backoff, EventLog, ReplayAnswer, ReplayOutcome

from ringcast._common.cancellation import ENDS_THE_PROCESS, Stopping, is_cancelled
from ringcast._common.change import Change
from ringcast._common.config import WorkerConfig
from ringcast._common.measures import KeyMeasures
from ringcast._common.stats import Stats
from ringcast._delivery.calls import HandlerCall, HandlerCalls
from ringcast._delivery.loop_share import LoopShare
from ringcast._delivery.poison import DeadLetters, Poison, Replay

Handler: TypeAlias = Callable[[Change], Awaitable[None] | None]
"""Takes a change. A plain function runs in the event loop, so it should not block."""
Listener: TypeAlias = Callable[[str, frozenset[int]], Awaitable[None] | None]
"""Takes a config key and the partitions that were assigned or revoked."""

_Begun: TypeAlias = tuple[HandlerCall, BaseException | Awaitable[None]]
"""A call of the handler, and what became of it."""

_BREATHE: Final = 256
"""Changes after which a handler that waits for nothing lets other tasks run."""


class Applier:
    """Calls the application's functions for one config key."""

    def __init__(
        self,
        config: WorkerConfig,
        stats: Stats,
        log: EventLog,
        *,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
        owned: Callable[[int], bool],
        letters: DeadLetters,
        measures: KeyMeasures,
    ) -> None:
        self._handler: Handler | None = None
        self._waits = False
        self._after = 0
        self._timeout_s: float | None = None
        self._config = config
        self._stats = stats
        self._log = log
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._owns = owned
        self._lost: set[int] = set()
        self._left: Counter[int] = Counter()
        self._finished: set[int] = set()
        self.poison = Poison(config, stats, log, letters, self._owned)
        self.calls = HandlerCalls()
        self.stopping = Stopping()
        self._loop_share = LoopShare()
        self._telling = asyncio.Lock()
        self._telling_since: float | None = None
        """Since when a callback has been running; they run one at a time."""
        self._latency = measures.handler_latency if measures.timed else None

    def attach(self, handler: Handler | None, *, after: int = 0, timed: bool = True) -> None:
        """Sets who takes the changes of the jobs whose number is above ``after``; ``None``: nobody.

        ``timed``: whether the time-out of handlers holds for its calls.
        """
        self._handler = handler
        self._timeout_s = (self._config.handler_timeout_s or None) if timed else None
        self._waits = inspect.iscoroutinefunction(handler)
        self._after = after

    @property
    def parallel(self) -> int:
        """How many calls of the handler may run at once; those of a plain function do not."""
        return self._config.max_parallel_handlers if self._waits else 1

    @property
    def attached(self) -> bool:
        """Whether anybody takes changes."""
        return self._handler is not None

    def begin(self) -> None:
        """A job begins, whose changes are all of partitions that are owned now."""
        self._lost.clear()
        self._left.clear()
        self._finished.clear()

    def take_finished(self) -> set[int]:
        """The partitions of which the job that runs has handed everything over; each is given once."""
        finished, self._finished = self._finished, set()
        return finished

    def lose(self, partitions: AbstractSet[int]) -> None:
        """These partitions are lost, even if they come back: what the job has of them is not handed over any more."""
        self._lost |= partitions
        self.calls.lose(partitions)

    def _owned(self, partition: int) -> bool:
        return partition not in self._lost and self._owns(partition)

    async def apply(self, job: int, changes: list[Change]) -> None:
        """Hands each change over; returns when the last has been taken or given up."""
        if self._handler is None or job <= self._after:
            return
        source = iter(changes)
        begun = None if self._waits else await self._apply_plain(source)
        left = length_hint(source) + (begun is not None)
        runners = min(left, self._config.max_parallel_handlers)
        if left > runners:
            self._left.update(change.partition for change in changes[-left:])
        try:
            if runners == 1:
                await self._run(source, begun)
            elif runners:
                await self._run_several(runners, source, begun)
        finally:
            if begun is not None:  # a task that was cancelled before it ran has not ended it
                self.calls.end(begun[0])

    async def _run_several(self, runners: int, source: Iterator[Change], begun: _Begun | None) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run(source, begun))
                for _ in range(runners - 1):
                    tasks.create_task(self._run(source))
        except asyncio.CancelledError:
            # If the worker goes on, so did the runners: they have handed over everything by now.
            if not self.stopping.take_back():
                raise

    async def announce(self, key: str, assigned: bool, partitions: frozenset[int], *, at_end: bool = False) -> None:
        """Tells the application which partitions it got or lost. An error of its own is counted and logged, not more.

        A loss is told once the calls that run for these partitions have ended; one callback runs at a time.
        ``at_end``: the worker gives everything up, in a task that nothing of the application runs in otherwise.
        """
        if not assigned:
            await self.calls.ended(partitions)
            await self.poison.lose(partitions)
        listener = self._on_assigned if assigned else self._on_revoked
        if listener is None:
            return
        try:
            async with self._telling:
                self._telling_since = time.monotonic()
                try:
                    result = listener(key, partitions)
                    if inspect.isawaitable(result):
                        await result
                finally:
                    self._telling_since = None
        except ENDS_THE_PROCESS:
            raise
        except BaseException as error:  # whatever the application raises
            if isinstance(error, asyncio.CancelledError) and not self._goes_on(ours=not at_end):
                raise
            self._stats.callback_failures += 1
            name = "on_assigned" if assigned else "on_revoked"
            self._log.error("callback.failed", callback=name, error=repr(error))

    @property
    def callback_running_s(self) -> float:
        """For how long ``on_assigned`` or ``on_revoked`` has been running; 0 when neither is. Any thread may ask."""
        since = self._telling_since
        return 0.0 if since is None else time.monotonic() - since

    async def _apply_plain(self, changes: Iterator[Change]) -> _Begun | None:
        while True:
            if self._loop_share.is_due:
                await self.stopping.through(self._loop_share.rest)
            begun = self._run_plain(changes)
            if begun is not None or not length_hint(changes):
                return begun
            await self.stopping.through(_breathe)

    def _run_plain(self, changes: Iterator[Change]) -> _Begun | None:
        """Hands changes to a plain function, until one fails or waits after all: that one is returned."""
        lost, hold, latency, began_s = self._lost, self.poison.hold, self._latency, 0.0
        until_s = self._loop_share.begin()
        for change in islice(changes, _BREATHE):
            handler = self._handler
            if handler is None or change.partition in lost or hold(change):
                continue
            if latency is not None:
                began_s = time.perf_counter()
            try:
                result = handler(change)
            except ENDS_THE_PROCESS:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever the application raises
                self._stats.handler_failures += 1
                return self.calls.begin(change), error
            finally:
                if latency is not None:
                    latency.observe(time.perf_counter() - began_s)
            if result is not None and inspect.isawaitable(result):
                return self.calls.begin(change), result
            if time.monotonic() >= until_s and self._loop_share.blocked():
                return None
        return None

    async def _run(self, changes: Iterator[Change], begun: _Begun | None = None) -> None:
        if begun is not None and self._handler is not None:
            await self._finish(self._handler, *begun)
            self._done(begun[0].change.partition)
        share = self._loop_share
        for count, change in enumerate(changes, 1):
            if share.is_due:
                await self.stopping.through(share.rest)
            if self.stopping.begun:  # a handler has swallowed the cancellation
                return
            if self._handler is not None and change.partition not in self._lost and not self.poison.hold(change):
                share.begin()
                await self._finish(self._handler, self.calls.begin(change))
                share.blocked()
            self._done(change.partition)
            if count % _BREATHE == 0:
                await self.stopping.through(_breathe)

    def _done(self, partition: int) -> None:
        if self._left:
            self._left[partition] -= 1
            if not self._left[partition]:
                self._finished.add(partition)

    async def unblock(self, partition: int, row_id: str) -> bool:
        """Tries the newest change of a blocked row again; returns whether the row is free now."""

        async def attempt(change: Change) -> BaseException | None:
            if self._handler is None:
                return None
            call = self.calls.begin(change)
            try:
                return await self._attempt(self._handler, call, ours=False)
            finally:
                self.calls.end(call)

        return await self.poison.unblock(partition, row_id, attempt)

    async def replay(self, change: Change, replay: Replay) -> ReplayAnswer:
        """Hands a row over again, as :meth:`Poison.replay` says."""
        handler = self._handler
        if handler is None:
            return replay.answer(ReplayOutcome.KEPT, change, "nobody takes changes from the worker now")

        async def attempt(call: HandlerCall) -> BaseException | None:
            return await self._attempt(handler, call, ours=False)

        self._stats.replays += 1
        return await self.poison.replay(change, replay, self.calls, attempt)

    async def _finish(
        self, handler: Handler, call: HandlerCall, begun: BaseException | Awaitable[None] | None = None
    ) -> None:
        try:
            error = await self._attempt(handler, call, begun)
            if error is not None and not call.lost:  # else its new owner has it
                await self.stopping.through(partial(self.poison.give_up, call, error))
        finally:
            self.calls.end(call)

    async def _attempt(
        self,
        handler: Handler,
        call: HandlerCall,
        begun: BaseException | Awaitable[None] | None = None,
        *,
        ours: bool = True,
    ) -> BaseException | None:
        """Calls the handler as often as it may be called; returns the last error if it raised every time.

        ``begun``: what the first call gave, if it has been made. ``ours``: it runs in a task of this worker's.
        """
        change = call.change
        backoff: Backoff | None = None
        for tries_left in reversed(range(self._config.handler_tries)):
            last = begun if isinstance(begun, BaseException) else await self._call(handler, change, begun, ours=ours)
            if last is None:
                return None
            begun = None
            if tries_left:
                if call.lost:
                    break
                facts = {"partition": change.partition, "version": change.version, "error": repr(last)}
                self._log.warning("handler.failed", **facts, tries_left=tries_left)
                backoff = backoff or Backoff(random.random, first_s=0.1, most_s=5.0)
                pause = partial(call.pause, backoff.next_s())
                await (self.stopping.through(pause) if ours else pause())
        return last

    async def _call(
        self, handler: Handler, change: Change, begun: Awaitable[None] | None, *, ours: bool
    ) -> BaseException | None:
        """Calls the handler, or waits for a call that was begun; returns its error."""
        latency, began_s = self._latency, 0.0
        if latency is not None:
            began_s = time.perf_counter()
        try:
            result = handler(change) if begun is None else begun
            if inspect.isawaitable(result):
                await (result if self._timeout_s is None else self._timed(result, self._timeout_s))
        except ENDS_THE_PROCESS:
            raise
        except BaseException as error:  # whatever the application raises
            if isinstance(error, asyncio.CancelledError) and not self._goes_on(ours=ours):
                raise
            self._stats.handler_failures += 1
            return error
        finally:
            if latency is not None:
                latency.observe(time.perf_counter() - began_s)
        return None

    async def _timed(self, result: Awaitable[None], timeout_s: float) -> None:
        """Cancels a call that takes too long; one that does not heed that is waited for all the same."""
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                await result
        except TimeoutError as error:
            if not timeout.expired():
                raise
            self._stats.handler_timeouts += 1
            raise TimeoutError(f"the handler did not return within handler_timeout_s = {timeout_s:g} s") from error

    def _goes_on(self, *, ours: bool) -> bool:
        """After a ``CancelledError`` out of the application: whether it is a failure, and not a wish to end the task.

        In a task of this worker's only a stop is such a wish; in the caller's own, whatever it was cancelled for.
        """
        return self.stopping.take_back() if ours else not is_cancelled()


async def _breathe() -> None:
    """Lets other tasks run."""
    await asyncio.sleep(0)
