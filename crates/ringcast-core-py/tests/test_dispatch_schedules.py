"""Ten thousand random schedules through the border, judged by the four rules that everything rests on.

The model in ``test_dispatch.py`` compares every single decision of some schedules; this one looks at many, at what a
caller relies on: one in flight a key and in order, no capacity exceeded, no cursor past an unsettled message, and an
account of every message. The seed of a failure replays it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

from ringcast_core import Action, Dispatcher

SCHEDULES = 10_000
STEPS = 40
KEYS = ("a1", "a2", "b1", "b2", "日1")
NAMES = ("one", "two", "three", "four")
FILTERS = ((), (), (), ("a*",), ("?1",), ("nothing",))
POLICIES = ("drop", "dead-letter", "block")


class Schedule:
    """One dispatcher, what is done to it, and what must be true after each call."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.window = chance.randint(1, 12)
        self.make(
            window=self.window,
            ack_timeout_ms=chance.randint(50, 3000),
            max_tries=chance.randint(1, 3),
            max_deliveries=6,
            backoff_first_ms=10,
            backoff_most_ms=200,
            poison=chance.choice(POLICIES),
            orphan_hold_ms=chance.randint(1, 2000),
        )
        self.now_ms = 0
        self.last = 0
        self.key_of: dict[int, str] = {}
        """Unsettled messages."""
        self.flight: dict[int, tuple[int, int]] = {}
        """By offset: consumer and attempt."""
        self.held: Counter[int] = Counter()
        self.capacities: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.delivered: deque[tuple[int, int, int]] = deque(maxlen=16)
        self.poison: dict[int, str] = {}
        self.ends: Counter[str] = Counter()

    def make(self, **conf: Any) -> None:
        """The dispatcher under test."""
        self.dispatcher = Dispatcher(**conf)

    def run(self) -> None:
        """Random steps, then everything is let go, until nothing is unsettled."""
        steps = (self.join, self.offer, self.offer, self.answer, self.answer, self.answer, self.tick, self.part)
        for _ in range(STEPS):
            self.chance.choice(steps)()
            self.decide()
        number, actions = self.dispatcher.join("last", now_ms=self.now_ms, capacity=self.window)
        self.take(number, "last", self.window, actions)
        while self.key_of:
            self.decide()
            for offset, (consumer, attempt) in list(self.flight.items()):
                self.say(consumer, offset, attempt, accept=True)
            due_ms = self.dispatcher.next_deadline_ms
            self.now_ms = max(self.now_ms, due_ms or 0)
            self.do(self.dispatcher.tick(self.now_ms))
            if number not in self.capacities and self.key_of:  # it was silent for too long
                number, actions = self.dispatcher.join("last", now_ms=self.now_ms, capacity=self.window)
                self.take(number, "last", self.window, actions)
        counts = self.dispatcher.counts()
        assert {name: counts[name] for name in ("acked", "dropped", "dead_lettered", "skipped")} == {
            name: self.ends[name] for name in ("acked", "dropped", "dead_lettered", "skipped")
        }
        assert counts["offered"] == self.ends.total() == self.last
        assert self.dispatcher.cursor == self.last

    # ---- steps

    def join(self) -> None:
        name = self.chance.choice(NAMES)
        if name in self.names.values():
            return
        capacity = self.chance.randint(1, 3)
        number, actions = self.dispatcher.join(name, self.chance.choice(FILTERS), now_ms=self.now_ms, capacity=capacity)
        self.take(number, name, capacity, actions)

    def offer(self) -> None:
        count = self.chance.randint(1, 4)
        keys = [self.chance.choice(KEYS) for _ in range(count)]
        room = self.window - len(self.key_of)
        taken, actions = self.dispatcher.offer(range(self.last + 1, self.last + count + 1), keys, self.now_ms)
        assert taken >= min(count, room), "it takes what there is room for"
        for key in keys[:taken]:
            self.last += 1
            self.key_of[self.last] = key
        self.do(actions)
        assert len(self.key_of) <= self.window

    def answer(self) -> None:
        if self.delivered:
            consumer, offset, attempt = self.chance.choice(self.delivered)
            self.say(consumer, offset, attempt, accept=self.chance.random() < 0.7)

    def say(self, consumer: int, offset: int, attempt: int, *, accept: bool) -> None:
        current = self.flight.get(offset) == (consumer, attempt)
        method = self.dispatcher.acknowledge if accept else self.dispatcher.reject
        (counted,), actions = method(consumer, [offset], [attempt], self.now_ms)
        assert counted == current, "an answer counts for the delivery in flight, and for no other"
        if counted:
            self.release(offset)
            if accept:
                self.settle(offset, "acked")
        self.do(actions)

    def tick(self) -> None:
        self.now_ms += self.chance.choice((0, 5, 50, 500, 3100))
        self.do(self.dispatcher.tick(self.now_ms))

    def part(self) -> None:
        if self.capacities:
            number = self.chance.choice(list(self.capacities))
            method = self.dispatcher.evict if self.chance.random() < 0.5 else self.dispatcher.drain
            self.names.pop(number, None)
            self.do(method(number, self.now_ms) or [])

    def decide(self) -> None:
        """Somebody looks after dead letters and blocked messages, sooner or later."""
        for offset, kind in list(self.poison.items()):
            if self.chance.random() < 0.5:
                continue
            del self.poison[offset]
            if kind == "letter":
                actions = self.dispatcher.dead_lettered(offset, self.now_ms)
                self.settle(offset, "dead_lettered")
            elif self.chance.random() < 0.5:
                actions = self.dispatcher.discard(offset, self.now_ms)
                self.settle(offset, "dropped")
            else:
                actions = self.dispatcher.unblock(offset, self.now_ms)
            assert actions is not None
            self.do(actions)

    # ---- what the dispatcher says

    def take(self, number: int, name: str, capacity: int, actions: list[Action]) -> None:
        self.capacities[number], self.names[number] = capacity, name
        self.do(actions)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Action.Deliver(consumer, offset, attempt):
                    self.deliver(consumer, offset, attempt)
                case Action.TimedOut(consumer, offset, attempt):
                    assert self.flight[offset] == (consumer, attempt)
                    self.release(offset)
                case Action.DeadLetter(offset, _, _):
                    self.lost(offset)
                    self.poison[offset] = "letter"
                case Action.Block(offset, _, _):
                    self.lost(offset)
                    self.poison[offset] = "block"
                case Action.Drop(offset, _, _):
                    self.lost(offset)
                    self.settle(offset, "dropped")
                case Action.Skip(offset, _):
                    self.settle(offset, "skipped")
                case Action.Evicted(consumer) | Action.Left(consumer):
                    self.gone(consumer)
                case Action.Advance(cursor):
                    assert cursor < min(self.key_of, default=self.last + 1), "the cursor passes an unsettled message"
        assert self.dispatcher.cursor == min(self.key_of, default=self.last + 1) - 1, "the cursor lags behind"
        assert self.dispatcher.in_flight == len(self.flight)
        assert self.dispatcher.unsettled == len(self.key_of)

    def deliver(self, consumer: int, offset: int, attempt: int) -> None:
        key = self.key_of[offset]
        assert offset not in self.flight
        assert offset not in self.poison
        first = next(each for each in self.key_of if self.key_of[each] == key)
        assert first == offset, "delivered before an earlier message of the key is settled"
        self.flight[offset] = (consumer, attempt)
        self.held[consumer] += 1
        assert self.held[consumer] <= self.capacities[consumer], "capacity exceeded"
        self.delivered.append((consumer, offset, attempt))

    def gone(self, consumer: int) -> None:
        del self.capacities[consumer]
        self.names.pop(consumer, None)
        for offset in [offset for offset, (holder, _) in self.flight.items() if holder == consumer]:
            self.release(offset)  # nothing is settled by that

    def lost(self, offset: int) -> None:
        """It is poison: its delivery has failed, whether that was said before or not."""
        if offset in self.flight:
            self.release(offset)

    def release(self, offset: int) -> None:
        consumer, _ = self.flight.pop(offset)
        self.held[consumer] -= 1

    def settle(self, offset: int, how: str) -> None:
        assert offset not in self.flight
        del self.key_of[offset]
        self.ends[how] += 1


def test_ten_thousand_schedules() -> None:
    ends: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        try:
            schedule.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        ends += schedule.ends
    # Nothing of this is proved by schedules in which it does not happen.
    for how in ("acked", "dropped", "dead_lettered", "skipped"):
        assert ends[how] > SCHEDULES // 5, ends


class EvictionAcknowledges(Schedule):
    """The usual design: what a lost consumer had counts as done with."""

    def part(self) -> None:
        for number in list(self.capacities):
            for offset in [offset for offset, (holder, _) in self.flight.items() if holder == number]:
                self.dispatcher.acknowledge(number, [offset], [self.flight[offset][1]], self.now_ms)
            self.do(self.dispatcher.evict(number, self.now_ms) or [])


def test_a_dispatcher_that_loses_messages_is_found_out() -> None:
    found = 0
    for seed in range(200):
        try:
            EvictionAcknowledges(seed).run()
        except (AssertionError, KeyError):
            found += 1
    assert found > 100
