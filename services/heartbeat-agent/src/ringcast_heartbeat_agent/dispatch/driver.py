"""Drives the dispatcher of the core for one group: tells it what happens, and does what it wants done."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from itertools import compress
from typing import Any, Protocol

from ringcast import Change, ValueSealedError
from ringcast_core import Action, Dispatcher
from ringcast_wire import ReplayOutcome

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Delivery
from ringcast_heartbeat_agent.dispatch.failures import Failures
from ringcast_heartbeat_agent.dispatch.feed import Feed
from ringcast_heartbeat_agent.dispatch.group import Rejected, milliseconds
from ringcast_heartbeat_agent.dispatch.replays import GroupReplays
from ringcast_heartbeat_agent.dispatch.sessions import Sessions
from ringcast_heartbeat_agent.dispatch.source import Source
from ringcast_heartbeat_agent.dispatch.tasks import GroupTasks
from ringcast_heartbeat_agent.dispatch.timer import DeadlineTimer


class DriverObserver(Protocol):
    """What a :class:`Driver` reports to."""

    def consumer_ended(self, number: int, *, evicted: bool) -> None:
        """A consumer is no longer one: it was evicted, or has answered everything after it left."""


class Driver:
    """The dispatcher of one group, with its clock.

    Args:
        source: the config key.
        sessions: the group's consumers, which get the deliveries.
        feed: has the messages.
        failures: why messages failed, and what becomes of those that failed for good.
        replays: are answered as soon as their message is settled.
    """

    def __init__(
        self,
        config: Config,
        policy: str,
        *,
        source: Source,
        sessions: Sessions,
        feed: Feed,
        failures: Failures,
        replays: GroupReplays,
        tasks: GroupTasks,
        observer: DriverObserver,
    ) -> None:
        self._dispatcher = Dispatcher(
            window=config.window,
            consumer_capacity=config.consumer_capacity,
            ack_timeout_ms=milliseconds(config.ack_timeout_s),
            max_tries=config.max_tries,
            max_deliveries=config.max_deliveries,
            backoff_first_ms=milliseconds(config.retry_first_s),
            backoff_most_ms=milliseconds(config.retry_most_s),
            poison=policy,
            evict_after_ms=milliseconds(config.evict_after_s),
            orphan_hold_ms=milliseconds(config.orphan_hold_s),
        )
        self._ack_timeout_s = config.ack_timeout_s
        self._source = source
        self._sessions = sessions
        self._feed = feed
        self._intake = feed.intake
        self._holdings = feed.holdings
        self._failures = failures
        self._replays = replays
        self._tasks = tasks
        self._observer = observer
        self._timer = DeadlineTimer(self._tick)
        self._closed = False

    # ---- what happens

    def join(self, name: str, filters: Sequence[str], capacity: int) -> tuple[int, list[Action]]:
        """A consumer has come: returns its number, and what :meth:`do` is to do once it is among the sessions.

        Raises:
            ValueError: a filter or the capacity breaks a rule.
        """
        return self._dispatcher.join(name, filters, now_ms=self._timer.now_ms(), capacity=capacity)

    def seen(self, consumer: ConsumerSession) -> None:
        """A sign of life."""
        self._dispatcher.heartbeat(consumer.number, self._timer.now_ms())

    def drain(self, consumer: ConsumerSession) -> None:
        """The consumer gets nothing new, and ends when it has answered everything."""
        self.do(self._dispatcher.drain(consumer.number, self._timer.now_ms()) or [])

    def evict(self, consumer: ConsumerSession) -> None:
        """Others get what the consumer has not answered."""
        self.do(self._dispatcher.evict(consumer.number, self._timer.now_ms()) or [])

    def offer(self, offsets: range, keys: list[str]) -> None:
        """New messages, each with its routing key. There is room for all of them."""
        taken, actions = self._dispatcher.offer(offsets, keys, self._timer.now_ms())
        assert taken == len(keys), "no more come than there is room for"
        self.do(actions)

    def acknowledge(self, consumer: ConsumerSession, offsets: Sequence[int], attempts: Sequence[int]) -> None:
        """Deliveries that are done with."""
        counted, actions = self._dispatcher.acknowledge(consumer.number, offsets, attempts, self._timer.now_ms())
        for offset in compress(offsets, counted):
            consumer.answered(offset)
            change = self._settle(offset)
            if change is not None:
                self._holdings.settle(change)
                self._replays.tell(change, ReplayOutcome.HANDLED)
        self.do(actions)

    def reject(self, consumer: ConsumerSession, rejected: Sequence[Rejected]) -> None:
        """Deliveries that failed."""
        before = self._failures.reject(consumer.name, [(offset, reason) for offset, _, reason in rejected])
        offsets, attempts = [offset for offset, _, _ in rejected], [attempt for _, attempt, _ in rejected]
        counted, actions = self._dispatcher.reject(consumer.number, offsets, attempts, self._timer.now_ms())
        for offset, counts in zip(offsets, counted, strict=True):
            if counts:
                consumer.answered(offset)
            else:
                self._failures.restore(offset, before[offset])
        self.do(actions)

    def resolve(self, row_ids: Collection[str] | None, *, discard: bool) -> list[str]:
        """Has the blocked messages of these rows, or of all, tried again or given up; returns the rows."""
        decide = self._dispatcher.discard if discard else self._dispatcher.unblock
        messages = self._intake.messages
        blocked = [(offset, messages[offset].change.row_id) for offset in self._dispatcher.blocked()]
        decided = []
        for offset, row_id in blocked:
            if row_ids is not None and row_id not in row_ids:
                continue
            actions = decide(offset, self._timer.now_ms())
            if actions is None:
                continue
            if discard:
                self._replays.tell(messages[offset].change, ReplayOutcome.KEPT, "it was discarded")
                self._give_up(offset)
            self.do(actions)
            decided.append(row_id)
        return decided

    def discard_blocked(self, partitions: Collection[int]) -> None:
        """Discards the blocked messages of these partitions, which another host delivers now."""
        for offset in self.blocked:
            if self._intake.messages[offset].change.partition in partitions:
                self.do(self._discard(offset))

    def close(self) -> None:
        """Does nothing more."""
        self._closed = True
        self._timer.close()
        self._failures.clear()

    # ---- how it stands

    @property
    def in_flight(self) -> int:
        """Deliveries that are not answered yet."""
        return self._dispatcher.in_flight

    @property
    def blocked(self) -> list[int]:
        """The offsets of the messages that block their rows."""
        return self._dispatcher.blocked()

    def counts(self) -> dict[str, int]:
        """What happened so far, by event."""
        return {**self._dispatcher.counts(), "coalesced": self._intake.coalesced}

    def status(self) -> dict[str, Any]:
        """The part of a group's status that the dispatcher knows."""
        messages = self._intake.messages
        states = {state.consumer: state for state in self._dispatcher.consumers()}
        return {
            "cursor": self._dispatcher.cursor,
            "in_flight": self.in_flight,
            "blocked": [
                {"row_id": messages[offset].change.row_id, "offset": offset, "reason": self._failures.reason(offset)}
                for offset in self.blocked
            ],
            "consumers": [
                consumer.status(
                    in_flight=states[consumer.number].in_flight if consumer.number in states else 0,
                    waiting=states[consumer.number].waiting if consumer.number in states else 0,
                )
                for consumer in self._sessions
            ],
        }

    # ---- what the dispatcher wants done

    def do(self, actions: list[Action]) -> None:
        """Does what the dispatcher wants done, and what it wants done after that."""
        if self._closed:
            return
        while actions:
            revoked: list[tuple[int, int, int]] = []
            blocked: list[int] = []
            sealed: list[tuple[int, int, int]] = []
            for action in actions:
                if isinstance(action, Action.Deliver):  # nearly all are
                    self._deliver(action.consumer, action.offset, action.attempt, revoked, sealed)
                elif isinstance(action, Action.Block):
                    self._block(action, blocked)
                else:
                    self._do_one(action)
            actions = []
            for number, offset, attempt in revoked:
                actions += self._dispatcher.acknowledge(number, [offset], [attempt], self._timer.now_ms())[1]
                self._gone(offset)
            for number, offset, attempt in sealed:
                actions += self._dispatcher.reject(number, [offset], [attempt], self._timer.now_ms())[1]
            for offset in blocked:
                actions += self._discard(offset)
        if self._intake.waiting:
            self._feed.offer_soon()
        self._timer.arm(self._dispatcher.next_deadline_ms)
        if (due := self._feed.absent.due) is not None:
            self._timer.arm(math.ceil(due * 1000))

    def _deliver(
        self,
        number: int,
        offset: int,
        attempt: int,
        revoked: list[tuple[int, int, int]],
        sealed: list[tuple[int, int, int]],
    ) -> None:
        message = self._intake.messages[offset]
        change = message.change
        if self._source.owns(change.partition) and self._holdings.may_deliver(message):
            try:
                opened = self._source.opened(change)
            except ValueSealedError as error:
                self._failures.reasons[offset] = str(error)
                sealed.append((number, offset, attempt))  # as if the consumer had rejected it
                return
            message.delivered = True
            self._sessions[number].give(Delivery(offset, attempt, opened, message.size))
        else:  # another host has it, or may have it, and delivers what is not settled
            revoked.append((number, offset, attempt))

    def _do_one(self, action: Action) -> None:
        match action:
            case Action.TimedOut(number, offset, _):
                self._failures.time_out(offset, self._ack_timeout_s)
                self._sessions[number].answered(offset)
            case Action.DeadLetter(offset, deliveries, reason):
                self._tasks.spawn(self._publish_dead_letter(offset, deliveries, reason))
            case Action.Drop(offset, deliveries, reason):
                self._failures.drop(offset, self._intake.messages[offset].change, deliveries, reason)
                self._give_up(offset)
            case Action.Skip(offset, _):
                change = self._settle(offset)
                if change is not None:
                    self._replays.tell(change, ReplayOutcome.KEPT, "no consumer of the group wants the row now")
                    newest = change.row_id not in self._intake and self._source.owns(change.partition)
                    if not (newest and self._feed.absent.keep(change)):
                        self._holdings.settle(change)
            case Action.Evicted(number):
                self._observer.consumer_ended(number, evicted=True)
            case Action.Left(number):
                self._observer.consumer_ended(number, evicted=False)

    def _block(self, action: Action.Block, blocked: list[int]) -> None:
        message = self._intake.messages[action.offset]
        if message.gone:
            blocked.append(action.offset)
        else:
            self._failures.block(action.offset, message.change, action.deliveries, action.reason)

    def _discard(self, offset: int) -> list[Action]:
        """Ends a blocked message: what the dispatcher wants done then."""
        actions = self._dispatcher.discard(offset, self._timer.now_ms())
        self._gone(offset)
        return actions or []

    def _gone(self, offset: int) -> None:
        """Another host has the row."""
        change = self._settle(offset)
        if change is not None:
            self._replays.tell(change, ReplayOutcome.KEPT, "the partition has gone to another host")

    def _settle(self, offset: int) -> Change | None:
        if self._failures.reasons:  # hardly ever, and this runs for each message
            self._failures.forget(offset)
        return self._intake.settle(offset)

    def _give_up(self, offset: int) -> None:
        self._failures.forget(offset)
        change = self._intake.give_up(offset)
        if change is not None:
            self._holdings.settle(change)

    async def _publish_dead_letter(self, offset: int, deliveries: int, reason: str) -> None:
        await self._failures.publish(offset, self._intake.messages[offset].change, deliveries, reason)
        actions = self._dispatcher.dead_lettered(offset, self._timer.now_ms())
        self._give_up(offset)
        self.do(actions or [])

    def _tick(self) -> None:
        self._feed.absent.expire(asyncio.get_running_loop().time())
        self.do(self._dispatcher.tick(self._timer.now_ms()))
