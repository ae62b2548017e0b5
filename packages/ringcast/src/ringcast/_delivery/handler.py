"""Handing changes to the application: in parallel up to a limit, again after a failure, and on to the poison policy."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Final, TypeAlias

from ringcast_wire import EventLog, ReplayAnswer, ReplayOutcome, ValueSealedError

from ringcast._common.cancellation import ENDS_THE_PROCESS, Stopping
from ringcast._common.change import Change
from ringcast._common.config import WorkerConfig
from ringcast._common.measures import KeyMeasures
from ringcast._common.opening import Opening
from ringcast._common.stats import Stats
from ringcast._delivery.attempts import Attempts, Handler
from ringcast._delivery.callbacks import Listeners, OwnershipCallbacks
from ringcast._delivery.calls import HandlerCall, HandlerCalls
from ringcast._delivery.dead_letters import DeadLetters
from ringcast._delivery.gate import Admission, CallGate, NotAdmittedError
from ringcast._delivery.loop_share import LoopShare
from ringcast._delivery.poison import Poison, Replay
from ringcast._delivery.progress import DeliveryProgress

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
        listeners: Listeners,
        owned: Callable[[int], bool],
        dead_letters: DeadLetters,
        measures: KeyMeasures,
        opening: Opening,
    ) -> None:
        self.opening = opening
        self._handler: Handler | None = None
        self._waits = False
        self._after = 0
        self._config = config
        self._stats = stats
        self._owns = owned
        self._lost: set[int] = set()
        self._progress = DeliveryProgress()
        self.poison = Poison(config, stats, log, dead_letters, self._owned)
        self.calls = HandlerCalls()
        self.stopping = Stopping()
        self._attempts = Attempts(config, stats, log, stopping=self.stopping, measures=measures)
        self._callbacks = OwnershipCallbacks(listeners, stopping=self.stopping, stats=stats, log=log)
        self._loop_share = LoopShare()
        self._latency = measures.handler_latency if measures.timed else None
        self._gate: CallGate | None = None
        self._is_gated = True

    @property
    def gate(self) -> CallGate | None:
        """What lets calls of the application start; ``None``: nothing need."""
        return self._gate

    @gate.setter
    def gate(self, gate: CallGate | None) -> None:
        self._gate = self._callbacks.gate = gate
        self._attempts.gate = gate if self._is_gated else None

    def attach(self, handler: Handler | None, *, after: int = 0, timed: bool = True, gated: bool = True) -> None:
        """Sets the handler for the jobs whose number is above ``after``; ``None``: their changes are dropped.

        ``timed``: whether the time-out of handlers holds for its calls. ``gated``: whether the gate does; one for which
        it does not asks the gate itself.
        """
        self._is_gated = gated
        self._attempts.gate = self._gate if gated else None
        self._handler = None if handler is None else self.opening.handler(handler)
        self._attempts.timeout_s = (self._config.handler_timeout_s or None) if timed else None
        self._waits = inspect.iscoroutinefunction(handler)
        self._after = after

    async def strays_ended(self) -> None:
        """Waits until no call runs any more that runs now: those that begin later need the gate that is set by now."""
        await self.calls.those_ended()
        await self._callbacks.ended()

    def admit(self, change: Change) -> Admission | None:
        """Lets the gate begin a call for a change.

        Raises:
            NotAdmittedError: it may not start: the partition is lost.
        """
        if self._gate is None:
            return None
        admission = self._gate.begin(change.partition, change.token)
        if admission is None:
            raise NotAdmittedError(f"partition {change.partition} is lost")
        return admission

    @property
    def parallel(self) -> int:
        """How many calls of the handler may run at once; those of a plain function do not."""
        return self._config.max_parallel_handlers if self._waits else 1

    @property
    def attached(self) -> bool:
        """Whether there is a handler."""
        return self._handler is not None

    def begin(self) -> None:
        """A job begins, whose changes are all of partitions that are owned now."""
        self._lost.clear()
        self._progress.reset()

    def take_finished(self) -> set[int]:
        """The partitions of which the job that runs has handed everything over; each is given once."""
        return self._progress.take_finished()

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
        begun = None if self._waits or self._gate is not None else await self._apply_plain(source)
        left = length_hint(source) + (begun is not None)
        runners = min(left, self._config.max_parallel_handlers)
        if left > runners:
            self._progress.expect(changes[-left:])
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
        """Calls ``on_assigned`` or ``on_revoked``. An error of theirs is counted and logged, not more.

        ``on_revoked`` is called once the calls for these partitions have ended; one callback runs at a time.
        ``at_end``: the worker gives everything up, in a task that nothing of the application runs in otherwise.
        """
        if not assigned:
            await self.calls.ended(partitions)
            await self.poison.lose(partitions)
        await self._callbacks.call(key, assigned, partitions, ours=not at_end)

    @property
    def callback_running_s(self) -> float:
        """For how long ``on_assigned`` or ``on_revoked`` has been running; 0 when neither is. From any thread."""
        return self._callbacks.running_s

    async def _apply_plain(self, changes: Iterator[Change]) -> _Begun | None:
        while True:
            if self._loop_share.is_due:
                await self.stopping.through(self._loop_share.rest)
            begun = self._run_plain(changes)
            if begun is not None or self._gate is not None or not length_hint(changes):
                return begun
            await self.stopping.through(_breathe)
            if self._gate is not None:  # the rest needs admission
                return None

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
        share, done = self._loop_share, self._progress.done
        if begun is not None and self._handler is not None:
            await self._finish(self._handler, *begun)
            done(begun[0].change.partition)
        for count, change in enumerate(changes, 1):
            if share.is_due:
                await self.stopping.through(share.rest)
            if self.stopping.begun:  # a handler has swallowed the cancellation
                return
            if self._handler is not None and change.partition not in self._lost and not self.poison.hold(change):
                share.begin()
                await self._finish(self._handler, self.calls.begin(change))
                share.blocked()
            done(change.partition)
            if count % _BREATHE == 0:
                await self.stopping.through(_breathe)

    async def refuse(self, change: Change, error: ValueSealedError) -> None:
        """Has the poison policy decide on a change that can't be opened, and so does not get as far as the handler."""
        self._stats.handler_failures += 1
        if not self.poison.hold(change):
            await self._finish_refused(self.calls.begin(change), error)

    async def _finish_refused(self, call: HandlerCall, error: ValueSealedError) -> None:
        try:
            await self.poison.give_up(call, error)
        finally:
            self.calls.end(call)

    async def unblock(self, partition: int, row_id: str) -> bool:
        """Tries the newest change of a blocked row again; returns whether the row is free now."""

        async def attempt(change: Change) -> BaseException | None:
            if self._handler is None:
                return None
            call = self.calls.begin(change)
            try:
                return await self._attempts.run(self._handler, call, ours=False)
            finally:
                self.calls.end(call)

        return await self.poison.unblock(partition, row_id, attempt)

    async def take_provisional(self, change: Change) -> BaseException | None:
        """Hands a provisional change over; returns the last error. No poison policy has to do with it."""
        if (handler := self._handler) is None:
            return None
        call = self.calls.begin(change)
        try:
            return await self._attempts.run(handler, call, ours=False)
        finally:
            self.calls.end(call)

    async def take_again(self, change: Change) -> None:
        """Hands a change over that the handler has had before, behind a provisional one."""
        if (handler := self._handler) is None or self.poison.hold(change):
            return
        call = self.calls.begin(change)
        try:
            if (error := await self._attempts.run(handler, call, ours=False)) is not None:
                await self.poison.give_up(call, error)
        finally:
            self.calls.end(call)

    async def replay(self, change: Change, replay: Replay) -> ReplayAnswer:
        """Hands a row over again, as :meth:`Poison.replay` does."""
        handler = self._handler
        if handler is None:
            return replay.answer(ReplayOutcome.KEPT, change, "the worker has no handler now")

        async def attempt(call: HandlerCall) -> BaseException | None:
            return await self._attempts.run(handler, call, ours=False)

        self._stats.replays += 1
        return await self.poison.replay(change, replay, self.calls, attempt)

    async def _finish(
        self, handler: Handler, call: HandlerCall, begun: BaseException | Awaitable[None] | None = None
    ) -> None:
        try:
            error = await self._attempts.run(handler, call, begun)
            if error is not None and not call.lost:  # else its new owner has it
                await self.stopping.through(partial(self.poison.give_up, call, error))
        finally:
            self.calls.end(call)


async def _breathe() -> None:
    """Lets other tasks run."""
    await asyncio.sleep(0)
