"""The way of one store's events to its stream. Lanes don't wait for each other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import nats.errors
from nats.aio.client import Client
from nats.js.errors import APIError, NoStreamResponseError
from ringcast_wire import EventLog, event_within, limits, names
from ringcast_wire.tracing import end_span

from ringcast_config_service.nats.flights import Flight, Flights
from ringcast_config_service.nats.outgoing import UnpublishableError, is_header_value, shape
from ringcast_config_service.nats.publisher import EventPublisher, PubAck, Stored
from ringcast_config_service.nats.refused import RefusedRecords
from ringcast_config_service.nats.setbacks import Setbacks
from ringcast_config_service.nats.sweep import Sweep, SweepHost
from ringcast_config_service.repository import OutboxRecord, OutboxRepository
from ringcast_config_service.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = EventLog(logging.getLogger(__name__))

WINDOW_BYTES: Final = limits.MIB
"""What a lane has on its way at most: over a slow link, little stands between an event and the others."""
_TICK_S: Final = 1.0
_TOO_LARGE: Final = 10054  # the stream's max_msg_size


class LaneHost(SweepHost, Protocol):
    """What a lane needs of its relay."""

    def admit(self, size: int, *, alone: bool) -> bool:
        """Whether another message may be on its way now; ``alone``: its lane has none."""

    def release(self, size: int) -> None:
        """A message that was admitted is answered, or given up."""

    def stored(self, record: OutboxRecord, ack: PubAck) -> None:
        """The broker has a record: it is deleted from the outbox soon."""

    def is_suspect(self, record_id: int) -> bool:
        """Whether the connection has broken too often while this record was on its way."""

    def missing_stream(self) -> None:
        """The broker has lost a stream."""


class Lane:
    """Publishes a store's events in the order of their commits. What the broker does not take stays in the outbox for a
    later sweep; after a failure one record goes at a time, with a back-off, until one is taken.

    A record goes from the queue (just committed) or the page of a sweep to the flights, and from there to the host
    (stored), to the refused ones, or back to the outbox, where it was all the time.
    """

    def __init__(
        self,
        store: str,
        host: LaneHost,
        repository: OutboxRepository,
        nc: Client,
        publisher: EventPublisher,
        telemetry: Telemetry,
        batch: int,
    ) -> None:
        self.store = store
        self.leftover = False
        """Whether this instance has left records of the store in the outbox."""
        self.idle_since = 0.0
        self.wake = asyncio.Event()
        self._host = host
        self._nc = nc
        self._publisher = publisher
        self._telemetry = telemetry
        self._measures = telemetry.measures
        self._batch = batch
        self._queue: deque[OutboxRecord] = deque()
        self._queued_bytes = 0
        self._sweep = Sweep(store, host, repository)
        self._flights = Flights(_now)
        self._bare: set[int] = set()
        """Records that the stream found too large with their changes."""
        self._refused = RefusedRecords(store, repository, host.in_memory, self._bare, telemetry.measures)
        self._setbacks = Setbacks(store, telemetry.measures)
        self._fresh_turn = True

    @property
    def busy(self) -> bool:
        """Whether there is something in memory to do."""
        return bool(self._queue or self._sweep.page or self._flights or self._refused or self._sweep.active)

    @property
    def queued(self) -> tuple[int, int]:
        """How many events wait that were just committed, and their bytes."""
        return len(self._queue), self._queued_bytes

    def take(self, events: Sequence[OutboxRecord], size: int) -> None:
        """Queues what was just committed; while the stream takes no events, it is left to a sweep."""
        if self._setbacks:
            self.leftover = True
            return
        self._queue.extend(events)
        self._queued_bytes += size
        self._host.in_memory.update(event.id for event in events)
        self.wake.set()

    def begin_sweep(self, upto: int) -> None:
        """Publishes what is in the outbox with ids up to ``upto`` and not in memory; not too soon after a failure."""
        if self._sweep.begin(upto):
            self.leftover = False
            self.wake.set()

    def settle(self) -> None:
        """Nothing of the store is in the outbox any more."""
        self.leftover = False
        self._bare.clear()
        self._setbacks.over()

    def in_flight(self) -> list[int]:
        """The records on their way."""
        return self._flights.ids()

    def retry_now(self) -> None:
        """The broker is back, or a caller waits: what failed is tried again at once."""
        self._setbacks.retry_now()
        self._sweep.retry_now()
        self.wake.set()

    async def run(self) -> None:
        """Publishes for as long as it is not cancelled; nothing that fails ends it."""
        this = asyncio.current_task()
        while True:
            if this is not None and this.cancelling():  # which the NATS client can swallow (wait_for, Python 3.11)
                raise asyncio.CancelledError
            self.wake.clear()
            try:
                await self._step()
            except Exception:
                log.error("relay.failed", store=self.store, exc_info=True)
                self._setbacks.back_off()
            await self._wait()

    async def _step(self) -> None:
        if not self._nc.is_connected:
            self._leave_all()
            return
        self._flights.give_up_overdue(self._publisher, 2 * _TICK_S)
        await self._refused.write()
        if self._setbacks.wait_s:
            return
        while (record := await self._next()) is not None and await self._send(record):
            pass

    async def _wait(self) -> None:
        if self.busy:
            self.idle_since = 0.0
            delay = min(_TICK_S, self._setbacks.wait_s or _TICK_S)
            await event_within(self.wake, delay)
        else:
            self.idle_since = self.idle_since or _now()
            await self.wake.wait()

    # ---- which record is next

    async def _next(self) -> OutboxRecord | None:
        """The next record to send, if one more may be on its way now. Fresh ones and those of a sweep take turns."""
        if not self._has_room:
            return None
        page = self._sweep.page
        if self._sweep.active and not page:
            await self._read_page()
        source = self._queue if self._queue and (self._fresh_turn or not page) else page
        if not source or not self._has_room:
            return None
        size = len(source[0].payload)
        if not self._host.admit(size, alone=not self._flights):
            return None
        self._fresh_turn = source is not self._queue
        record = source.popleft()
        if source is self._queue:
            self._queued_bytes -= size
        return record

    @property
    def _has_room(self) -> bool:
        if self._setbacks:
            return not self._flights
        return len(self._flights) < self._batch and self._flights.bytes < WINDOW_BYTES

    async def _read_page(self) -> None:
        if not await self._sweep.read_page(1 if self._setbacks else self._batch):
            self.leftover = True
        elif self._sweep.active and not self._sweep.page:
            self.wake.set()  # all in memory: the next page, after other tasks that have work

    # ---- sending

    async def _send(self, record: OutboxRecord) -> bool:
        """Sends one record; whether the next may follow."""
        size = len(record.payload)
        try:
            headers = {names.HEADER_MSG_ID: record.msg_id}
            span = _start_span(self._telemetry, record, headers)
            message = shape(record, headers, self._nc.max_payload, bare=record.id in self._bare)
        except UnpublishableError as error:
            self._host.release(size)
            self._refused.add(record, str(error))
            self.wake.set()
            return True
        try:
            sent = await self._publisher.send(record.subject, message.payload, headers)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            self._host.release(size)
            self._failed(record, "unsent", error)
            return False
        except BaseException:
            self._host.release(size)
            self._leave(record)
            raise
        self._flights.add(record, message, sent)
        if span is not None:
            sent.stored.add_done_callback(partial(_end_span, span))
        sent.stored.add_done_callback(partial(self._answered, record))
        return True

    # ---- answers

    def _answered(self, record: OutboxRecord, stored: Stored) -> None:
        flight = self._flights.remove(record)
        self._host.release(len(record.payload))
        self.wake.set()
        if stored.cancelled():
            if self._host.is_suspect(record.id):
                self._refused.add(record, "the server ended the connection each time that it was sent")
            else:
                self._failed(record, "unacknowledged", None)
            return
        error = stored.exception()
        if error is None:
            self._bare.discard(record.id)
            self._measures.events_published += 1
            self._host.stored(record, stored.result())
            self._setbacks.succeeded()
        elif isinstance(error, APIError) and error.err_code == _TOO_LARGE:
            self._shorten(flight, error)
        else:
            if isinstance(error, NoStreamResponseError):
                self._host.missing_stream()
            self._failed(record, "refused", error)

    def _shorten(self, flight: Flight, error: APIError) -> None:
        """The stream takes no message of that size: the event goes without its changes, or not at all."""
        if flight.message.bare:
            self._refused.add(flight.record, str(error))
        else:
            self._bare.add(flight.record.id)
            self._sweep.page.appendleft(flight.record)

    def _failed(self, record: OutboxRecord, reason: str, error: BaseException | None) -> None:
        self._setbacks.failed(record, reason, error)
        self._leave(record)
        self._sweep.delay()

    def _leave(self, record: OutboxRecord) -> None:
        """Leaves a record to the next sweep."""
        self._host.in_memory.discard(record.id)
        self.leftover = True

    def _leave_all(self) -> None:
        """Without a connection nothing is kept in memory: what was sent may be lost, and the outbox has it."""
        for record in (*self._queue, *self._sweep.page):
            self._leave(record)
        self._queue.clear()
        self._sweep.page.clear()
        self._queued_bytes = 0
        if self._sweep.active:
            self._sweep.end()
            self.leftover = True


def _start_span(telemetry: Telemetry, record: OutboxRecord, headers: dict[str, str]) -> Span | None:
    """The publish as a span of the trace that the write began, however long ago and in whichever process."""
    if record.traceparent is None or not is_header_value(record.traceparent):
        return None
    headers[names.HEADER_TRACE] = record.traceparent
    tracing = telemetry.tracing
    if tracing is None:
        return None
    span = tracing.start("config.publish", record.traceparent, {"subject": record.subject}, kind="PRODUCER")
    headers.update(tracing.headers(span))
    return span


def _end_span(span: Span, future: Stored) -> None:
    if future.cancelled():
        end_span(span, "not acknowledged")
    else:
        error = future.exception()
        end_span(span, None if error is None else str(error))


def _now() -> float:
    return asyncio.get_running_loop().time()
