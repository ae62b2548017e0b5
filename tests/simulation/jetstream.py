"""A JetStream stream: bounded per subject, duplicates dropped, durable pull consumers with filters and redelivery."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ringcast_wire import Event

from tests.simulation.engine import Scheduler
from tests.simulation.network import Link, MissingError

DUPLICATE_WINDOW_S: Final = 120.0

BEAT: Final = {"Status": "100", "Description": "Idle Heartbeat"}
_TIME_OUT: Final = {"Status": "408", "Description": "Request Timeout"}
_DELETED: Final = {"Status": "409", "Description": "Consumer Deleted"}
NO_RESPONDERS: Final = {"Status": "503"}


class Message(NamedTuple):
    """A stored event. ``life`` tells a stream from the one before it, whose sequences were the same."""

    life: int
    subject: str
    event: Event
    data: bytes
    msg_id: str


class Pull(NamedTuple):
    """Where a request for messages came from: ``take(message, token)``, ``say(headers)`` for what the server says."""

    link: Link
    take: Callable[[Message, str], None]
    say: Callable[[dict[str, str]], None]
    heartbeat_s: float
    expires_s: float


class Consumer:
    """What the server knows of a durable consumer."""

    def __init__(self, name: str, position: int, backlog: deque[int]) -> None:
        self.name = name
        self.filters: frozenset[str] = frozenset()
        self.position = position
        """The next sequence to look at."""
        self.backlog = backlog
        """What goes first: the last message of each subject at the time it was made, then what comes again."""
        self.unacked: dict[int, float] = {}
        """When each delivered sequence is delivered again."""
        self.tries: dict[int, int] = {}
        """How often each sequence was delivered."""
        self.delivered = 0
        self.pull: Pull | None = None
        self.left = 0
        self.used_at = 0.0
        self.timer = False

    def wants(self, subject: str) -> bool:
        """Whether a filter matches."""
        return subject in self.filters or subject[: subject.rindex(".")] + ".*" in self.filters


class Stream:
    """The events of one store."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        *,
        life: int,
        depth: int,
        ack_wait_s: float,
        max_ack_pending: int,
        inactive_s: float,
    ) -> None:
        self.sequence = 0
        self.muted = False
        """Nothing is delivered."""
        self.messages: dict[int, Message] = {}
        self.consumers: dict[str, Consumer] = {}
        self._scheduler = scheduler
        self._name = name
        self._life = life
        self._depth = depth
        self._ack_wait_s = ack_wait_s
        self._max_ack_pending = max_ack_pending
        self._inactive_s = inactive_s
        self._by_subject: dict[str, deque[int]] = {}
        self._seen: dict[str, tuple[float, int]] = {}

    def publish(self, subject: str, event: Event, data: bytes, msg_id: str) -> tuple[int, bool]:
        """Stores an event, unless it came before; returns its number, and whether it came before."""
        now = self._scheduler.now
        seen = self._seen.get(msg_id)
        if seen is not None and now - seen[0] < DUPLICATE_WINDOW_S:
            return seen[1], True
        self.sequence += 1
        self._seen[msg_id] = now, self.sequence
        self.messages[self.sequence] = Message(self._life, subject, event, data, msg_id)
        held = self._by_subject.setdefault(subject, deque())
        held.append(self.sequence)
        if len(held) > self._depth:
            oldest = held.popleft()
            del self.messages[oldest]
            for consumer in self.consumers.values():
                consumer.unacked.pop(oldest, None)
        for consumer in self.consumers.values():
            self._push(consumer)
        return self.sequence, False

    def last_messages(self) -> list[Message]:
        """The last event of each subject."""
        return [self.messages[held[-1]] for held in self._by_subject.values()]

    def wipe(self) -> None:
        """It is gone with everything in it."""
        self.purge()
        self.consumers.clear()

    def purge(self) -> None:
        """All messages are gone."""
        self.messages.clear()
        self._by_subject.clear()
        for consumer in self.consumers.values():
            consumer.unacked.clear()

    # ---- consumers

    def put_consumer(self, name: str, filters: frozenset[str]) -> None:
        """Makes a consumer that starts with the last message of each subject, or gives one other filters."""
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = Consumer(name, self.sequence + 1, deque())
            consumer.filters = filters
            last = (held[-1] for subject, held in self._by_subject.items() if consumer.wants(subject))
            consumer.backlog.extend(sorted(last))
            self.consumers[name] = consumer
            consumer.used_at = self._scheduler.now
            self._scheduler.after(self._inactive_s, self._check_use, consumer)
        consumer.filters = filters
        self._push(consumer)

    def delete_consumer(self, name: str) -> None:
        """Deletes a consumer.

        Raises:
            MissingError: there is none.
        """
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            raise MissingError(name)
        if consumer.pull is not None:
            consumer.pull.link.deliver(consumer.pull.say, _DELETED, lossy=True)

    def lose_consumer(self, name: str) -> None:
        """A consumer is gone, and whoever pulls from it hears nothing of it."""
        self.consumers.pop(name, None)

    def _check_use(self, consumer: Consumer) -> None:
        """Forgets a consumer that nobody has pulled from for long enough."""
        if self.consumers.get(consumer.name) is not consumer:
            return
        if consumer.pull is not None:
            consumer.used_at = self._scheduler.now
        due = consumer.used_at + self._inactive_s
        if due <= self._scheduler.now:
            del self.consumers[consumer.name]
        else:
            self._scheduler.at(due, self._check_use, consumer)

    # ---- delivery

    def pull(self, name: str, pull: Pull, batch: int) -> None:
        """Takes a request for messages; the one before it ends."""
        consumer = self.consumers.get(name)
        if consumer is None:
            pull.link.deliver(pull.say, NO_RESPONDERS, lossy=True)
            return
        consumer.pull, consumer.left = pull, batch
        consumer.used_at = self._scheduler.now
        self._scheduler.after(pull.heartbeat_s, self._beat, consumer, pull, self._scheduler.now + pull.expires_s)
        self._push(consumer)

    def _beat(self, consumer: Consumer, pull: Pull, until: float) -> None:
        """Heartbeats as long as a request waits; one that has waited long enough ends."""
        if self.consumers.get(consumer.name) is not consumer or consumer.pull is not pull:
            return
        if self._scheduler.now < until:
            pull.link.deliver(pull.say, BEAT)
            self._scheduler.after(pull.heartbeat_s, self._beat, consumer, pull, until)
        else:
            pull.link.deliver(pull.say, _TIME_OUT)
            consumer.pull, consumer.used_at = None, self._scheduler.now

    def ack(self, name: str, sequence: int) -> None:
        """A message need not be delivered again."""
        consumer = self.consumers.get(name)
        if consumer is not None and consumer.unacked.pop(sequence, None) is not None:
            self._push(consumer)

    def in_progress(self, name: str, sequence: int) -> None:
        """A message is being worked on: the wait for its acknowledgement begins again."""
        consumer = self.consumers.get(name)
        if consumer is not None and sequence in consumer.unacked:
            consumer.unacked[sequence] = self._scheduler.now + self._ack_wait_s

    def disconnected(self, link: Link) -> None:
        """Requests that came over a connection end with it."""
        for consumer in self.consumers.values():
            if consumer.pull is not None and consumer.pull.link is link:
                consumer.pull, consumer.used_at = None, self._scheduler.now

    def _push(self, consumer: Consumer) -> None:
        pull = consumer.pull
        while pull is not None and not self.muted and len(consumer.unacked) < self._max_ack_pending:
            sequence = self._next(consumer)
            if sequence is None:
                return
            consumer.unacked[sequence] = self._scheduler.now + self._ack_wait_s
            if not consumer.timer:
                consumer.timer = True
                self._scheduler.after(self._ack_wait_s, self._redeliver, consumer)
            args = (pull.take, self.messages[sequence], self._token(consumer, sequence))
            if pull.link.network.loses():
                continue
            pull.link.deliver(*args)
            if pull.link.network.repeats():
                self._scheduler.after(pull.link.network.random.random(), pull.link.deliver, *args)
            consumer.left -= 1
            if consumer.left == 0:
                consumer.pull = pull = None

    def _token(self, consumer: Consumer, sequence: int) -> str:
        """Where a delivery is acknowledged: what it says stands in the subject."""
        consumer.delivered += 1
        tries = consumer.tries[sequence] = consumer.tries.get(sequence, 0) + 1
        return f"$JS.ACK.{self._name}.{consumer.name}.{tries}.{sequence}.{consumer.delivered}.{self._life}.0"

    def _next(self, consumer: Consumer) -> int | None:
        while consumer.backlog:
            sequence = consumer.backlog.popleft()
            if sequence in self.messages:
                return sequence
        while consumer.position <= self.sequence:
            sequence = consumer.position
            consumer.position += 1
            message = self.messages.get(sequence)
            if message is not None and consumer.wants(message.subject):
                return sequence
        return None

    def _redeliver(self, consumer: Consumer) -> None:
        if self.consumers.get(consumer.name) is not consumer:
            return
        consumer.timer = False
        now = self._scheduler.now
        late = [sequence for sequence, due in consumer.unacked.items() if due <= now + 1e-6]
        for sequence in late:
            del consumer.unacked[sequence]
        consumer.backlog.extend(late)
        if consumer.unacked and not consumer.timer:
            consumer.timer = True
            self._scheduler.at(min(consumer.unacked.values()), self._redeliver, consumer)
        self._push(consumer)
