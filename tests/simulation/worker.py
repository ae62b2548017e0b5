"""A worker: the real machines in a shell that takes the steps of the real one, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ringcast._protocol.assignment import Assignment
from ringcast._protocol.filters import FilterPlan
from ringcast._protocol.hearing import share_out
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.pace import Pace
from ringcast._worker.demand import MOST_AT_ONCE
from ringcast_wire import ErrorCode, StoreSettings, names

from tests.simulation.broker import Broker
from tests.simulation.consumers import Consumers
from tests.simulation.coordination import Coordinator, LeaseHolder
from tests.simulation.engine import FatalError, Process, Scheduler, Signal, Steps
from tests.simulation.history import History
from tests.simulation.jetstream import Message
from tests.simulation.network import FETCH_TIMEOUT_S, REQUEST_TIMEOUT_S, ConflictError, TransientError
from tests.simulation.session import Session

DRAIN_TIMEOUT_S: Final = 5.0
RELEASE_TIMEOUT_S: Final = 5.0

Route = Callable[["Worker", str, str, Any, Callable[[Any], None]], None]
"""Brings a fetch to some instance of the config service."""


@dataclass(slots=True)
class WorkerSettings:
    """What of ``WorkerConfig`` matters here, and how the application behaves."""

    store: str
    keys: tuple[str, ...]
    full: bool
    window_s: float = 0.1
    stabilisation_s: float = 0.0
    grace_s: float = 5.0
    heads_s: float = 10.0
    update_interval_s: float = 0.1
    filters: int = 500
    ack_wait_s: float = 30.0
    max_ack_pending: int = 4_096
    parallel: int = 16
    handler_s: float = 0.0
    """The longest that a call of the handler takes."""
    handler_fails: float = 0.0
    """The share of its calls that raise."""


class Worker(Process):
    """Mirrors ``Runtime`` and, for what goes over the connection, ``Connection`` and ``FetchClient``."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        random: Random,
        *,
        worker_id: str,
        settings: WorkerSettings,
        store: StoreSettings,
        broker: Broker,
        route: Route,
        history: History,
    ) -> None:
        super().__init__(scheduler, name, random)
        self.worker_id = worker_id
        self.settings = settings
        self.broker = broker
        self.link = broker.link(self)
        self.wanted = Signal()
        """Whether a key has room for more events (Demand)."""
        self.sessions: dict[str, Session] = {}
        self.coordinator: Coordinator | None = None
        self.consumers = Consumers(self, FilterPlan(settings.filters))
        self.stopping = Signal()
        self.running = False
        self._store = store
        self._route = route
        self._history = history
        self._lease = LeaseHolder(self, self._verify)
        self._fetches: dict[int, Callable[[Any], None]] = {}
        self._numbers = 0
        self._tokens: dict[str, tuple[str, int, int, str, str, int]] = {}

    def note(self, kind: str, *words: Any) -> None:
        """Adds a fact about this worker to the history."""
        self._history.add(self.scheduler.now, kind, self.name, *words)

    # ---- life

    def start(self) -> None:
        """Begins to run."""
        self.spawn(self._run())

    def crash(self) -> None:
        """Ends it at once."""
        if self.alive:
            super().crash()
            self.link.cut()
            self.note("end")

    def failed(self, error: FatalError) -> None:
        """A task has ended with an error, so the task group ends all others; then ``_hold`` releases."""
        self.end_tasks()
        if self.running:
            self.spawn(self._release_all())
        else:
            self.crash()

    def _run(self) -> Steps:
        """Mirrors ``Runtime.run``, ``_take_part``, ``_hold`` and ``_run_tasks``."""
        for _ in range(20):  # connect_timeout_s
            if self.link.connect():
                break
            yield 0.5
        self.link.on_lost.append(self._fail_fetches)
        try:
            yield from self.get(names.meta_bucket(self.settings.store), "mode")  # load_settings
            yield from self._lease.take()
            yield from self.consumers.clear()
        except (TransientError, ConflictError) as error:
            raise FatalError(str(error)) from error
        self.running = True
        for key in self.settings.keys:
            machine = KeyMachine(
                self.settings.store,
                key,
                full=self.settings.full,
                partition_count=self._store.partition_count,
                random=self.random.random,
                window_s=self.settings.window_s,
                max_delete_share=1.0,  # a list of a few rows may well be empty after a restore
                pace=Pace.of(self.settings.parallel, self.settings.max_ack_pending, self.settings.ack_wait_s),
            )
            self.sessions[key] = Session(self, key, machine)
        share_out(self.settings.max_ack_pending, [session.machine.hearing for session in self.sessions.values()])
        self.spawn(self._report_progress())
        self.spawn(self._lease.run())
        self.spawn(self.consumers.run())
        for session in self.sessions.values():
            self.spawn(session.run_heads())
        if not self.settings.full:
            self.coordinator = Coordinator(self, self._store, self._lease)
            self.coordinator.start()
        else:
            for session in self.sessions.values():
                session.assign(frozenset(range(self._store.partition_count)))
        yield self.stopping, None
        if self.coordinator is not None:
            yield from self.coordinator.give_notice()
        yield from self._wind_down()

    def _wind_down(self) -> Steps:
        """Mirrors ``Runtime._wind_down``."""
        self.consumers.stop_pulling()
        until = self.clock() + DRAIN_TIMEOUT_S
        for session in self.sessions.values():
            while session.application.busy and self.clock() < until:
                yield session.idle, until
        self.end_tasks()
        self.spawn(self._release_all())

    def _release_all(self) -> Steps:
        """Mirrors the ``finally`` of ``Runtime._hold``."""
        if self._lease.holds():
            if self.coordinator is not None:
                yield from self._release(self.coordinator.leave())
            yield from self._release(self._lease.release())
            yield from self._release(self.consumers.clear())
        for session in self.sessions.values():  # _revoke_all
            known = sorted(session.machine.announcements.known)
            if known:
                self.note("revoked", session.key, tuple(known))
        self.crash()

    def _release(self, step: Steps) -> Steps:
        """Mirrors ``Runtime._release``: a step that fails, or takes too long, is given up."""
        until = self.clock() + RELEASE_TIMEOUT_S
        try:
            for want in step:
                if self.clock() > until:
                    return
                yield want
        except TransientError:
            pass

    # ---- between the parts (Routes.deliver; Runtime._assign, _confirmed, _verify; Demand)

    def deliver(self, message: Message, consumer: str, sequence: int) -> None:
        """Takes an event in."""
        head, _, number = message.subject.rpartition(".")
        key = head.rpartition(".")[2]
        session = self.sessions.get(key)
        if session is not None:
            token = f"{message.life} {consumer} {sequence}"
            self._tokens[token] = (key, int(number), message.event.rev, message.event.history, consumer, sequence)
            session.event(int(number), message.event, token)

    def assign(self, assignment: Assignment) -> None:
        """Gives a session its partitions."""
        self.sessions[assignment.key].assign(assignment.of(self.worker_id))

    def confirmed(self, subjects: frozenset[str]) -> None:
        """The server delivers these subjects."""
        for session in self.sessions.values():
            session.filters_confirmed(subjects)

    def pressure(self) -> None:
        """Mirrors ``Demand.look``."""
        if any(session.hungry for session in self.sessions.values()):
            self.wanted.set()
        else:
            self.wanted.clear()

    def demand(self, consumers: int) -> int:
        """Mirrors ``Demand.next``."""
        room = sum(session.machine.room for session in self.sessions.values() if session.hungry)
        return max(1, min(room // max(1, consumers), MOST_AT_ONCE))

    def holds(self) -> bool:
        """Whether its lease is surely its own."""
        return self._lease.holds()

    def _verify(self) -> None:
        self.consumers.hurry()
        if self.coordinator is not None:
            self.coordinator.announce()
        for session in self.sessions.values():
            session.verify()

    # ---- the connection (Connection.ack, Bucket, FetchClient)

    def ack(self, tokens: list[str], *, put_off: bool = False) -> None:
        """Acknowledges deliveries, unless the connection is lost: then they come again."""
        deliveries = [self._tokens.pop(token, None) for token in tokens]
        known = [delivery for delivery in deliveries if delivery is not None]
        for key, partition, rev, history, _, _ in known:
            self.note("put_off" if put_off else "ack", key, partition, rev, history)
        if self.link.connected:
            self.link.send(self._acknowledge, [delivery[4:] for delivery in known], lossy=True)

    def _acknowledge(self, deliveries: list[tuple[str, int]]) -> None:
        if self.broker.stream is not None:
            for consumer, sequence in deliveries:
                self.broker.stream.ack(consumer, sequence)

    def _report_progress(self) -> Steps:
        """Mirrors ``report_progress``."""
        before: set[str] = set()
        while True:
            yield self.settings.ack_wait_s / 3
            held = {
                token
                for session in self.sessions.values()
                for partition in session.machine.partitions.values()
                for token in partition.held
            }
            late = sorted(before & held & self._tokens.keys())
            if late and self.link.connected:
                self.link.send(self._in_progress, [self._tokens[token][4:] for token in late], lossy=True)
            before = held

    def _in_progress(self, deliveries: list[tuple[str, int]]) -> None:
        if self.broker.stream is not None:
            for consumer, sequence in deliveries:
                self.broker.stream.in_progress(consumer, sequence)

    def get(self, bucket: str, key: str, within_s: float = REQUEST_TIMEOUT_S) -> Steps:
        """Mirrors ``Bucket.get``."""
        return self.link.request(self.broker.get, bucket, key, within_s=within_s)

    def put(self, bucket: str, key: str, value: bytes | None, last: int, within_s: float = REQUEST_TIMEOUT_S) -> Steps:
        """Mirrors ``Bucket.put`` and, with no value, ``Bucket.delete``."""
        return self.link.request(self.broker.put, bucket, key, value, last, within_s=within_s)

    def fetch(self, what: str, key: str, words: Any, done: Callable[[Any], None]) -> int:
        """Mirrors ``FetchClient.request``; ``done`` is given the answer or an :class:`ErrorCode`, once."""
        self._numbers += 1
        number = self._numbers
        self._fetches[number] = done
        if not self.link.connected:
            self.soon(self._answered, number, ErrorCode.UNAVAILABLE)
            return number
        self._route(self, what, key, words, lambda found: self._answered(number, found))
        self.after(FETCH_TIMEOUT_S, self._answered, number, ErrorCode.UNAVAILABLE)
        return number

    def give_up(self, number: int) -> None:
        """Nobody waits for the answer to a fetch any more."""
        self._fetches.pop(number, None)

    def _answered(self, number: int, found: Any) -> None:
        done = self._fetches.pop(number, None)
        if done is not None:
            done(found)

    def _fail_fetches(self) -> None:
        for number in list(self._fetches):
            self._answered(number, ErrorCode.UNAVAILABLE)
