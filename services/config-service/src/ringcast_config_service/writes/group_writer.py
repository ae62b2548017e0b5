"""Writes that wait at the same time are committed together.

A hot partition costs one lock and one disk flush a group instead of one a write. While a transaction is quick there is
no other, and it takes in whatever has gathered meanwhile. Beside one that is slow (a bulk write, a head that another
transaction has locked) others begin, up to a bound, with what does not touch its partitions: so the writes of one
instance never conflict with each other, and those of one row and of one bulk stream keep their order.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ringcast_wire import (
    EventLog,
    InternalError,
    InvalidInputError,
    RingcastError,
    RowRule,
    SchemaMode,
    UnavailableError,
    limits,
)
from ringcast_wire.tracing import Tracing, end_span

from ringcast_config_service.caller import LOCAL, Caller
from ringcast_config_service.repository import LockedError, OutboxRecord, RowWriter, WriteOutcome, WriteRequest
from ringcast_config_service.telemetry import Measures, Telemetry
from ringcast_config_service.writes.groups import Group, RunningGroups
from ringcast_config_service.writes.rates import CALL_WAIT_S, STREAM_WAIT_S, WriteRates
from ringcast_config_service.writes.write_queues import Waiting, WriteQueues

log = EventLog(logging.getLogger(__name__))

MAX_WAITING_WRITES = 4_096
MAX_WAITING_BYTES = 64 * limits.MIB
_TURN_COST: Final = limits.MAX_BATCH_ROWS
"""Rows of one lane that go into a group before the next lane has its turn."""


class GroupWriter:
    """Takes writes from any number of tasks; :meth:`run` commits them. What does not fit its bounds is refused.

    ``transactions``: how many may be under way at once. ``max_writes`` and ``max_bytes`` bound what waits for one.
    """

    def __init__(
        self,
        repository: RowWriter,
        committed: Callable[[Sequence[OutboxRecord]], None],
        telemetry: Telemetry,
        *,
        transactions: int = 1,
        max_writes: int = MAX_WAITING_WRITES,
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._repository = repository
        self._committed = committed
        self._telemetry = telemetry
        self._measures = telemetry.measures
        self._queues = WriteQueues(max_writes, max_bytes)
        self._rates = WriteRates(telemetry.measures)
        self._running = RunningGroups(transactions)
        self._resting: list[asyncio.Future[None]] = []
        """Workers that have nothing to do."""
        self._waking = False
        self._timer: asyncio.TimerHandle | None = None
        self._freed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def write(self, request: WriteRequest, caller: Caller = LOCAL) -> WriteOutcome:
        """Returns once the rows are committed. Cancelling it takes the request back unless its rows are being stored.

        Raises:
            RingcastError: what the request was refused with; nothing of it was written. ``LimitExceededError`` with
                ``retry_after_s``: its store takes so many rows a second that it would have had to wait for too long.
        """
        await self._take((request,), caller, CALL_WAIT_S)
        return await self.submit(request, caller)

    async def write_all(self, requests: Sequence[WriteRequest], caller: Caller = LOCAL) -> WriteOutcome:
        """The same for the requests of a bundle; the outcome is that of all, their versions one after the other."""
        await self._take(requests, caller, CALL_WAIT_S)
        return await self._submit(requests, caller)

    async def room(self, request: WriteRequest, caller: Caller = LOCAL, patience_s: float = math.inf) -> None:
        """Returns when :meth:`submit` would take the request, for callers that would rather wait than be refused.

        ``patience_s``: how long the client waits for an answer, if its permit does not say so.

        Raises:
            LimitExceededError: the rows a second of its store are so few that it would have to wait for too long.
            UnavailableError: its caller does not wait any more.
        """
        await self._take((request,), caller, min(STREAM_WAIT_S, patience_s / 2))
        while self._queues.refusal(request.bytes, caller) is not None:
            self._freed.clear()
            await self._freed.wait()

    async def _take(self, requests: Sequence[WriteRequest], caller: Caller, most_s: float) -> None:
        """Waits for the rows of a request, for half of the time that its caller has left at most: so a caller hears
        that it was too long, and rows are not dealt out for what is not written any more."""
        first = requests[0]
        first.permit.check()
        rows = sum(len(request.rows) for request in requests)
        await self._rates.take(first.store, rows, caller, min(most_s, first.permit.left_s / 2))

    def submit(self, request: WriteRequest, caller: Caller = LOCAL) -> asyncio.Future[WriteOutcome]:
        """Queues a write. Requests of one caller to one key, and those of one chain, are committed in this order."""
        return self._submit((request,), caller)

    def _submit(self, requests: Sequence[WriteRequest], caller: Caller) -> asyncio.Future[WriteOutcome]:
        tracing = self._telemetry.tracing
        waiting = Waiting(requests, caller) if tracing is None else _traced(tracing, requests, caller)
        refusal = self._queues.refusal(waiting.bytes, caller)
        if refusal is not None:
            if waiting.span is not None:
                end_span(waiting.span, refusal)
            raise UnavailableError(refusal)
        requests[0].permit.withdrawn = waiting.outcome.cancelled
        self._queues.add(waiting)
        self._idle.clear()
        self._wake()
        return waiting.outcome

    async def run(self) -> None:
        """Commits groups for as long as it is not cancelled."""
        async with asyncio.TaskGroup() as workers:
            for number in range(self._running.transactions):
                workers.create_task(self._work(), name=f"writer-{number}")

    async def drain(self) -> None:
        """Returns when nothing waits or is being committed."""
        await self._idle.wait()

    @property
    def waiting(self) -> int:
        """Requests that wait; not those that are being committed."""
        return self._queues.writes

    @property
    def waiting_bytes(self) -> int:
        """Their rows."""
        return self._queues.bytes

    @property
    def transactions(self) -> int:
        """Transactions under way."""
        return len(self._running)

    # ---- workers: one a transaction

    async def _work(self) -> None:
        while True:
            group = self._next_group() if self._may_begin() else None
            if group is None:
                await self._rest()
                continue
            self._running.begin(group)
            self._wake()
            try:
                await self._commit(group)
            finally:
                self._running.end(group)
                for lane in group.lanes:
                    self._queues.resume(lane)
            if not self._queues.writes and not self._running:
                self._idle.set()

    async def _rest(self) -> None:
        """Waits until there may be something to begin with."""
        alarm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(alarm)
        try:
            await alarm
        finally:
            self._waking = False
            if alarm.cancelled():  # with its worker, at the end; what wakes one popped it from the list
                self._resting.remove(alarm)

    def _wake(self) -> None:
        """Wakes a worker, at once or when another transaction may begin."""
        if self._timer is None and not self._waking and self._resting and self._may_begin():
            self._waking = True
            self._resting.pop().set_result(None)

    def _wake_later(self) -> None:
        self._timer = None
        self._wake()

    def _may_begin(self) -> bool:
        """Whether a transaction may begin now; where one may later, a timer is set."""
        if not self._queues.has_turns:
            return False
        wait_s = self._running.next_wait_s(time.perf_counter())
        if wait_s > 0:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake_later)
            return False
        return True

    def _next_group(self) -> Group | None:
        """What is committed next, from each lane in its turn; ``None`` where all has to wait for other groups."""
        group = Group()
        while (lane := self._queues.next_lane()) is not None:
            spent = 0
            while lane.waiting and spent < _TURN_COST:
                waiting = lane.waiting[0]
                if waiting.outcome.done():  # cancelled
                    self._queues.take(lane)
                    if waiting.span is not None:
                        waiting.span.end()
                elif (blocker := self._running.blocker(waiting, time.perf_counter())) is not None:
                    self._queues.suspend(lane)
                    blocker.lanes.append(lane)
                    break
                elif not group.has_room(waiting):
                    return self._begun(group)
                else:
                    group.add(self._queues.take(lane))
                    spent += waiting.cost
        return self._begun(group)

    def _begun(self, group: Group) -> Group | None:
        self._freed.set()
        if not group.waiting:
            if not self._queues.writes and not self._running:
                self._idle.set()
            return None
        group.began_s = time.perf_counter()
        return group

    def _found_locked(self, group: list[Waiting]) -> None:
        """A transaction failed for a lock: its requests are tried one by one, and the one that fails alone is known."""
        if len(group) > 1:
            for waiting in group:
                waiting.alone = True
            self._queues.put_back(group)
            return
        now_s = time.perf_counter()
        for request in group[0].requests:
            self._running.found_locked(request, now_s)

    async def _commit(self, begun: Group) -> None:
        outcomes: list[WriteOutcome | RingcastError]
        group = begun.waiting
        for waiting in group:
            if waiting.span is not None:
                waiting.span.add_event("transaction", {"requests": len(group)})
        try:
            written = await self._repository.write(begun.requests, int(time.time() * 1000))
        except LockedError as error:
            self._found_locked(group)
            if len(group) > 1:
                return
            outcomes = [error]
        except RingcastError as error:
            outcomes = [error] * len(group)
        except Exception as error:
            log.error("write.failed", exc_info=True, requests=len(group))
            outcomes = [InternalError(f"the write failed: {type(error).__name__}")] * len(group)
        else:
            outcomes = _of_each(group, written.outcomes)
            self._running.found_free(begun)
            if written.events:
                self._committed(written.events)
        self._measures.write_group_size.observe(len(group))
        self._measures.transaction_duration.observe(time.perf_counter() - begun.began_s)
        for waiting, outcome in zip(group, outcomes, strict=True):
            _measure(self._measures, waiting, outcome)
            _settle(waiting, outcome)


def _traced(tracing: Tracing, requests: Sequence[WriteRequest], caller: Caller) -> Waiting:
    """A request whose events go on from its commit, which lasts from its arrival here to its outcome."""
    first = requests[0]
    facts = {"store": first.store.name, "key": first.key, "rows": sum(len(request.rows) for request in requests)}
    span = tracing.start("config.commit", first.traceparent, facts)
    traceparent = tracing.traceparent(span)
    return Waiting([replace(request, traceparent=traceparent) for request in requests], caller, span)


def _measure(measures: Measures, waiting: Waiting, outcome: WriteOutcome | RingcastError) -> None:
    """Counts a request that has ended, and ends its span."""
    request, refusal = waiting.requests[0], None
    if isinstance(outcome, RingcastError):
        rows, code, refusal = 0, str(outcome.code), str(outcome)
        if isinstance(outcome, InvalidInputError) and outcome.rule is RowRule.SCHEMA:
            measures.schema_violations[request.store.name, SchemaMode.ENFORCE] += 1
    else:
        rows, code = outcome.written + outcome.deleted, "ok"
    measures.wrote(request.store.name, request.key, rows, code, time.perf_counter() - waiting.since_s)
    if waiting.span is not None:
        end_span(waiting.span, refusal)


def _of_each(
    group: Sequence[Waiting], outcomes: list[WriteOutcome | RingcastError]
) -> list[WriteOutcome | RingcastError]:
    """One outcome for each that waits, whatever number of requests it has."""
    if len(outcomes) == len(group):
        return outcomes
    rest = iter(outcomes)
    return [_sum([next(rest) for _ in waiting.requests]) for waiting in group]


def _sum(parts: Sequence[WriteOutcome | RingcastError]) -> WriteOutcome | RingcastError:
    """The outcome of a bundle: its parts are all written, or all refused for the same reason."""
    made: list[WriteOutcome] = []
    for part in parts:
        if isinstance(part, RingcastError):
            return part
        made.append(part)
    return WriteOutcome(
        sum(part.written for part in made),
        sum(part.deleted for part in made),
        sum(part.unchanged for part in made),
        [version for part in made for version in part.versions],
    )


def _settle(waiting: Waiting, outcome: WriteOutcome | RingcastError) -> None:
    chain = waiting.requests[0].chain
    if isinstance(outcome, RingcastError) and chain is not None:
        chain.failed = True
    if waiting.outcome.done():
        return
    if isinstance(outcome, RingcastError):
        waiting.outcome.set_exception(outcome)
        waiting.outcome.exception()  # marks it as seen: the caller may be gone, and asyncio would log it
    else:
        waiting.outcome.set_result(outcome)
