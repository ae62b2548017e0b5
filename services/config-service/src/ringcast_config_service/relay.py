"""Publishes events, and forgets them only when the broker has them.

An event is put into the outbox in the transaction of its rows, so a crash anywhere delays it and cannot lose it. What
this instance has committed goes out at once, from memory, and its records are deleted a little later, many at a time.
Passes through the outbox find what was left there: by a crash, a broker that was away, or another instance.
What is published twice has the same ``Nats-Msg-Id`` and is stored once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.js.errors import NoStreamResponseError
from ringcast_wire import RingcastError, decode_event, encode, limits, names
from ringcast_wire.tracing import end_span

from ringcast_config_service.provision import Provisioner
from ringcast_config_service.publisher import EventPublisher, Stored
from ringcast_config_service.repository import OutboxBatch, OutboxRecord, Repository
from ringcast_config_service.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

_Sent: TypeAlias = tuple[OutboxRecord, Stored]
"""An event, and what tells that the broker has it."""

_ACK_TIMEOUT_S: Final = 5.0
_FIRST_DELAY_S: Final = 0.05
_MAX_DELAY_S: Final = 5.0
_DELETE_EVERY_S: Final = 0.1
"""Well below the time between two looks at the outbox, so that what is done with is seldom seen there."""
_BATCHES_UNDERWAY: Final = 4
MAX_QUEUED_EVENTS: Final = 8_192
MAX_QUEUED_BYTES: Final = 32 * limits.MIB


class Relay:
    """One task of an instance. :meth:`committed` is called after each commit with what it put into the outbox.

    Events of this instance go out in the order of their commits. One that the broker did not take, and everything that
    does not fit the queue, is left to the passes through the outbox; those behind it don't wait. A pass takes what an
    earlier look has seen already: what is younger, another instance is about to publish.
    """

    def __init__(
        self,
        repository: Repository,
        nc: Client,
        provisioner: Provisioner,
        *,
        batch: int,
        poll_s: float,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or Telemetry()
        self._measures = self._telemetry.measures
        self._repository = repository
        self._nc = nc
        self._publisher = EventPublisher(nc)
        self._provisioner = provisioner
        self._batch = batch
        self._poll_s = poll_s
        self._queue: deque[OutboxRecord] = deque()
        self._queued_bytes = 0
        self._mine: set[int] = set()
        """Records that no pass needs to take: queued, on their way, or with the broker and not deleted yet."""
        self._stored: list[int] = []
        """Those of them that the broker has."""
        self._left = True
        """Whether this instance, or the one before it, has left records in the outbox."""
        self._seen = 0
        """The highest id that the last pass has seen."""
        self._failures = 0
        self._look_at = 0.0
        self._wake = asyncio.Event()
        self._to_delete = asyncio.Event()
        self._deleting = asyncio.Lock()
        self._underway = asyncio.Semaphore(_BATCHES_UNDERWAY)
        self._looks = 0
        self._clean_look = 0
        """The number of the last look that left nothing in the outbox."""
        self._turned = asyncio.Condition()

    def committed(self, events: Sequence[OutboxRecord]) -> None:
        """There is something to publish."""
        size = sum(len(event.payload) for event in events)
        if len(self._queue) + len(events) > MAX_QUEUED_EVENTS or self._queued_bytes + size > MAX_QUEUED_BYTES:
            self._left = True
        else:
            self._queue.extend(events)
            self._queued_bytes += size
            self._mine.update(event.id for event in events)
        self._wake.set()

    def disconnected(self) -> None:
        """The connection broke: acknowledgements that are still awaited can't come any more."""
        self._publisher.give_up()

    def reconnected(self) -> None:
        """The broker is back: no need to wait for the next try."""
        self._look_at = _now()
        self._wake.set()

    async def run(self) -> None:
        """Publishes for as long as it is not cancelled; nothing that fails ends it."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._delete_now_and_then())
            self._look_at = self._look_at or _now() + self._poll_s  # by then streams that were lost are there again
            this = asyncio.current_task()
            while True:
                if this is not None and this.cancelling():  # which the NATS client can swallow (wait_for, Python 3.11)
                    raise asyncio.CancelledError
                if not self._may_publish:
                    await _wait(self._wake, self._look_at - _now())
                self._wake.clear()
                if _now() >= self._look_at:
                    await self._look()
                if self._may_publish:
                    await self._publish_queued(tasks)
                async with self._turned:
                    self._turned.notify_all()

    async def flush(self) -> None:
        """Returns once nothing is queued, a pass that began after this call has found nothing, and all is deleted."""
        async with self._turned:
            target = self._looks + 1
            self._left, self._look_at = True, _now()
            self._wake.set()
            await self._turned.wait_for(lambda: self._clean_look >= target and self._is_idle)
        await self._delete()

    @property
    def _is_idle(self) -> bool:
        return not self._left and len(self._mine) == len(self._stored)

    # ---- what was just committed

    @property
    def _may_publish(self) -> bool:
        """Whether something is queued, and what an earlier life left is not still to go before it."""
        return bool(self._queue and self._looks)

    async def _publish_queued(self, tasks: asyncio.TaskGroup) -> None:
        """Sends up to a batch, whose acknowledgements are waited for while the next ones are sent."""
        records = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch))]
        self._queued_bytes -= sum(len(record.payload) for record in records)
        if not self._nc.is_connected:
            self._leave(records)
            return
        await self._underway.acquire()
        try:
            waiting = await self._send_all(records)
        except Exception:
            log.exception("the relay failed; it goes on")
            self._underway.release()
            self._leave(records)
            return
        tasks.create_task(self._finish(records, waiting))

    async def _finish(self, records: Sequence[OutboxRecord], waiting: Sequence[_Sent]) -> None:
        stored: list[int] = []
        try:
            stored = await self._acknowledged(waiting)
        finally:
            self._underway.release()
            has = set(stored)
            self._leave([record for record in records if record.id not in has])
            if stored:
                self._stored += stored
                self._to_delete.set()
            self._wake.set()

    def _leave(self, records: Sequence[OutboxRecord]) -> None:
        """Leaves records to the passes."""
        if records:
            self._mine.difference_update(record.id for record in records)
            self._left = True

    async def _delete_now_and_then(self) -> None:
        while True:
            await self._to_delete.wait()
            await asyncio.sleep(_DELETE_EVERY_S)
            self._to_delete.clear()
            await self._delete()

    async def _delete(self) -> None:
        """Takes what the broker has out of the outbox."""
        async with self._deleting:
            while ids := self._stored[: self._batch]:
                try:
                    await self._repository.delete_events(ids)
                except Exception as error:  # noqa: BLE001  # whatever it was, it is tried again
                    log.warning("events that are published stay in the outbox for now: %s", error)
                    self._to_delete.set()
                    return
                del self._stored[: len(ids)]
                self._mine.difference_update(ids)

    # ---- what was left in the outbox

    async def _look(self) -> None:
        """One way through the outbox, and when the next is due."""
        left, self._left = self._left, False
        self._looks += 1
        done = False
        try:
            done = self._nc.is_connected and await self._pass(everything=left)
        except RingcastError as error:
            log.warning("the outbox can't be read now: %s", error)
        except Exception:
            log.exception("the relay failed; it goes on")
        if done:
            self._failures = 0
            self._look_at = _now() + self._poll_s
            if left:
                self._clean_look = self._looks
        else:
            self._left |= left
            self._failures += 1
            # Full jitter: instances that lost the same broker don't return to it together.
            ceiling = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** min(self._failures, 10))
            self._look_at = _now() + random.uniform(0, ceiling)  # noqa: S311

    async def _pass(self, *, everything: bool) -> bool:
        """Goes through all records once. One that fails does not keep those behind it waiting."""
        after, failed = 0, 0
        seen_before = self._seen
        while True:
            async with self._repository.outbox(after, self._batch) as batch:
                if not batch.records:
                    return failed == 0
                failed += await self._publish_batch(batch, None if everything else seen_before)
                self._seen = after = batch.records[-1].id
                if len(batch.records) < self._batch:
                    return failed == 0

    async def _publish_batch(self, batch: OutboxBatch, upto: int | None) -> int:
        """Publishes records and deletes those that the broker has; returns how many it does not have."""
        records = [
            record for record in batch.records if record.id not in self._mine and (upto is None or record.id <= upto)
        ]
        if not records:
            return 0
        stored = await self._acknowledged(await self._send_all(records))
        if stored:
            await batch.delete(stored)
        return len(records) - len(stored)

    # ---- the broker

    async def _send_all(self, records: Sequence[OutboxRecord]) -> list[_Sent]:
        """Sends records in their order until one can't be sent."""
        waiting: list[_Sent] = []
        try:
            for record in records:
                waiting.append((record, await self._send(record)))  # noqa: PERF401  # what was sent counts
        except (nats.errors.Error, TimeoutError, OSError) as error:
            self._measures.publish_failures["unsent"] += len(records) - len(waiting)
            log.warning("publishing stopped after %d of %d events: %s", len(waiting), len(records), error)
        return waiting

    async def _acknowledged(self, waiting: Sequence[_Sent]) -> list[int]:
        """The ids of those that the broker has stored."""
        if not waiting:
            return []
        futures = [future for _, future in waiting]
        try:
            await asyncio.wait(futures, timeout=_ACK_TIMEOUT_S)
        finally:
            for future in futures:
                future.cancel()  # which leaves those that are done as they are
        stored = [record.id for record, future in waiting if self._is_stored(record, future)]
        self._measures.events_published += len(stored)
        return stored

    async def _send(self, record: OutboxRecord) -> Stored:
        payload = record.payload
        if len(payload) > self._nc.max_payload:
            payload = _without_changes(payload)
        headers = {names.HEADER_MSG_ID: record.msg_id}
        span = None
        if record.traceparent is not None:
            headers[names.HEADER_TRACE] = record.traceparent
            span = self._start_span(record, headers)
        future = await self._publisher.send(record.subject, payload, headers)
        if span is not None:
            future.add_done_callback(partial(_end_span, span))
        return future

    def _start_span(self, record: OutboxRecord, headers: dict[str, str]) -> Span | None:
        """The publish as a span of the trace that the write began, however long ago and in whichever process."""
        tracing = self._telemetry.tracing
        if tracing is None:
            return None
        span = tracing.start("config.publish", record.traceparent, {"subject": record.subject}, kind="PRODUCER")
        headers.update(tracing.headers(span))
        return span

    def _is_stored(self, record: OutboxRecord, future: Stored) -> bool:
        if future.cancelled():
            self._measures.publish_failures["unacknowledged"] += 1
            log.warning("subject=%s the broker did not acknowledge an event", record.subject)
            return False
        error = future.exception()
        if error is None:
            return True
        if isinstance(error, NoStreamResponseError):
            self._provisioner.look_again()  # the broker has lost the stream
        self._measures.publish_failures["refused"] += 1
        log.warning("subject=%s the broker refused an event: %s", record.subject, error)
        return False


def _end_span(span: Span, future: Stored) -> None:
    if future.cancelled():
        end_span(span, "not acknowledged")
    else:
        error = future.exception()
        end_span(span, None if error is None else str(error))


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Returns when the event is set or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _without_changes(payload: bytes) -> bytes:
    """The same event with nothing but its revisions, for a broker with a small payload limit."""
    event = decode_event(payload)
    return encode(msgspec.structs.replace(event, changes=None))
