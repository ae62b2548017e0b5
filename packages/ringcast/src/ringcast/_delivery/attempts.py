"""Calling the application's handler for a change as often as the configuration allows, with a time-out and pauses."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from ringcast_wire import Backoff, EventLog, ValueSealedError

from ringcast._common.cancellation import ENDS_THE_PROCESS, Stopping
from ringcast._common.change import Change
from ringcast._common.config import WorkerConfig
from ringcast._common.measures import KeyMeasures
from ringcast._common.stats import Stats
from ringcast._delivery.calls import HandlerCall
from ringcast._delivery.gate import Admission, CallEndedError, CallGate, NotAdmittedError

Handler: TypeAlias = Callable[[Change], Awaitable[None] | None]
"""Takes a change. A plain function runs in the event loop, so it should not block."""


class Attempts:
    """Of one config key. ``timeout_s``: after so long a call that waits is cancelled; ``None``: never.

    ``gate``: what each try is let through by, if by anything.
    """

    def __init__(
        self, config: WorkerConfig, stats: Stats, log: EventLog, *, stopping: Stopping, measures: KeyMeasures
    ) -> None:
        self.timeout_s: float | None = None
        self.gate: CallGate | None = None
        self._tries = config.handler_tries
        self._stats = stats
        self._log = log
        self._stopping = stopping
        self._latency = measures.handler_latency if measures.timed else None

    async def run(
        self,
        handler: Handler,
        call: HandlerCall,
        begun: BaseException | Awaitable[None] | None = None,
        *,
        ours: bool = True,
    ) -> BaseException | None:
        """Calls the handler until it succeeds or has failed ``handler_tries`` times; returns the last error, if any.

        A call whose partition is lost meanwhile is not repeated. ``begun``: what the first call gave, if it has been
        made. ``ours``: this runs in a task of this worker's; cancelling the caller's own task ends it.
        """
        change = call.change
        last: BaseException | None
        backoff: Backoff | None = None
        for tries_left in reversed(range(self._tries)):
            admission = None
            if self.gate is not None and begun is None:  # one that has begun has needed no admission
                admission = self.gate.begin(change.partition, change.token)
                if admission is None:
                    call.lose()
                    return NotAdmittedError(f"partition {change.partition} is lost")
            try:
                last = (
                    begun
                    if isinstance(begun, BaseException)
                    else await self._call(handler, change, begun, admission, ours=ours)
                )
            finally:
                if admission is not None:
                    admission.end()
            if last is None:
                return None
            if isinstance(last, CallEndedError):
                call.lose()
                return last
            begun = None
            if tries_left:
                if call.lost or isinstance(last, ValueSealedError):  # the same bytes will not open a moment later
                    break
                call.error = repr(last)
                facts = {"partition": change.partition, "version": change.version, "error": call.error}
                self._log.warning("handler.failed", **facts, tries_left=tries_left)
                backoff = backoff or Backoff(random.random, first_s=0.1, most_s=5.0)
                pause = partial(call.pause, backoff.next_s())
                await (self._stopping.through(pause) if ours else pause())
        return last

    async def _call(
        self,
        handler: Handler,
        change: Change,
        begun: Awaitable[None] | None,
        admission: Admission | None,
        *,
        ours: bool,
    ) -> BaseException | None:
        """Calls the handler, or waits for a call that was begun; returns its error."""
        latency, began_s = self._latency, 0.0
        if latency is not None:
            began_s = time.perf_counter()
        try:
            result = handler(change) if begun is None else begun
            if inspect.isawaitable(result):
                waits = result if self.timeout_s is None else self._timed(result, self.timeout_s)
                await (waits if admission is None else admission.wait(waits))
        except ENDS_THE_PROCESS:
            raise
        except (NotAdmittedError, CallEndedError) as error:
            return error
        except BaseException as error:  # whatever the application raises
            if isinstance(error, asyncio.CancelledError) and not self._stopping.goes_on(ours=ours):
                raise
            self._stats.handler_failures += 1
            return error
        finally:
            if latency is not None:
                latency.observe(time.perf_counter() - began_s)
        return None

    async def _timed(self, result: Awaitable[None], timeout_s: float) -> None:
        """Cancels a call that takes too long, and waits for it all the same if it ignores that."""
        try:
            async with asyncio.timeout(timeout_s) as timeout:
                await result
        except TimeoutError as error:
            if not timeout.expired():
                raise
            self._stats.handler_timeouts += 1
            raise TimeoutError(f"the handler did not return within handler_timeout_s = {timeout_s:g} s") from error
