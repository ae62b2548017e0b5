"""The group whose messages are answered: drives the dispatcher of the core."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import chain, compress
from typing import Any, Final

from ringcast import Change
from ringcast_core import Action, Dispatcher
from ringcast_wire import ReplayAnswer, ReplayOutcome, ReplayRequest

from ringcast_heartbeat_agent.dispatch.absent import Absent
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Delivery
from ringcast_heartbeat_agent.dispatch.failures import Failures
from ringcast_heartbeat_agent.dispatch.group import RELIABLE, Group, GroupContext, Rejected, Source, milliseconds
from ringcast_heartbeat_agent.dispatch.intake import AT_ONCE, Intake
from ringcast_heartbeat_agent.dispatch.positions import Away
from ringcast_heartbeat_agent.dispatch.progress import Progress
from ringcast_heartbeat_agent.dispatch.replays import GroupReplays, tell
from ringcast_heartbeat_agent.dispatch.routing import ROWS, Routing
from ringcast_heartbeat_agent.dispatch.shares import Shares
from ringcast_heartbeat_agent.errors import BehindError, StoppedError, StoppingError

_SAVE_S: Final = 1.0
_MOST_LOOKED_AT: Final = 50_000
"""With more rows that wait it is not looked how far the group has come: what was known holds."""


class KeySharedGroup(Group):
    """Each message is answered: at least once, in order for each row."""

    mode = RELIABLE
    _can_resume = True

    def __init__(self, source: Source, name: str, context: GroupContext, policy: str, routing: Routing = ROWS) -> None:
        super().__init__(source, name, context, routing)
        config = context.config
        self.policy = policy
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
        self._intake = Intake(source, window=config.window, window_bytes=config.window_bytes, routing=routing)
        self._absent = Absent(config.linger_s, config.max_consumers, routing)
        self._save_at = 0.0
        self._offering = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_with: StoppingError | None = None
        self._replays = GroupReplays()
        self._failures = Failures(name, self._title, source.worker_id, context.dead_letters, self._replays)
        self._progress = self._begun()

    # ---- for consumers

    def drain(self, why: str) -> None:
        self._left_with = StoppingError(why)
        for consumer in list(self.sessions.values()):
            self.leave(consumer)

    def detach(self, consumer: ConsumerSession) -> None:
        super().detach(consumer)
        if consumer.leaving:  # it does not come back
            self._evict(consumer)

    def leave(self, consumer: ConsumerSession) -> None:
        consumer.leaving = True
        self._absent.gone(consumer.name, consumer.filters, asyncio.get_running_loop().time())
        self._do(self._dispatcher.drain(consumer.number, self._timer.now_ms()) or [])

    def answer(
        self,
        consumer: ConsumerSession,
        offsets: Sequence[int],
        attempts: Sequence[int],
        rejected: Sequence[Rejected] = (),
    ) -> None:
        now = self._timer.now_ms()
        if offsets:
            counted, actions = self._dispatcher.acknowledge(consumer.number, offsets, attempts, now)
            for offset in compress(offsets, counted):
                consumer.answered(offset)
                change = self._settle(offset)
                if change is not None:
                    self._replays.tell(change, ReplayOutcome.HANDLED)
            self._do(actions)
        if rejected:
            self._reject(consumer, rejected, now)

    def _reject(self, consumer: ConsumerSession, rejected: Sequence[Rejected], now: int) -> None:
        before = self._failures.reject(consumer.name, [(offset, reason) for offset, _, reason in rejected])
        offsets, attempts = [offset for offset, _, _ in rejected], [attempt for _, attempt, _ in rejected]
        counted, actions = self._dispatcher.reject(consumer.number, offsets, attempts, now)
        for offset, counts in zip(offsets, counted, strict=True):
            if counts:
                consumer.answered(offset)
            else:
                self._failures.restore(offset, before[offset])
        self._do(actions)

    def seen(self, consumer: ConsumerSession) -> None:
        self._dispatcher.heartbeat(consumer.number, self._timer.now_ms())

    # ---- for the source

    def take(self, change: Change) -> None:
        if self._progress is None or self._progress.is_new(change, self.source.history):
            self._take(change)

    def look(self, now: float) -> None:
        if self._progress is None or now < self._save_at or self.closed:
            return
        self._save_at = now + _SAVE_S
        if self._progress.begin(self.source.applied(), self.source.history):
            self._spawn(self._progress.catch_up())
        if self._intake.waiting + len(self._absent) <= _MOST_LOOKED_AT:
            self._save()

    @property
    def unread_s(self) -> float:
        return self._progress.unread_s if self._progress is not None else 0.0

    def _begun(self) -> Progress | None:
        """What it knows of the group that was there before it; what that one missed is read, and comes as changes."""
        if self._context.history is None:
            return None
        place = self.source.store, self.source.key, self.name
        progress = Progress(self._context.history, place, self._take)
        now = asyncio.get_running_loop().time()
        for away in progress.away:
            self._absent.gone(away.name, away.filters, now)
        if progress.begin(self.source.applied(), self.source.history):
            self._spawn(progress.catch_up())
        return progress

    def _save(self) -> None:
        """Saves how far it has come, and the consumers with filters."""
        if self._progress is None:
            return
        filters = {consumer.name: consumer.filters for consumer in self.sessions.values() if consumer.filters}
        away = [Away(name, list(patterns)) for name, patterns in (self._absent.away | filters).items()]
        pending = chain(self._intake.changes(), self._absent.changes())
        self._progress.save(pending, self.source.applied(), self.source.history, away)

    def _take(self, change: Change) -> None:
        if self.closed:
            return
        self._absent.discard(change.row_id)
        self._intake.take(change)
        if self.routing.crowded:
            self.routing.keep(self._is_known)
        if self._intake.arrived >= AT_ONCE:
            self._offer()
        else:
            self._offer_soon()

    def _is_known(self, row_id: str) -> bool:
        return row_id in self._intake or row_id in self._absent or self.source.change_of(row_id) is not None

    def replay(self, request: ReplayRequest, change: Change, say: Callable[[ReplayAnswer], None]) -> Callable[[], None]:
        history, applied = self.source.history, self.source.applied()
        if self.closed:
            tell(request, say, ReplayOutcome.KEPT, 0, f"{self._title} has ended")
        elif self._progress is not None and self._progress.is_ahead(change.partition, applied, history):
            why = f"{self._title} was told of newer changes than the agent's worker has: try again later"
            tell(request, say, ReplayOutcome.KEPT, 0, why)
        elif self._replays.add(request, change, say):
            self._intake.forgive(change.row_id)
            if self._progress is not None:
                self._progress.is_new(change, history)
            self._take(change)
        return partial(self._replays.forget, request)

    def _offer_soon(self) -> None:
        """At the end of this turn of the event loop: a call of the dispatcher costs more than a message."""
        if not self._offering:
            self._offering = True
            asyncio.get_running_loop().call_soon(self._offer)

    def _offer(self) -> None:
        """Has the dispatcher take in what there is room for."""
        self._offering = False
        if self.closed:
            return
        keys = self._intake.batch()
        window, most = self._context.config.window, self._context.config.max_behind
        if (held := self.behind + len(self._absent)) > most:
            self.close(BehindError(f"{self._title} is {held} rows behind: register again, and begin with the rows"))
            return
        if self._progress is not None:
            # What was missed comes no faster than it is delivered: it alone never puts the group too far behind.
            self._progress.has_room(min(window, max(1, most // 2)) - self.behind)
        if keys:
            last = self._intake.window.last
            taken, actions = self._dispatcher.offer(range(last - len(keys) + 1, last + 1), keys, self._timer.now_ms())
            assert taken == len(keys), "no more come than there is room for"
            self._do(actions)
        if self._intake.goes_on:
            self._offer_soon()

    def _tell_present(self, consumer: ConsumerSession) -> None:
        self._spawn(self._look_for(consumer.name, self._shares(), self.source.row_ids()))

    async def _look_for(self, name: str, shares: Shares, row_ids: list[str]) -> None:
        """Notes the rows to deliver as they are. If the consumer has gone meanwhile, others get them."""
        for start in range(0, len(row_ids), AT_ONCE):
            some = row_ids[start : start + AT_ONCE]
            theirs = (row_id for row_id, owner in zip(some, shares.owners(some), strict=True) if owner == name)
            self._intake.deliver_present(theirs, name)
            self._offer_soon()
            await asyncio.sleep(0)

    # ---- for people

    def resolve(self, row_ids: Collection[str] | None, *, discard: bool) -> list[str]:
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
            self._do(actions)
            decided.append(row_id)
        return decided

    def status(self) -> dict[str, Any]:
        dispatcher = self._dispatcher
        states = {state.consumer: state for state in dispatcher.consumers()}
        consumers = [
            {
                "name": consumer.name,
                "api": consumer.api,
                "connected": consumer.connected,
                "leaving": consumer.leaving,
                "filters": list(consumer.filters),
                "capacity": consumer.capacity,
                "in_flight": states[number].in_flight if number in states else 0,
                "waiting": states[number].waiting if number in states else 0,
            }
            for number, consumer in self.sessions.items()
        ]
        messages = self._intake.messages
        blocked = [
            {"row_id": messages[offset].change.row_id, "offset": offset, "reason": self._failures.reason(offset)}
            for offset in dispatcher.blocked()
        ]
        return {
            "store": self.source.store,
            "key": self.source.key,
            "group": self.name,
            "mode": self.mode,
            "poison_policy": self.policy,
            "routing_key": self.routing.setting,
            "cursor": dispatcher.cursor,
            "last": self._intake.window.last,
            "in_flight": dispatcher.in_flight,
            "lag": self.lag,
            "bytes": self._intake.window.bytes,
            "behind": self._intake.behind,
            "kept": len(self._absent),
            "blocked": blocked,
            "counts": self.counts(),
            "consumers": consumers,
        }

    @property
    def in_flight(self) -> int:
        return self._dispatcher.in_flight

    @property
    def blocked_rows(self) -> int:
        return len(self._dispatcher.blocked())

    @property
    def lag(self) -> int:
        return len(self._intake.messages) + self._intake.waiting

    @property
    def behind(self) -> int:
        return self._intake.behind

    def counts(self) -> dict[str, int]:
        return {**self._dispatcher.counts(), "coalesced": self._intake.coalesced}

    def close(self, error: StoppedError | None = None) -> None:
        if not self.closed:
            self._save()
        super().close(error)
        for task in self._tasks:
            task.cancel()
        self._intake.clear()
        self._absent.clear()
        self._failures.clear()
        self._replays.end(f"{self._title} has ended")

    # ---- what the dispatcher wants done

    def _add(self, name: str, filters: Sequence[str], capacity: int, api: str) -> ConsumerSession:
        number, actions = self._dispatcher.join(name, filters, now_ms=self._timer.now_ms(), capacity=capacity)
        consumer = self.sessions[number] = ConsumerSession(number, name, filters, capacity, api)
        self._share()
        for change in self._absent.back(name, filters):
            self._intake.take(change)
        self._offer_soon()
        self._do(actions)
        return consumer

    def _forget(self, number: int, error: StoppedError | None) -> None:
        consumer = self.sessions.get(number)
        super()._forget(number, error)
        if consumer is None or self.closed:
            return
        if all(one.name != consumer.name for one in self.sessions.values()):
            self._absent.gone(consumer.name, consumer.filters, asyncio.get_running_loop().time())
        self._share()
        self._offer_soon()

    def _share(self) -> None:
        self._intake.share(self._shares())

    def _shares(self) -> Shares:
        return Shares((one for one in self.sessions.values() if not one.leaving), self.routing)

    def _evict(self, consumer: ConsumerSession) -> None:
        self._do(self._dispatcher.evict(consumer.number, self._timer.now_ms()) or [])

    def _tick(self) -> None:
        self._absent.expire(asyncio.get_running_loop().time())
        self._do(self._dispatcher.tick(self._timer.now_ms()))

    def _do(self, actions: list[Action]) -> None:
        if self.closed:
            return
        while actions:
            revoked: list[tuple[int, int, int]] = []
            for action in actions:
                if isinstance(action, Action.Deliver):  # nearly all are
                    self._deliver(action.consumer, action.offset, action.attempt, revoked)
                else:
                    self._do_one(action)
            actions = []
            for number, offset, attempt in revoked:
                actions += self._dispatcher.acknowledge(number, [offset], [attempt], self._timer.now_ms())[1]
                change = self._settle(offset)
                if change is not None:
                    self._replays.tell(change, ReplayOutcome.KEPT, "the partition has gone to another host")
        if self._intake.waiting:
            self._offer_soon()
        self._timer.arm(self._dispatcher.next_deadline_ms)
        if (due := self._absent.due) is not None:
            self._timer.arm(math.ceil(due * 1000))

    def _deliver(self, number: int, offset: int, attempt: int, revoked: list[tuple[int, int, int]]) -> None:
        message = self._intake.messages[offset]
        if self.source.owns(message.change.partition):
            message.delivered = True
            self.sessions[number].give(Delivery(offset, attempt, message.change, message.size))
        else:  # another host has it, and begins with the rows as they are
            revoked.append((number, offset, attempt))

    def _do_one(self, action: Action) -> None:
        match action:
            case Action.TimedOut(number, offset, _):
                self._failures.time_out(offset, self._context.config.ack_timeout_s)
                self.sessions[number].answered(offset)
            case Action.DeadLetter(offset, deliveries, reason):
                self._spawn(self._publish_dead_letter(offset, deliveries, reason))
            case Action.Drop(offset, deliveries, reason):
                self._failures.drop(offset, self._intake.messages[offset].change, deliveries, reason)
                self._give_up(offset)
            case Action.Block(offset, deliveries, reason):
                self._failures.block(offset, self._intake.messages[offset].change, deliveries, reason)
            case Action.Skip(offset, _):
                change = self._settle(offset)
                if change is not None:
                    self._replays.tell(change, ReplayOutcome.KEPT, "no consumer of the group wants the row now")
                if change is not None and change.row_id not in self._intake and self.source.owns(change.partition):
                    self._absent.keep(change)
            case Action.Evicted(number):
                self._forget(number, self._evicted())
            case Action.Left(number):
                self._forget(number, self._left_with)

    def _settle(self, offset: int) -> Change | None:
        if self._failures.reasons:  # hardly ever, and this runs for each message
            self._failures.forget(offset)
        return self._intake.settle(offset)

    def _give_up(self, offset: int) -> None:
        self._failures.forget(offset)
        self._intake.give_up(offset)

    async def _publish_dead_letter(self, offset: int, deliveries: int, reason: str) -> None:
        await self._failures.publish(offset, self._intake.messages[offset].change, deliveries, reason)
        actions = self._dispatcher.dead_lettered(offset, self._timer.now_ms())
        self._give_up(offset)
        self._do(actions or [])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._context.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
