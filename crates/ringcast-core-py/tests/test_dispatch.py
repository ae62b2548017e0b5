"""Key-shared dispatch, driven by hypothesis against a model that does everything the slow and obvious way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from ringcast_core import Action, Dispatcher, Ring

KEYS = ("a1", "a2", "b1", "b2", "日1")
NAMES = ("one", "two", "three", "four")
FILTERS = ((), ("*",), ("a*",), ("?1",), ("b1", "x*"), ("nothing",))
SETTINGS = st.fixed_dictionaries(
    {
        "window": st.integers(1, 8),
        "consumer_capacity": st.integers(1, 3),
        "ack_timeout_ms": st.integers(1, 5000),
        "max_tries": st.integers(1, 3),
        "max_deliveries": st.integers(3, 6),
        "backoff_first_ms": st.integers(1, 100),
        "backoff_most_ms": st.integers(100, 300),
        "poison": st.sampled_from(["drop", "dead-letter", "block"]),
        "evict_after_ms": st.just(3000),
        "orphan_hold_ms": st.integers(1, 4000),
    }
)


@dataclass
class Message:
    """An unsettled message. State: waiting, flight, backoff, orphan, lettered or blocked."""

    key: str
    state: str = "waiting"
    consumer: int = 0
    due_ms: int = 0
    deliveries: int = 0
    forgiven: int = 0
    failures: int = 0


@dataclass
class Consumer:
    name: str
    filters: tuple[str, ...]
    capacity: int
    seen_ms: int
    draining: bool = False

    def accepts(self, key: str) -> bool:
        return not self.draining and (not self.filters or any(fnmatchcase(key, one) for one in self.filters))


@dataclass
class Model:
    """The rules over plain dictionaries. What it has to say of a call gathers in ``said``."""

    conf: Any
    now_ms: int = 0
    consumers: dict[int, Consumer] = field(default_factory=dict)
    arrived: list[int] = field(default_factory=list)
    messages: dict[int, Message] = field(default_factory=dict)
    said: list[Action] = field(default_factory=list)

    @property
    def cursor(self) -> int:
        first = min(self.messages, default=None)
        return max((offset for offset in self.arrived if first is None or offset < first), default=0)

    def owner(self, key: str) -> int | None:
        names = {one.name: number for number, one in self.consumers.items() if one.accepts(key)}
        return names[Ring(sorted(names)).owner(key)] if names else None

    def held(self, number: int) -> list[int]:
        return [at for at, one in self.messages.items() if one.state == "flight" and one.consumer == number]

    def heads(self) -> Iterator[tuple[int, Message]]:
        """The first message of each key, when it is free to go."""
        seen: set[str] = set()
        for offset in sorted(self.messages):
            message = self.messages[offset]
            if message.key not in seen and message.state in ("waiting", "orphan"):
                yield offset, message
            seen.add(message.key)

    def fill(self) -> None:
        """Skips what nobody wants, then delivers what can be delivered, the oldest first."""
        while any(self.unwanted(offset, message) for offset, message in list(self.heads())):
            pass
        for offset, message in list(self.heads()):
            owner = self.owner(message.key)
            if owner is not None:
                message.state = "waiting"
                if len(self.held(owner)) < self.consumers[owner].capacity:
                    self.deliver(offset, message, owner)

    def unwanted(self, offset: int, message: Message) -> bool:
        """Whether the head was skipped, so that its key has another."""
        if self.owner(message.key) is not None:
            return False
        if all(one.draining for one in self.consumers.values()):
            message.state = "waiting"
        elif message.deliveries == 0:
            self.skip(offset)
            return True
        elif message.state == "waiting":
            message.state, message.due_ms = "orphan", self.now_ms + self.conf["orphan_hold_ms"]
        return False

    def deliver(self, offset: int, message: Message, owner: int) -> None:
        message.state, message.consumer = "flight", owner
        message.due_ms = self.now_ms + self.conf["ack_timeout_ms"]
        message.deliveries += 1
        self.said.append(Action.Deliver(owner, offset, message.deliveries))

    def skip(self, offset: int) -> None:
        self.said.append(Action.Skip(offset, self.messages.pop(offset).deliveries))

    def answered(self, number: int, offset: int, attempt: int) -> Message | None:
        """The message, when the answer is to the delivery in flight."""
        if number in self.consumers:
            self.consumers[number].seen_ms = self.now_ms
        message = self.messages.get(offset)
        current = message and (message.state, message.consumer, message.deliveries)
        return message if current == ("flight", number, attempt) else None

    def fail(self, offset: int, reason: str) -> None:
        message = self.messages[offset]
        message.failures += reason != "evicted"
        spent = message.deliveries - message.forgiven
        if message.failures >= self.conf["max_tries"] or spent >= self.conf["max_deliveries"]:
            self.poison(offset, message, reason)
        elif reason == "evicted":
            message.state = "waiting"
        else:
            wait_ms = min(self.conf["backoff_most_ms"], self.conf["backoff_first_ms"] * 2 ** (message.failures - 1))
            message.state, message.due_ms = "backoff", self.now_ms + wait_ms

    def poison(self, offset: int, message: Message, reason: str) -> None:
        match self.conf["poison"]:
            case "drop":
                self.said.append(Action.Drop(offset, message.deliveries, reason))
                del self.messages[offset]
            case "dead-letter":
                self.said.append(Action.DeadLetter(offset, message.deliveries, reason))
                message.state = "lettered"
            case "block":
                self.said.append(Action.Block(offset, message.deliveries, reason))
                message.state = "blocked"

    def lose(self, number: int) -> None:
        del self.consumers[number]
        self.said.append(Action.Evicted(number))

    def orphaned(self) -> None:
        """Consumers are lost: what they had goes on, and whoever waits may have another owner, or none."""
        for offset in [at for at, one in self.messages.items() if one.state == "flight"]:
            if self.messages[offset].consumer not in self.consumers:
                self.fail(offset, "evicted")
        while any(self.unwanted(offset, message) for offset, message in list(self.heads())):
            pass
        for _, message in self.heads():
            if self.owner(message.key) is not None:
                message.state = "waiting"

    def leave(self) -> None:
        """Whoever is draining and has nothing left is gone."""
        for number in [number for number, one in self.consumers.items() if one.draining and not self.held(number)]:
            del self.consumers[number]
            self.said.append(Action.Left(number))

    def tick(self) -> None:
        silent = [n for n, one in self.consumers.items() if self.now_ms >= one.seen_ms + self.conf["evict_after_ms"]]
        for number in silent:
            self.lose(number)
        if silent:
            self.orphaned()
        for offset, message in sorted(self.messages.items()):
            if message.state not in ("flight", "backoff", "orphan") or message.due_ms > self.now_ms:
                continue
            if message.state == "flight":
                self.said.append(Action.TimedOut(message.consumer, offset, message.deliveries))
                self.fail(offset, "timed_out")
            elif message.state == "orphan":
                self.skip(offset)
            else:
                message.state = "waiting"
        self.leave()
        self.fill()

    def due_ms(self) -> int | None:
        timed = [one.due_ms for one in self.messages.values() if one.state in ("flight", "backoff", "orphan")]
        return min(timed + [one.seen_ms + self.conf["evict_after_ms"] for one in self.consumers.values()], default=None)


class DispatchMachine(RuleBasedStateMachine):
    """Says the same to both, and compares what they say and where they stand."""

    make: Any = Dispatcher
    cursor = 0

    @initialize(conf=SETTINGS)
    def start(self, conf: dict[str, Any]) -> None:
        self.real: Dispatcher = self.make(**conf)
        self.model = Model(conf)
        self.next_offset = 1
        self.delivered: list[tuple[int, int, int]] = [(9, 9, 1)]

    def compare(self, actions: list[Action] | None) -> None:
        assert actions is not None
        before = self.cursor
        if self.model.cursor > before:
            assert actions.pop() == Action.Advance(self.model.cursor)
        assert Counter(map(repr, actions)) == Counter(map(repr, self.model.said))
        self.delivered += [
            (one.consumer, one.offset, one.attempt) for one in actions if isinstance(one, Action.Deliver)
        ]
        self.model.said.clear()
        self.cursor = self.model.cursor
        assert self.real.cursor == self.cursor
        assert self.real.unsettled == len(self.model.messages)
        assert self.real.in_flight == sum(one.state == "flight" for one in self.model.messages.values())
        assert self.real.room == self.model.conf["window"] - len(self.model.messages)
        assert self.real.blocked() == sorted(at for at, one in self.model.messages.items() if one.state == "blocked")
        assert {one.consumer: (one.name, one.in_flight, one.draining) for one in self.real.consumers()} == {
            number: (one.name, len(self.model.held(number)), one.draining)
            for number, one in self.model.consumers.items()
        }
        due_ms, deadline_ms = self.model.due_ms(), self.real.next_deadline_ms
        assert (deadline_ms is None) == (due_ms is None)
        assert due_ms is None or (deadline_ms is not None and deadline_ms <= due_ms)
        counts = self.real.counts()
        ends = sum(counts[name] for name in ("acked", "dropped", "dead_lettered", "skipped"))
        assert counts["offered"] == ends + self.real.unsettled == len(self.model.arrived)

    @rule(name=st.sampled_from(NAMES), filters=st.sampled_from(FILTERS), capacity=st.none() | st.integers(1, 3))
    def join(self, name: str, filters: tuple[str, ...], capacity: int | None) -> None:
        model = self.model
        if any(one.name == name and not one.draining for one in model.consumers.values()):
            with pytest.raises(ValueError, match="must not repeat"):
                self.real.join(name, filters, now_ms=model.now_ms, capacity=capacity)
            return
        number, actions = self.real.join(name, filters, now_ms=model.now_ms, capacity=capacity)
        model.consumers[number] = Consumer(name, filters, capacity or model.conf["consumer_capacity"], model.now_ms)
        model.fill()
        self.compare(actions)

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        number = self.some_consumer(data)
        known = number in self.model.consumers and not self.model.consumers[number].draining
        actions = self.real.drain(number, self.model.now_ms)
        assert (actions is not None) == known
        if known:
            self.model.consumers[number].draining = True
            self.model.leave()
            self.model.fill()
            self.compare(actions)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        number = self.some_consumer(data)
        known = number in self.model.consumers
        actions = self.real.evict(number, self.model.now_ms)
        assert (actions is not None) == known
        if known:
            self.model.lose(number)
            self.model.orphaned()
            self.model.fill()
            self.compare(actions)

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        number = self.some_consumer(data)
        assert self.real.heartbeat(number, self.model.now_ms) == (number in self.model.consumers)
        if number in self.model.consumers:
            self.model.consumers[number].seen_ms = self.model.now_ms

    @rule(batch=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 2)), max_size=6))
    def offer(self, batch: list[tuple[str, int]]) -> None:
        offsets = []
        for _, gap in batch:
            offsets.append(self.next_offset + gap)
            self.next_offset = offsets[-1] + 1
        taken, actions = self.real.offer(offsets, [key for key, _ in batch], self.model.now_ms)
        for offset, (key, _) in list(zip(offsets, batch, strict=True)):
            if len(self.model.messages) == self.model.conf["window"]:
                break
            taken -= 1
            self.model.arrived.append(offset)
            self.model.messages[offset] = Message(key)
            self.model.fill()
        assert taken == 0
        self.compare(actions)

    @rule(data=st.data(), accept=st.booleans())
    def answer(self, data: st.DataObject, accept: bool) -> None:
        answers = data.draw(st.lists(st.sampled_from(self.delivered[-8:]), min_size=1, max_size=4))
        number = answers[0][0]
        method = self.real.acknowledge if accept else self.real.reject
        counted, actions = method(number, [one[1] for one in answers], [one[2] for one in answers], self.model.now_ms)
        for (_, offset, attempt), told in zip(answers, counted, strict=True):
            message = self.model.answered(number, offset, attempt)
            assert told == (message is not None)
            if message is None:
                continue
            if accept:
                del self.model.messages[offset]
            else:
                self.model.fail(offset, "rejected")
            self.model.leave()
            self.model.fill()
        self.compare(actions)

    @rule(later_ms=st.integers(0, 600))
    def tick(self, later_ms: int) -> None:
        self.model.now_ms += later_ms
        actions = self.real.tick(self.model.now_ms)
        self.model.tick()
        self.compare(actions)

    @rule()
    def tick_when_due(self) -> None:
        self.model.now_ms = max(self.model.now_ms, self.real.next_deadline_ms or 0)
        self.tick(0)

    @precondition(lambda self: any(one.state in ("lettered", "blocked") for one in self.model.messages.values()))
    @rule(data=st.data(), again=st.booleans())
    def decide(self, data: st.DataObject, again: bool) -> None:
        poison = [at for at, one in self.model.messages.items() if one.state in ("lettered", "blocked")]
        offset = data.draw(st.sampled_from(poison))
        message = self.model.messages[offset]
        if message.state == "lettered":
            assert self.real.unblock(offset, 0) is None
            actions = self.real.dead_lettered(offset, self.model.now_ms)
        elif again:
            actions = self.real.unblock(offset, self.model.now_ms)
        else:
            actions = self.real.discard(offset, self.model.now_ms)
        if message.state == "blocked" and again:
            message.state, message.failures, message.forgiven = "waiting", 0, message.deliveries
        else:
            del self.model.messages[offset]
        self.model.fill()
        self.compare(actions)

    def some_consumer(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([*self.model.consumers, 999]))


TestDispatch = DispatchMachine.TestCase
TestDispatch.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class EvictionAcknowledges:
    """A dispatcher with the flaw that this one is to be free of."""

    def __init__(self, **conf: Any) -> None:
        self._real = Dispatcher(**conf)
        self._held: set[tuple[int, int, int]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def offer(self, *args: Any) -> Any:
        taken, actions = self._real.offer(*args)
        self._held |= {(one.consumer, one.offset, one.attempt) for one in actions if isinstance(one, Action.Deliver)}
        return taken, actions

    def evict(self, consumer: int, now_ms: int) -> list[Action] | None:
        said: list[Action] = []
        for holder, offset, attempt in self._held:
            if holder == consumer:
                said += self._real.acknowledge(holder, [offset], [attempt], now_ms)[1]
        actions = self._real.evict(consumer, now_ms)
        return None if actions is None else said + actions


class LosingMachine(DispatchMachine):
    make = EvictionAcknowledges


def test_the_model_finds_a_dispatcher_that_loses_what_a_lost_consumer_had() -> None:
    conf = settings(max_examples=2000, stateful_step_count=40, deadline=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(LosingMachine, settings=conf)
