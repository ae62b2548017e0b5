"""Writes that wait at the same time are committed together.

One transaction at a time, taking in whatever has gathered meanwhile: a hot partition costs one lock and one disk flush
a group instead of one a write, and the writes of one instance never conflict with each other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ringcast_wire import InternalError, RingcastError, UnavailableError, limits
from ringcast_wire.tracing import end_span

from ringcast_config_service.repository import OutboxRecord, Repository, WriteOutcome, WriteRequest
from ringcast_config_service.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

MAX_GROUP_ROWS = 8 * limits.MAX_BATCH_ROWS
MAX_GROUP_BYTES = 2 * limits.MAX_PARTITION_BYTES
MAX_WAITING_WRITES = 4_096
MAX_WAITING_BYTES = 64 * limits.MIB


@dataclass(slots=True, eq=False)
class _Waiting:
    request: WriteRequest
    span: Span | None = None
    since_s: float = field(default_factory=time.perf_counter)
    outcome: asyncio.Future[WriteOutcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class GroupWriter:
    """Takes writes from any number of tasks; :meth:`run` commits them. What does not fit its bounds is refused."""

    def __init__(
        self,
        repository: Repository,
        committed: Callable[[Sequence[OutboxRecord]], None],
        telemetry: Telemetry | None = None,
    ) -> None:
        self._repository = repository
        self._committed = committed
        self._telemetry = telemetry or Telemetry()
        self._measures = self._telemetry.measures
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._freed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    async def write(self, request: WriteRequest) -> WriteOutcome:
        """Returns once the rows are committed. Cancelling it takes the request back unless its group has begun.

        Raises:
            RingcastError: what the request was refused with; nothing of it was written.
        """
        return await self.submit(request)

    async def room(self, request: WriteRequest) -> None:
        """Returns when :meth:`submit` would take the request, for those who would rather wait than be refused."""
        while not self._fits(request):
            self._freed.clear()
            await self._freed.wait()

    def submit(self, request: WriteRequest) -> asyncio.Future[WriteOutcome]:
        """Queues a write; requests are committed in the order of submission."""
        if not self._fits(request):
            raise UnavailableError(
                f"{len(self._waiting)} writes of {self._waiting_bytes} bytes wait for the database: try again later"
            )
        waiting = self._traced(request) if self._telemetry.tracing is not None else _Waiting(request)
        self._waiting.append(waiting)
        self._waiting_bytes += request.bytes
        self._idle.clear()
        self._arrived.set()
        return waiting.outcome

    async def run(self) -> None:
        """Commits groups for as long as it is not cancelled."""
        while True:
            await self._arrived.wait()
            group = self._next_group()
            if group:
                await self._commit(group)
            if not self._waiting:
                self._arrived.clear()
                self._idle.set()

    async def drain(self) -> None:
        """Returns when nothing waits or is being committed."""
        await self._idle.wait()

    @property
    def waiting(self) -> int:
        """Requests that wait; not those that are being committed."""
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Their rows."""
        return self._waiting_bytes

    def _traced(self, request: WriteRequest) -> _Waiting:
        """A request whose events go on from its commit, which lasts from its arrival here to its outcome."""
        tracing = self._telemetry.tracing
        assert tracing is not None
        facts = {"store": request.store.name, "key": request.key, "rows": len(request.rows)}
        span = tracing.start("config.commit", request.traceparent, facts)
        return _Waiting(replace(request, traceparent=tracing.traceparent(span)), span)

    def _fits(self, request: WriteRequest) -> bool:
        return len(self._waiting) < MAX_WAITING_WRITES and self._waiting_bytes + request.bytes <= MAX_WAITING_BYTES

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        rows = size = 0
        while self._waiting:
            request = self._waiting[0].request
            if group and (rows + len(request.rows) > MAX_GROUP_ROWS or size + request.bytes > MAX_GROUP_BYTES):
                break
            waiting = self._waiting.popleft()
            self._waiting_bytes -= request.bytes
            if not waiting.outcome.done():  # cancelled otherwise
                group.append(waiting)
                rows, size = rows + len(request.rows), size + request.bytes
            elif waiting.span is not None:
                waiting.span.end()
        self._freed.set()
        return group

    async def _commit(self, group: list[_Waiting]) -> None:
        outcomes: list[WriteOutcome | RingcastError]
        began_s = time.perf_counter()
        for waiting in group:
            if waiting.span is not None:
                waiting.span.add_event("transaction", {"requests": len(group)})
        try:
            written = await self._repository.write([waiting.request for waiting in group], int(time.time() * 1000))
        except RingcastError as error:
            outcomes = [error] * len(group)
        except Exception as error:
            log.exception("a write of %d requests failed", len(group))
            outcomes = [InternalError(f"the write failed: {type(error).__name__}")] * len(group)
        else:
            outcomes = written.outcomes
            if written.events:
                self._committed(written.events)
        self._measures.write_group_size.observe(len(group))
        self._measures.transaction_duration.observe(time.perf_counter() - began_s)
        for waiting, outcome in zip(group, outcomes, strict=True):
            self._measure(waiting, outcome)
            _settle(waiting, outcome)

    def _measure(self, waiting: _Waiting, outcome: WriteOutcome | RingcastError) -> None:
        """Counts a request that has ended, and ends its span."""
        request, refusal = waiting.request, None
        if isinstance(outcome, RingcastError):
            rows, code, refusal = 0, str(outcome.code), str(outcome)
        else:
            rows, code = outcome.written + outcome.deleted, "ok"
        self._measures.wrote(request.store.name, request.key, rows, code, time.perf_counter() - waiting.since_s)
        if waiting.span is not None:
            end_span(waiting.span, refusal)


def _settle(waiting: _Waiting, outcome: WriteOutcome | RingcastError) -> None:
    if isinstance(outcome, RingcastError) and waiting.request.chain is not None:
        waiting.request.chain.failed = True
    if waiting.outcome.done():
        return
    if isinstance(outcome, RingcastError):
        waiting.outcome.set_exception(outcome)
        waiting.outcome.exception()  # looked at: whoever asked may be gone, which is nothing to complain of
    else:
        waiting.outcome.set_result(outcome)
