"""Publishes events, and forgets them only when the broker has them.

An event is put into the outbox in the transaction of its rows, so a crash anywhere delays it and cannot lose it. What
this instance has committed goes out at once, from memory, and its records are deleted a little later, many at a time.
Sweeps through the outbox find what was left there: by a crash, a broker that was away, or another instance. No
transaction is open while something is sent. What is published twice has the same ``Nats-Msg-Id`` and is stored once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from nats.aio.client import Client
from ringcast_wire import EventLog, RingcastError, event_within, limits

from ringcast_config_service.nats.claims import Claims
from ringcast_config_service.nats.lane import Lane
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.nats.published import PublishedRecords
from ringcast_config_service.nats.publisher import EventPublisher, PubAck
from ringcast_config_service.repository import OutboxRecord, OutboxRepository, OutboxSpan
from ringcast_config_service.telemetry import Telemetry

log = EventLog(logging.getLogger(__name__))

_FLYING_BYTES: Final = 8 * limits.MIB
"""What all lanes have on their way, though each may always have one message."""
_UNSENT_BYTES: Final = 2 * limits.MIB
"""What the connection has taken and not carried yet, above which nothing is added: it stands still."""
MAX_QUEUED_EVENTS: Final = 8_192
MAX_QUEUED_BYTES: Final = 32 * limits.MIB
"""What waits in memory, of all stores; one may have half of it. More is left to sweeps."""
_LANE_KEPT_S: Final = 60.0
_FLUSH_EVERY_S: Final = 0.02
_STRIKES: Final = 3
_STRIKE_KEPT_S: Final = 60.0


class Relay:
    """One task of an instance, with a :class:`Lane` for each store. :meth:`committed` is called after each commit with
    what it put into the outbox.

    A sweep publishes what this instance has left, and records that two polls before have seen: newer ones are probably
    being published by their own instance. One instance at a time sweeps a store.
    """

    def __init__(
        self,
        repository: OutboxRepository,
        nc: Client,
        provisioner: Provisioner,
        *,
        batch: int,
        poll_s: float,
        duplicate: Callable[[OutboxRecord, int], None] = lambda _record, _seq: None,
        telemetry: Telemetry,
    ) -> None:
        self._telemetry = telemetry
        self._repository = repository
        self._nc = nc
        self._publisher = EventPublisher(nc)
        self._provisioner = provisioner
        self._duplicate = duplicate
        self._batch = batch
        self._poll_s = poll_s
        self.claims = Claims(repository, uuid.uuid4().hex)
        self.in_memory: set[int] = set()
        self._lanes: dict[str, Lane] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._flying = 0
        self._flying_bytes = 0
        self._strikes: Counter[int] = Counter()
        self._struck_at = 0.0
        self._published = PublishedRecords(repository, self.in_memory, batch)
        self._seen: list[dict[str, int]] = [{}, {}]
        """The highest id of each store that the last two polls have seen, the older first."""
        self._polls = 0
        self._clean_poll = 0
        """The number of the last poll that found nothing."""
        self._flushing = 0
        self._poll_now = asyncio.Event()
        self._polled = asyncio.Condition()

    def committed(self, events: Sequence[OutboxRecord]) -> None:
        """There is something to publish."""
        by_store: dict[str, list[OutboxRecord]] = {}
        for event in events:
            if event.id not in self.in_memory:  # where a sweep has read it before we heard of it
                by_store.setdefault(event.subject.split(".", 3)[2], []).append(event)
        for store, records in by_store.items():
            lane, size = self._lane(store), sum(len(record.payload) for record in records)
            if self._has_room(lane, len(records), size):
                lane.take(records, size)
            else:
                lane.leftover = True

    def _has_room(self, lane: Lane, count: int, size: int) -> bool:
        queued, queued_bytes = lane.queued
        if queued + count > MAX_QUEUED_EVENTS // 2 or queued_bytes + size > MAX_QUEUED_BYTES // 2:
            return False
        others = [other.queued for other in self._lanes.values()]
        return (
            sum(each for each, _ in others) + count <= MAX_QUEUED_EVENTS
            and sum(each for _, each in others) + size <= MAX_QUEUED_BYTES
        )

    def disconnected(self) -> None:
        """The connection broke: acknowledgements that are still awaited can't come any more."""
        self._publisher.give_up()
        self._wake_all()

    def reconnected(self) -> None:
        """The broker is back: no need to wait for the next try."""
        for lane in self._lanes.values():
            lane.retry_now()
        self._poll_now.set()

    def protocol_error(self, text: str) -> None:
        """The server ends the connection over what it was sent: each message on its way may be why.

        From now on one goes at a time, until it is known which of them the server takes.
        """
        suspects = [record_id for lane in self._lanes.values() for record_id in lane.in_flight()]
        log.warning("relay.connection_broken", suspects=len(suspects), error=text)
        self._strikes.update(suspects)
        self._struck_at = _now()

    async def run(self) -> None:
        """Publishes for as long as it is not cancelled; nothing that fails ends it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._published.run())
                await event_within(self._poll_now, self._poll_s)  # by then streams that were lost are there again
                self._tasks = tasks
                this = asyncio.current_task()
                while True:
                    if this is not None and this.cancelling():  # which the NATS client can swallow (Python 3.11)
                        raise asyncio.CancelledError
                    self._poll_now.clear()
                    await self._poll()
                    await event_within(self._poll_now, self._poll_s)
        finally:
            self._tasks = None
            self._running.clear()

    async def flush(self) -> None:
        """Returns once a poll that began after this call has found nothing in the outbox."""
        target = self._polls + 1
        self._flushing += 1
        for lane in self._lanes.values():
            lane.retry_now()
        try:
            while self._clean_poll < target:
                self._poll_now.set()
                async with self._polled:
                    await self._polled.wait()
                await asyncio.sleep(_FLUSH_EVERY_S)
        finally:
            self._flushing -= 1

    async def withdraw(self) -> None:
        """Lets another instance publish what is left, without waiting for the claims of this one to end."""
        await self.claims.release()

    # ---- polls

    async def _poll(self) -> None:
        """Looks at what is in the outbox, and starts sweeps of what should not be there any more."""
        first = self._polls == 0
        self._polls += 1
        number = self._polls
        try:
            if self._flushing:
                await self._published.delete()
            spans = await self._repository.outbox_spans()
        except RingcastError as error:
            log.warning("relay.outbox_unreadable", error=error)
            return
        except Exception:
            log.error("relay.failed", exc_info=True)
            return
        finally:
            self._start_lanes()
        for span in spans:
            try:
                await self._sweep_leftover(span, everything=first or self._flushing > 0)
            except RingcastError as error:
                log.warning("relay.outbox_unreadable", store=span.store, error=error)
        self._seen = [self._seen[1], {span.store: span.newest for span in spans}]
        self._tidy({span.store for span in spans})
        async with self._polled:
            if not spans:
                self._clean_poll = number
            self._polled.notify_all()

    async def _sweep_leftover(self, span: OutboxSpan, *, everything: bool) -> None:
        """Starts a sweep where records are left that their own instance should have published by now."""
        lane = self._lane(span.store)
        older, newer = (seen.get(span.store, 0) for seen in self._seen)
        if not self._nc.is_connected:
            lane.leftover |= everything
        elif everything or lane.leftover:
            lane.begin_sweep(span.newest)
        elif span.oldest in self.in_memory:
            if span.oldest <= newer:  # a slow link: others need not send it too
                await self.claims.claim(span.store)
        elif span.oldest <= older:
            lane.begin_sweep(older)

    def _tidy(self, waiting: set[str]) -> None:
        """Ends lanes that have had nothing to do for a while, as those of stores that are gone."""
        for store, lane in list(self._lanes.items()):
            if store in waiting or lane.busy:
                continue
            lane.settle()
            if lane.idle_since and _now() - lane.idle_since > _LANE_KEPT_S:
                del self._lanes[store]
                self.claims.forget(store)
                if task := self._running.pop(store, None):
                    task.cancel()

    # ---- lanes

    def _lane(self, store: str) -> Lane:
        lane = self._lanes.get(store)
        if lane is None:
            lane = Lane(store, self, self._repository, self._nc, self._publisher, self._telemetry, self._batch)
            self._lanes[store] = lane
            if self._polls:
                self._start_lanes()
        return lane

    def _start_lanes(self) -> None:
        """Before the first poll nothing is sent: what an earlier life has left is found first."""
        if self._tasks is not None:
            for store in self._lanes.keys() - self._running.keys():
                self._running[store] = self._tasks.create_task(self._lanes[store].run(), name=f"relay {store}")

    def _wake_all(self) -> None:
        for lane in self._lanes.values():
            lane.wake.set()

    # ---- what lanes need (LaneHost)

    def admit(self, size: int, *, alone: bool) -> bool:
        if self._nc.pending_data_size > _UNSENT_BYTES:
            return False
        if self._strikes and _now() - self._struck_at > _STRIKE_KEPT_S:
            self._strikes.clear()
        if self._strikes:
            if self._flying:
                return False
        elif not alone and self._flying_bytes + size > _FLYING_BYTES:
            return False
        self._flying += 1
        self._flying_bytes += size
        return True

    def release(self, size: int) -> None:
        was_full = self._flying_bytes + size > _FLYING_BYTES
        self._flying -= 1
        self._flying_bytes -= size
        if was_full or self._strikes:
            self._wake_all()

    def stored(self, record: OutboxRecord, ack: PubAck) -> None:
        if ack.duplicate:
            self._duplicate(record, ack.seq)
        self._strikes.pop(record.id, None)
        self._published.add(record.id)

    def is_suspect(self, record_id: int) -> bool:
        if self._strikes[record_id] < _STRIKES:
            return False
        del self._strikes[record_id]
        return True

    def missing_stream(self) -> None:
        self._provisioner.check_now()


def _now() -> float:
    return asyncio.get_running_loop().time()
