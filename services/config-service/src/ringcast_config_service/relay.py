"""Publishes what waits in the outbox, and forgets it only when the broker has it.

A record is written in the transaction of its rows, so a crash anywhere delays an event and cannot lose one. What is
published twice has the same ``Nats-Msg-Id`` and is stored once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import NoStreamResponseError
from ringcast_wire import RingcastError, decode_event, encode, names
from ringcast_wire.tracing import end_span

from ringcast_config_service.provision import Provisioner
from ringcast_config_service.repository import OutboxBatch, OutboxRecord, Repository
from ringcast_config_service.telemetry import Telemetry

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = logging.getLogger(__name__)

_ACK_TIMEOUT_S = 5.0
_FIRST_DELAY_S = 0.05
_MAX_DELAY_S = 5.0


class Relay:
    """One task of an instance. :meth:`wake` is called after each commit; the poll finds what a crash left behind.

    Records go out in the order of their ids, so events of a partition are in order as long as one relay is at work.
    """

    def __init__(
        self,
        repository: Repository,
        nc: Client,
        js: JetStreamContext,
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
        self._js = js
        self._provisioner = provisioner
        self._batch = batch
        self._poll_s = poll_s
        self._wake = asyncio.Event()
        self._retry = asyncio.Event()
        self._broken = asyncio.Event()
        self._clean_passes = 0
        self._passing = False
        self._passed = asyncio.Condition()

    def wake(self) -> None:
        """There is something to publish."""
        self._wake.set()

    def disconnected(self) -> None:
        """The connection broke: acknowledgements that are still awaited can't come any more."""
        self._broken.set()

    def reconnected(self) -> None:
        """The broker is back: no need to wait for the next try."""
        self._retry.set()

    async def run(self) -> None:
        """Publishes for as long as it is not cancelled; nothing that fails ends it."""
        failures = 0
        while True:
            await _wait(self._wake, self._poll_s)
            self._wake.clear()
            self._retry.clear()
            done = await self._try_pass()
            failures = 0 if done else failures + 1
            if not done:
                # Full jitter: instances that lost the same broker don't return to it together.
                ceiling = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** min(failures, 10))
                await _wait(self._retry, random.uniform(0, ceiling))  # noqa: S311

    async def flush(self) -> None:
        """Returns once a pass that began after this call has found nothing left to publish."""
        async with self._passed:
            target = self._clean_passes + 1 + self._passing
            self._wake.set()
            await self._passed.wait_for(lambda: self._clean_passes >= target)

    async def _try_pass(self) -> bool:
        """One way through the outbox; whether everything in it was published."""
        self._passing = True
        try:
            done = self._nc.is_connected and await self._pass()
        except RingcastError as error:
            log.warning("the outbox can't be read now: %s", error)
            return False
        except Exception:
            log.exception("the relay failed; it goes on")
            return False
        finally:
            self._passing = False
        if done:
            async with self._passed:
                self._clean_passes += 1
                self._passed.notify_all()
        return done

    async def _pass(self) -> bool:
        """Goes through all records once. One that fails does not keep those behind it waiting."""
        after, failed = 0, 0
        while True:
            async with self._repository.outbox(after, self._batch) as batch:
                if not batch.records:
                    return failed == 0
                failed += await self._publish_batch(batch)
                after = batch.records[-1].id
                if len(batch.records) < self._batch:
                    return failed == 0

    async def _publish_batch(self, batch: OutboxBatch) -> int:
        """Publishes records and deletes those that the broker has; returns how many it does not have."""
        acknowledged = await self._publish(batch.records)
        if acknowledged:
            await batch.delete(acknowledged)
        return len(batch.records) - len(acknowledged)

    async def _publish(self, records: Sequence[OutboxRecord]) -> list[int]:
        self._broken.clear()
        waiting: list[tuple[OutboxRecord, asyncio.Future[PubAck]]] = []
        try:
            for record in records:
                waiting.append((record, await self._send(record)))  # noqa: PERF401  # what was sent counts
        except (nats.errors.Error, TimeoutError, OSError) as error:
            self._measures.publish_failures["unsent"] += len(records) - len(waiting)
            log.warning("publishing stopped after %d of %d events: %s", len(waiting), len(records), error)
        if not waiting:
            return []
        futures = [future for _, future in waiting]
        acknowledged = asyncio.create_task(_all_done(futures, _ACK_TIMEOUT_S))
        broken = asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait((acknowledged, broken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            acknowledged.cancel()
            broken.cancel()
            for future in futures:
                future.cancel()  # which leaves those that are done as they are
        stored = [record.id for record, future in waiting if self._is_stored(record, future)]
        self._measures.events_published += len(stored)
        return stored

    async def _send(self, record: OutboxRecord) -> asyncio.Future[PubAck]:
        payload = record.payload
        if len(payload) > self._nc.max_payload:
            payload = _without_changes(payload)
        headers = {names.HEADER_MSG_ID: record.msg_id}
        span = None
        if record.traceparent is not None:
            headers[names.HEADER_TRACE] = record.traceparent
            span = self._start_span(record, headers)
        future = await self._js.publish_async(record.subject, payload, headers=headers)
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

    def _is_stored(self, record: OutboxRecord, future: asyncio.Future[PubAck]) -> bool:
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


def _end_span(span: Span, future: asyncio.Future[PubAck]) -> None:
    if future.cancelled():
        end_span(span, "not acknowledged")
    else:
        error = future.exception()
        end_span(span, None if error is None else str(error))


async def _all_done(futures: Sequence[asyncio.Future[PubAck]], timeout_s: float) -> None:
    """Returns when every future is done, however it ended, or the time is over."""
    await asyncio.wait(futures, timeout=timeout_s)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Returns when the event is set or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _without_changes(payload: bytes) -> bytes:
    """The same event with nothing but its revisions, for a broker with a small payload limit."""
    event = decode_event(payload)
    return encode(type(event)(event.wire_version, event.prev, event.rev, event.committed_at_ms, None))
