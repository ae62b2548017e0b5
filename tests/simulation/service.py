"""An instance of the config service: writes, the relay, answers to fetches, compaction, provisioning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from ringcast_config_service.nats.outgoing import without_changes
from ringcast_config_service.repository import OutboxRecord, WriteOutcome, WriteRequest
from ringcast_wire import (
    WIRE_VERSION,
    ErrorCode,
    Event,
    FetchReply,
    HeadsReply,
    RingcastError,
    UnavailableError,
    decode_event,
)

from tests.simulation.broker import Broker
from tests.simulation.database import Database
from tests.simulation.engine import Future, Process, Scheduler, Signal, Steps
from tests.simulation.network import TransientError

PROVISION_S: Final = 30.0
RELAY_POLL_S: Final = 0.25
ACK_TIMEOUT_S: Final = 5.0
RELAY_BATCH: Final = 8
"""Far fewer than the service's 1,000, so that paging through the outbox happens."""
QUEUED_EVENTS: Final = 12
"""Far fewer than the service's 8,192, so that some are left to the outbox."""
DELETE_EVERY_S: Final = 0.1

STEPS_THAT_MAY_CRASH: Final = ("commit", "outbox", "published", "answer")

Reply = Callable[[Any], None]
"""Takes an answer to a fetch, or an :class:`ErrorCode`."""


class Service(Process):
    """Mirrors ``App`` of the config service: what happens in which order, and what is tried again when."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        random: Random,
        *,
        broker: Broker,
        database: Database,
        provision: Callable[[], None],
        published: Callable[[str, Event], None],
        locks: bool,
        max_payload: int,
        retention_ms: int,
    ) -> None:
        super().__init__(scheduler, name, random)
        self.link = broker.link(self)
        self.crash_at = ""
        """The step, of ``STEPS_THAT_MAY_CRASH``, at which it dies the next time that it gets there."""
        self._broker = broker
        self._database = database
        self._provision = provision
        self._published = published
        self._locks = locks
        self._max_payload = max_payload
        self._retention_ms = retention_ms
        self._skew_ms = random.randint(-20_000, 20_000)
        self._waiting: list[tuple[WriteRequest, Reply]] = []
        self._arrived = Signal()
        self._wake = Signal()
        self._look_for_streams = Signal()
        self._queue: list[OutboxRecord] = []
        self._mine: set[int] = set()
        self._stored: list[int] = []
        self._to_delete = Signal()
        self._left = True
        self._seen = 0
        self._looks = 0
        self._failures = 0
        self._look_at = 0.0

    def start(self) -> None:
        """Begins all its tasks."""
        self.link.on_back.append(self._reconnected)
        self.soon(self._connect)
        self.spawn(self._writer())
        self._look_at = self.clock() + RELAY_POLL_S
        self.spawn(self._relay())
        self.spawn(self._deleter())
        self.spawn(self._provisioner())
        self.spawn(self._compactor())

    def crash(self) -> None:
        """Ends it; the database lets go of what it had locked."""
        super().crash()
        self._database.release_outbox(self)
        self.link.cut()

    def _reconnected(self) -> None:
        self._look_at = self.clock()  # Relay.reconnected
        self._wake.set()
        self._look_for_streams.set()  # Provisioner.look_again

    def wall_ms(self) -> int:
        """Its wall clock."""
        return 1_700_000_000_000 + int(self.scheduler.now * 1000) + self._skew_ms

    def _connect(self) -> None:
        if not self.link.connect():
            self.after(0.5, self._connect)

    def _dies_at(self, step: str) -> bool:
        if self.crash_at == step:
            self.crash_at = ""
            self.crash()
        return not self.alive

    # ---- writes (GroupWriter.run)

    def write(self, request: WriteRequest, answer: Reply) -> None:
        """Takes a write in; ``answer`` is given the outcome, if anything."""
        self._waiting.append((request, answer))
        self._arrived.set()

    def _writer(self) -> Steps:
        while True:
            yield self._arrived, None
            self._arrived.clear()
            yield self.random.uniform(0.001, 0.01)  # the round trips of a transaction
            group, self._waiting = self._waiting, []
            outcomes: Sequence[WriteOutcome | RingcastError]
            events: list[OutboxRecord] = []
            try:
                outcomes, events = self._database.write([request for request, _ in group], self.wall_ms())
            except RingcastError as error:
                outcomes = [error] * len(group)
            if self._dies_at("commit"):
                return
            if events:
                self._queue_up(events)
            for (_, answer), outcome in zip(group, outcomes, strict=True):
                answer(outcome)

    # ---- the relay (Relay.committed, run, _publish_queued, _finish, _delete, _look, _pass, _publish_batch)

    def _queue_up(self, events: list[OutboxRecord]) -> None:
        if len(self._queue) + len(events) > QUEUED_EVENTS:
            self._left = True
        else:
            self._queue += events
            self._mine.update(event.id for event in events)
        self._wake.set()

    def _relay(self) -> Steps:
        while True:
            if not self._queue or not self._looks:
                yield self._wake, self._look_at
            self._wake.clear()
            if self.clock() >= self._look_at:
                yield from self._look()
            if self._queue and self._looks:
                records, self._queue = self._queue[:RELAY_BATCH], self._queue[RELAY_BATCH:]
                if self.link.connected:
                    self.spawn(self._finish(records))
                    yield self.random.uniform(0.0001, 0.001)  # as long as the sending takes
                else:
                    self._leave(records)

    def _finish(self, records: list[OutboxRecord]) -> Steps:
        if self._dies_at("outbox"):
            return
        stored = yield from self._publish(records)
        if self._dies_at("published"):
            return
        self._leave([record for record in records if record.id not in stored])
        if stored:
            self._stored += stored
            self._to_delete.set()

    def _leave(self, records: list[OutboxRecord]) -> None:
        if records:
            self._mine.difference_update(record.id for record in records)
            self._left = True

    def _deleter(self) -> Steps:
        while True:
            yield self._to_delete, None
            yield DELETE_EVERY_S
            self._to_delete.clear()
            ids = list(self._stored)
            try:
                self._database.delete_outbox(ids)
            except RingcastError:
                self._to_delete.set()
            else:
                del self._stored[: len(ids)]
                self._mine.difference_update(ids)

    def _look(self) -> Steps:
        left, self._left = self._left, False
        self._looks += 1
        done = False
        if self.link.connected:
            try:
                done = yield from self._pass(everything=left)
            except RingcastError:
                done = False
            finally:
                self._database.release_outbox(self)
        if done:
            self._failures = 0
            self._look_at = self.clock() + RELAY_POLL_S
        else:
            self._left |= left
            self._failures += 1
            self._look_at = self.clock() + self.random.uniform(0.0, min(5.0, 0.05 * 2 ** min(self._failures, 10)))

    def _pass(self, *, everything: bool) -> Steps:
        after, failed, seen_before = 0, 0, self._seen
        while True:
            records = self._database.take_outbox(self, after, RELAY_BATCH, lock=self._locks)
            if not records or self._dies_at("outbox"):
                return failed == 0
            yield self.random.uniform(0.0005, 0.003)
            taken = [r for r in records if r.id not in self._mine and (everything or r.id <= seen_before)]
            stored = yield from self._publish(taken)
            if self._dies_at("published"):
                return False
            if stored:
                self._database.delete_outbox(stored)
            self._database.release_outbox(self)
            failed += len(taken) - len(stored)
            self._seen = after = records[-1].id
            if len(records) < RELAY_BATCH:
                return failed == 0

    def _publish(self, records: list[OutboxRecord]) -> Steps:
        """Sends all of them, then waits for the acknowledgements for so long."""
        waiting: list[tuple[int, Future]] = []
        for record in records:
            answer = Future()
            self.link.send(self._store, answer, record, lossy=True)
            waiting.append((record.id, answer))
        until = self.clock() + ACK_TIMEOUT_S
        for _, answer in waiting:
            self.at(until, answer.settle, TransientError("not acknowledged"))
            yield answer
        return [number for number, answer in waiting if answer.value is None]

    def _store(self, answer: Future, record: OutboxRecord) -> None:
        payload = record.payload if len(record.payload) <= self._max_payload else without_changes(record.payload)
        found = None
        try:
            event = decode_event(payload)
            self._broker.events().publish(record.subject, event, payload, record.msg_id)
            self._published(record.subject, event)
        except TransientError as error:
            found = error
            self.run(self._look_for_streams.set, ())  # Provisioner.look_again
        self.link.deliver(answer.settle, found, lossy=True)

    # ---- answers (FetchServer._work, Handlers.fetch)

    def fetch(self, what: str, key: str, words: Any, answer: Reply) -> None:
        """Answers a fetch of a ``partition`` (its number and ``since``), a ``batch``, ``full`` or the ``heads``."""
        self.after(self.random.uniform(0.0005, 0.01), self._read, what, key, words, answer)

    def _read(self, what: str, key: str, words: Any, answer: Reply) -> None:
        database = self._database
        found: Any
        try:
            if what == "partition":
                found = [database.read_partition(key, *words)]
            elif what == "batch":
                found = database.read_rows(key, words)
            elif what == "full":
                found = database.read_full(key)
            else:
                found = HeadsReply(WIRE_VERSION, database.heads(key), database.history, database.live_rows(key))
            if what != "heads":
                found = FetchReply(WIRE_VERSION, found, database.history)
        except RingcastError as error:
            found = error.code
        if not self._dies_at("answer"):
            self.after(self.random.uniform(0.0005, 0.005), answer, found)

    # ---- housekeeping

    def _provisioner(self) -> Steps:
        """Mirrors ``Provisioner.run``."""
        while True:
            self._look_for_streams.clear()
            if self.link.connected:
                with contextlib.suppress(TransientError):
                    yield from self.link.request(self._provision)
            looked = yield self._look_for_streams, self.clock() + PROVISION_S
            if looked:
                yield 0.1

    def _compactor(self) -> Steps:
        """Mirrors ``App._compact``, more often and with a shorter retention."""
        while True:
            yield self.random.uniform(2.0, 12.0)
            with contextlib.suppress(UnavailableError):
                self._database.compact(self.wall_ms() - self._retention_ms)


def code_of(found: Any) -> ErrorCode | None:
    """The error code that an answer to a fetch is, if it is one."""
    return found if isinstance(found, ErrorCode) else None
