"""The durable consumers of a worker: one for all its partitions, and further ones past the filter limit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from ringcast_wire import Backoff, EventLog, UnavailableError, event_before, event_within, field_text, names
from ringcast_wire.metrics import Histogram

from ringcast._bus.bus import TRANSIENT, Bus, Delivery, EventConsumer, RejectedError, translated
from ringcast._bus.pull import PullLoop
from ringcast._bus.refusals import RefusedError
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import lasting
from ringcast._common.measures import ConsumerCounters
from ringcast._protocol.filters import FilterPlan

_FIRST_PAUSE_S: Final = 0.25
_MOST_PAUSE_S: Final = 10.0


class EventDemand(Protocol):
    """How many events may come."""

    async def next(self, consumers: int) -> int:
        """Waits until there is room; returns for how many events one of so many consumers should ask."""


class ConsumerLease(Protocol):
    """The lease that keeps the worker's id, and the names of its consumers with it."""

    @property
    def held(self) -> bool:
        """Whether this process surely holds it."""


class ConsumerObserver(Protocol):
    """What :class:`Consumers` gives events to and reports to. Nothing of it may wait."""

    def deliver(self, messages: Sequence[Delivery], /) -> None:
        """Events have come."""

    def filters_confirmed(self, subjects: frozenset[str], /) -> None:
        """A consumer was changed: the server delivers all these subjects now."""

    def undelivered(self, subjects: frozenset[str], reason: str, /, *, lost: bool) -> None:
        """The updates that were to add these subjects have failed ``update_tries`` times in a row.

        ``lost``: whether the server has no consumer for them any more. Else it delivers what it did before.
        """


class Consumers:
    """Brings the consumers in line with the wanted subjects, and pulls from them.

    Updates are coalesced and at least ``update_interval_s`` apart. A failed one leaves the last good filters in place,
    keeps no other consumer from being updated, and is tried again.
    """

    def __init__(
        self,
        bus: Bus,
        config: WorkerConfig,
        *,
        observer: ConsumerObserver,
        demand: EventDemand,
        lease: ConsumerLease,
        log: EventLog,
    ) -> None:
        self._bus = bus
        self._config = config
        self._stream = names.notify_stream(config.store)
        self._observer = observer
        self._demand = demand
        self._lease = lease
        self._pauses: dict[int, Backoff] = {}
        self._retry_at: dict[int, float] = {}
        self._log = log
        self._plan = FilterPlan()
        self._wanted: dict[str, frozenset[str]] = {}
        self._dirty = asyncio.Event()
        self._retry_requested = asyncio.Event()
        self._loops: dict[int, tuple[PullLoop, asyncio.Task[None]]] = {}
        self._closed = False
        self._begun = False
        """Whether the consumers are this process's, so that there is something to delete in the end."""
        self.counters: dict[str, ConsumerCounters] = {}
        """By the name of the consumer."""
        self.update_duration = Histogram.of("config_consumer_update_duration_seconds")
        self.update_failures = 0
        self.updates_skipped = 0
        bus.on_back(self.retry_now)

    def subject_counts(self) -> dict[str, int]:
        """How many filters the server has confirmed for each consumer, by its name."""
        return {self._name(index): count for index, count in self._plan.counts().items()}

    @property
    def refused(self) -> tuple[str, ...]:
        """The consumers that NATS does not let this user pull from, by name; may be read from any thread."""
        head = self._bus.api(f"CONSUMER.MSG.NEXT.{self._stream}.")
        refused = self._bus.refusals.subjects()
        return tuple(subject.removeprefix(head) for subject in refused if subject.startswith(head))

    def want(self, key: str, subjects: frozenset[str]) -> None:
        """Wants the events of exactly these subjects of a key from now on."""
        self._wanted[key] = subjects
        self._dirty.set()

    def suspect_consumer(self, subject: str) -> None:
        """Updates the filters again: events of this subject do not come, and the consumer may lack it."""
        self._plan.suspect(subject)
        self._dirty.set()

    def retry_now(self) -> None:
        """The connection or the lease is back: an update that waits for another try goes at once."""
        self._retry_requested.set()
        if self._retry_at:
            self._retry_at.clear()
            self._dirty.set()

    async def release(self) -> None:
        """Deletes the consumers, unless none was made.

        Raises:
            UnavailableError: JetStream does not answer.
        """
        if self._begun:
            await self._clear()

    async def run(self) -> None:
        """Keeps the consumers in line until cancelled."""
        backoff = Backoff(random.random, first_s=_FIRST_PAUSE_S, most_s=_MOST_PAUSE_S)
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._until_due()
                    self._dirty.clear()
                    self._retry_requested.clear()
                    try:
                        await self._update(tasks)
                        backoff.reset()
                        await asyncio.sleep(self._config.update_interval_s)
                    except TRANSIENT as error:
                        self._log.warning("consumer.update_failed", error=error)
                        await event_within(self._retry_requested, backoff.next_s())
                        self._dirty.set()
        finally:
            self._loops.clear()

    async def _until_due(self) -> None:
        """Waits until other subjects are wanted, or a consumer that was refused is to be tried again."""
        await event_before(self._dirty, min(self._retry_at.values(), default=None))

    def stop_pulling(self) -> None:
        """Takes no more events in."""
        self._closed = True
        for _, task in self._loops.values():
            task.cancel()

    async def _update(self, tasks: asyncio.TaskGroup) -> None:
        """Updates each consumer that is due; one that is refused does not keep the others from it.

        Raises:
            UnavailableError: the lease may have ended.
            BusError: NATS does not answer.
        """
        if not self._lease.held:  # the consumers may be another process's by now
            raise UnavailableError("the lease may have ended: consumers stay as they are until it is held again")
        if not self._begun:
            await self._clear()  # what a previous life left: its position in the stream means nothing any more
            self._begun = True
        self._plan.want(frozenset[str]().union(*self._wanted.values()))
        due = self._plan.due()
        self.updates_skipped += not due
        now, confirmed = asyncio.get_running_loop().time(), False
        for index in self._retry_at.keys() - {index for index, _ in due}:
            del self._retry_at[index]
        for index, filters in sorted(due, key=lambda one: self._failures(one[0])):
            if now < self._retry_at.get(index, now):
                continue
            if not filters:  # before the consumer goes: its loop would report it missing
                self._pull(tasks, index, wanted=False)
            try:
                await self._update_one(index, filters)
            except (RefusedError, RejectedError) as error:
                self._log.warning("consumer.update_failed", consumer=self._name(index), error=error)
                self._failed(index, filters, error)
            except TRANSIENT as error:
                self._failed(index, filters, error)
                raise
            else:
                self._pauses.pop(index, None)
                self._retry_at.pop(index, None)
                self._pull(tasks, index, wanted=bool(filters))
                self._observer.filters_confirmed(self._plan.confirmed)
                confirmed = True
        if not confirmed:
            self._observer.filters_confirmed(self._plan.confirmed)

    async def _update_one(self, index: int, filters: frozenset[str]) -> None:
        asked_at = asyncio.get_running_loop().time()
        self._plan.update_sent(index, filters)
        if filters:
            await self._bus.put_consumer(self._stream, self._consumer(index, filters))
        else:
            with suppress(RefusedError):  # as in `_clear`
                await self._delete(index)
        self.update_duration.observe(asyncio.get_running_loop().time() - asked_at)
        self._plan.confirm(index, filters)

    def _failures(self, index: int) -> int:
        return self._pauses[index].failures if index in self._pauses else 0

    def _failed(self, index: int, filters: frozenset[str], error: Exception) -> None:
        self.update_failures += 1
        if not self._bus.is_connected:
            return  # the lost connection is logged and counted by the bus
        pause = self._pauses.setdefault(index, Backoff(random.random, first_s=_FIRST_PAUSE_S, most_s=_MOST_PAUSE_S))
        self._retry_at[index] = asyncio.get_running_loop().time() + pause.next_s()
        if pause.failures >= self._config.update_tries:
            reason = f"consumer {self._name(index)}: {field_text(error)}"
            missing = filters - self._plan.confirmed
            self._observer.undelivered(missing, reason, lost=self._plan.is_lost(index))

    def _pull(self, tasks: asyncio.TaskGroup, index: int, *, wanted: bool) -> None:
        found = self._loops.get(index)
        running = found is not None and not found[1].done()
        if found is not None and running:
            if wanted:
                found[0].created()
            else:
                del self._loops[index]
                found[1].cancel()
        elif wanted and not self._closed:
            loop = PullLoop(
                self._bus,
                self._stream,
                self._name(index),
                deliver=self._observer.deliver,
                demand=lambda: self._demand.next(len(self._loops)),
                missing=lambda: self._lost(index),
                counters=self.counters.setdefault(self._name(index), ConsumerCounters()),
                log=self._log,
            )
            what = f"pulls from consumer {self._name(index)}"
            self._loops[index] = loop, tasks.create_task(lasting(what, loop.run), name=f"pull-{index}")

    def _lost(self, index: int) -> None:
        """The server does not have the consumer (any more): create it again. Gaps show in the first events."""
        self._log.warning("consumer.missing", consumer=self._name(index))
        self._plan.lost(index)
        self._dirty.set()

    def _consumer(self, index: int, filters: frozenset[str]) -> EventConsumer:
        return EventConsumer(
            self._name(index),
            sorted(filters),
            ack_wait_s=self._config.ack_wait_s,
            max_ack_pending=self._config.max_ack_pending,
            inactive_threshold_s=self._config.inactive_threshold_s,
        )

    def _name(self, index: int) -> str:
        return names.consumer_name(self._config.consumer_prefix, self._config.worker_id, index)

    async def _clear(self) -> None:
        index = 0
        with translated("deleting old consumers"), suppress(RefusedError):  # then it could not have made one either
            while await self._delete(index):
                index += 1

    async def _delete(self, index: int) -> bool:
        return await self._bus.delete_consumer(self._stream, self._name(index))
