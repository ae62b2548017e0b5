"""No more events are taken in than the handler applies in good time; a model of handler and broker, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from ringcast._protocol.actions import Ack, Announce, Apply, FetchPartition, MissedEvents
from ringcast._protocol.anti_entropy import HELD_BACK_S
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.pace import Pace
from ringcast._worker.demand import MOST_AT_ONCE
from ringcast_wire import Change, Event, PartitionRows

PARTITIONS = 8
PARALLEL = 16
ACK_WAIT_S = 30.0
MOST = 4_096
LEAST = 128
"""Eight times ``PARALLEL``."""
_TELL_S = 0.1


@dataclass
class Model:
    """A machine, a handler that takes ``call_s()`` seconds, and a broker with a backlog of events of one change."""

    call_s: Callable[[], float]
    pace: Pace = field(default_factory=lambda: Pace.of(PARALLEL, MOST, ACK_WAIT_S))
    now: float = 0.0
    backlog: int = 0
    requests: list[int] = field(default_factory=list)
    longest_held_s: float = 0.0
    most_held: int = 0
    applied: int = 0
    unheard: int = 0

    def __post_init__(self) -> None:
        self.machine = KeyMachine(
            "s", "k", full=False, partition_count=PARTITIONS, random=Random(1).random, pace=self.pace
        )
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._revs = [0] * PARTITIONS
        self._written = 0
        self._came: dict[str, float] = {}
        self.machine.assign(frozenset(range(PARTITIONS)))
        self.machine.filters_ready(range(PARTITIONS), self.now)
        self._poll()
        assert self.machine.ready

    def run(self, until: Callable[[], bool]) -> None:
        """Lets time go on."""
        while not until():
            while self.backlog and self.machine.handover.room:
                self._deliver(min(self.machine.handover.room, self.backlog, MOST_AT_ONCE))
            wake_at = self.machine.wake_at
            if wake_at is not None and (not self._due or wake_at < self._due[0][0]):
                self.now = max(self.now, wake_at)
            elif self._due:
                self.now, _, step = heapq.heappop(self._due)
                step()
            else:
                assert not self.backlog, "nothing happens any more"
                return
            self._poll()

    def drain(self) -> float:
        """Until all is applied; returns how long that took."""
        began, goal = self.now, self.applied + self.backlog + len(self._came)
        self.run(lambda: self.applied == goal)
        return self.now - began

    def _deliver(self, count: int) -> None:
        self.requests.append(count)
        self.backlog -= count
        for _ in range(count):
            partition, self._written = self._written % PARTITIONS, self._written + 1
            rev = self._revs[partition] = self._revs[partition] + 1
            token = f"{partition} {rev}"
            self._came[token] = self.now
            event = Event(1, rev - 1, rev, 7, [Change(f"row{self._written}", rev, False, "v")])
            self.machine.event(partition, event, token, self.now)
        self.most_held = max(self.most_held, len(self._came))
        self._poll()

    def _poll(self) -> None:
        for action in self.machine.poll(self.now):
            match action:
                case FetchPartition():
                    part = PartitionRows(action.partition, self._revs[action.partition], True, [])
                    self.machine.fetches.partition_reply(action.request, part, self.now)
                    self._poll()
                case Announce():
                    self.machine.handover.done(action.number, self.now)
                    self._poll()
                case Ack():
                    for token in action.tokens:
                        self.longest_held_s = max(self.longest_held_s, self.now - self._came.pop(token))
                        self.applied += 1
                case Apply():
                    self._apply(action)
                case MissedEvents():
                    self.unheard += 1

    def _apply(self, action: Apply) -> None:
        """Each change goes to the call that is free first; what a partition has been through is told now and then."""
        free = [self.now] * PARALLEL
        left: dict[int, float] = {}
        for change in action.changes:
            end = heapq.heappop(free) + self.call_s()
            heapq.heappush(free, end)
            left[change.partition] = max(left.get(change.partition, 0.0), end)
        last = max(free)
        for partition, end in left.items():
            told = self.now + (int((end - self.now) / _TELL_S) + 1) * _TELL_S
            if told < last:
                self._at(told, lambda number=partition: self.machine.handover.partly_done(action.number, [number]))  # type: ignore[misc]
        self._at(last, lambda: self.machine.handover.done(action.number, self.now))

    def _at(self, when: float, step: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._due, (when, self._order, step))


@pytest.mark.parametrize("call_s", [0.02, 0.1, 0.5, 1.8])
def test_what_a_slow_handler_has_is_applied_before_its_acknowledgement_runs_out(call_s: float) -> None:
    model = Model(lambda: call_s, backlog=5_000)
    took_s = model.drain()
    assert model.longest_held_s < ACK_WAIT_S * 3 / 4
    assert model.most_held < max(1.5 * LEAST, 1.2 * ACK_WAIT_S / 2 * PARALLEL / call_s)
    assert took_s < 1.1 * 5_000 * call_s / PARALLEL, "it was kept waiting for events"
    assert not model.unheard


def test_without_a_pace_it_would_not_be() -> None:
    model = Model(lambda: 0.5, backlog=5_000, pace=Pace(least=MOST))
    model.drain()
    assert model.longest_held_s > ACK_WAIT_S


def test_calls_of_uneven_length_too() -> None:
    random = Random(3)
    model = Model(lambda: random.expovariate(2.0), backlog=5_000)
    took_s = model.drain()
    assert model.longest_held_s < ACK_WAIT_S
    assert took_s < 1.3 * 5_000 * 0.5 / PARALLEL


def test_a_handler_that_is_slower_still_has_the_least() -> None:
    model = Model(lambda: 10.0, backlog=2_000)
    took_s = model.drain()
    assert model.most_held == LEAST
    assert took_s < 1.1 * 2_000 * 10.0 / PARALLEL


def test_a_fast_handler_gets_as_much_as_one_request_may_bring() -> None:
    model = Model(lambda: 0.0001, backlog=50_000)
    model.drain()
    assert model.requests[0] == LEAST
    assert set(model.requests[3:-1]) == {MOST_AT_ONCE}


def test_one_that_becomes_slow_is_soon_given_less() -> None:
    call_s = [0.0001]
    model = Model(lambda: call_s[0], backlog=10_000)
    model.drain()
    assert model.pace.limit == MOST
    model.now += 3_600.0
    call_s[0] = 0.5
    model.backlog = 10_000
    model.run(lambda: model.pace.limit < 1_000)
    before = set(model._came)
    model.run(lambda: before.isdisjoint(model._came))
    model.longest_held_s = 0.0
    model.drain()
    assert model.longest_held_s < ACK_WAIT_S * 3 / 4


def test_one_that_becomes_fast_is_given_more_at_once() -> None:
    call_s = [2.0]
    model = Model(lambda: call_s[0], backlog=2_000)
    model.run(lambda: model.applied > 1_000)
    assert model.pace.limit == LEAST
    call_s[0] = 0.0001
    model.backlog += 50_000
    at = model.now
    model.run(lambda: model.pace.limit == MOST)
    assert model.now - at < 3 * 2.0 * LEAST / PARALLEL, "no longer than the slow calls that had begun took"


def test_a_few_events_at_a_time_leave_room_for_many() -> None:
    """The time in which nothing waits says nothing of the handler."""
    model = Model(lambda: 0.05)
    for _ in range(200):
        model.backlog = 1
        model.drain()
        model.now += 60.0
    assert model.pace.limit > 1.5 * LEAST


def test_events_that_wait_at_the_broker_are_not_taken_for_lost() -> None:
    model = Model(lambda: 0.2, backlog=5_000)
    model.run(lambda: len(model.requests) > 1)
    fetches = model.machine.stats.fetches
    began = model.now
    while model.now < began + HELD_BACK_S - 1.0:
        asked = model.machine.known_revisions()
        model.machine.compare_heads(asked, [5_000 // PARTITIONS] * PARTITIONS, model.now)
        at = model.now
        model.run(lambda: model.now > at + 1.0)  # noqa: B023
    assert (model.unheard, model.machine.stats.fetches) == (0, fetches)
    model.run(lambda: model.machine.stats.fetches > fetches)
    assert model.now < began + HELD_BACK_S + 5.0, "those that take long are fetched"
    assert not model.unheard


def test_events_that_wait_for_a_fetch_leave_room_for_those_of_other_partitions() -> None:
    model = Model(lambda: 0.1)
    model.now = 1.0
    for number in range(200):
        model.machine.event(
            0, Event(1, 10 + number, 11 + number, 7, [Change("r", 11 + number, False, "v")]), f"t{number}", 1.0
        )
    assert model.pace.waiting == 0
    assert model.machine.handover.room == model.pace.limit


def test_what_is_known_of_a_handler_goes_with_it() -> None:
    pace = Pace.of(PARALLEL, MOST, ACK_WAIT_S)
    pace.applied(1_000)
    pace.look(0.1)
    assert pace.limit > 1_000
    pace.serve(1)
    assert pace.limit == LEAST // PARALLEL
