"""The group whose messages are answered: drives the dispatcher of the core."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Coroutine, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

from ringcast import Change
from ringcast_core import Action, Dispatcher, KeyFilter, Ring

from ringcast_heartbeat_agent.errors import StoppedError, StoppingError
from ringcast_heartbeat_agent.groups import RELIABLE, Group, Rejected, Source, Surroundings, milliseconds
from ringcast_heartbeat_agent.members import Delivery, Member, size_of

log = logging.getLogger(__name__)

_REASON_CHARS: Final = 512
_BREATHE: Final = 1_024
"""Rows after which a look at all of them lets other tasks run."""
_LETTERS_AT_ONCE: Final = 8


class _Message(NamedTuple):
    change: Change
    size: int


class _Shares:
    """Who owned which row at some moment."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._filters = {member.name: [KeyFilter(one) for one in member.filters] for member in members}
        self._ring = Ring(sorted(self._filters))
        self._all = not any(self._filters.values())

    def of(self, name: str, row_ids: Sequence[str]) -> Iterator[str]:
        """Those of the rows that ``name`` owned."""
        if self._all:
            owners: Iterable[str | None] = self._ring.owners(row_ids)
        else:
            owners = (self._ring.owner(row_id, self._eligible(row_id)) for row_id in row_ids)
        return (row_id for row_id, owner in zip(row_ids, owners, strict=True) if owner == name)

    def _eligible(self, row_id: str) -> list[str]:
        return [
            name
            for name, filters in self._filters.items()
            if not filters or any(one.accepts(row_id) for one in filters)
        ]


class SharedGroup(Group):
    """Each message is answered: at least once, in order for each row."""

    mode = RELIABLE
    _can_resume = True

    def __init__(self, source: Source, name: str, around: Surroundings, policy: str) -> None:
        super().__init__(source, name, around)
        config = around.config
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
        self._messages: dict[int, _Message] = {}
        self._bytes = 0
        self._reasons: dict[int, str] = {}
        self._last = 0
        self._coming: list[str] = []
        """Row ids of messages that the dispatcher hears of before this turn of the event loop is over."""
        self._room = asyncio.Event()
        self._waiting = 0
        self._present: dict[str, None] = {}
        self._looking = 0
        self._teller: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._left_with: StoppingError | None = None
        self._letter_turns = asyncio.Semaphore(_LETTERS_AT_ONCE)

    # ---- for consumers

    def drain(self, why: str) -> None:
        self._left_with = StoppingError(why)
        for member in list(self.members.values()):
            self.leave(member)

    def detach(self, member: Member) -> None:
        super().detach(member)
        if member.leaving:  # it does not come back
            self._evict(member)

    def leave(self, member: Member) -> None:
        member.leaving = True
        self._do(self._dispatcher.drain(member.number, self._now()) or [])

    def answer(
        self, member: Member, offsets: Sequence[int], attempts: Sequence[int], rejected: Sequence[Rejected] = ()
    ) -> None:
        now = self._now()
        if offsets:
            counted, actions = self._dispatcher.acknowledge(member.number, offsets, attempts, now)
            for offset in compress(offsets, counted):
                member.answered(offset)
                self._settle(offset)
            self._do(actions)
        if rejected:
            self._reject(member, rejected, now)

    def _reject(self, member: Member, rejected: Sequence[Rejected], now: int) -> None:
        before = {offset: self._reasons.get(offset, "") for offset, _, _ in rejected}
        for offset, _, reason in rejected:
            self._reasons[offset] = f"rejected by {member.name}: {reason[:_REASON_CHARS]}"
        offsets, attempts = [offset for offset, _, _ in rejected], [attempt for _, attempt, _ in rejected]
        counted, actions = self._dispatcher.reject(member.number, offsets, attempts, now)
        for offset, counts in zip(offsets, counted, strict=True):
            if counts:
                member.answered(offset)
            elif before[offset]:
                self._reasons[offset] = before[offset]
            else:
                self._reasons.pop(offset, None)
        self._do(actions)

    def seen(self, member: Member) -> None:
        self._dispatcher.heartbeat(member.number, self._now())

    # ---- for the source

    def take(self, change: Change) -> Awaitable[None] | None:
        if self.closed:
            return None
        self._present.pop(change.row_id, None)
        if self._has_room:
            self._offer(change)
            return None
        return self._take_later(change)

    async def _take_later(self, change: Change) -> None:
        self._waiting += 1
        try:
            while not self.closed and not self._has_room:
                if not self.members:
                    # Whoever comes first begins with the rows that are there: nothing is to be kept for it.
                    log.warning("%s has no consumer and is full: it is forgotten", self._shown)
                    self.close()
                    return
                self._room.clear()
                await self._room.wait()
            if not self.closed:
                self._offer(change)
        finally:
            self._waiting -= 1

    @property
    def _has_room(self) -> bool:
        fits = self._bytes < self._around.config.window_bytes or not self._messages
        return fits and self._dispatcher.room > len(self._coming)

    def _offer(self, change: Change) -> None:
        self._last += 1
        size = size_of(change)
        self._messages[self._last] = _Message(change, size)
        self._bytes += size
        if not self._coming:
            asyncio.get_running_loop().call_soon(self._offer_all)
        self._coming.append(change.row_id)

    def _offer_all(self) -> None:
        """Has the dispatcher take in what has come: together, since a call of it costs more than a message."""
        if self.closed or not self._coming:
            return
        rows, self._coming = self._coming, []
        taken, actions = self._dispatcher.offer(range(self._last - len(rows) + 1, self._last + 1), rows, self._now())
        assert taken == len(rows), "no more come than there is room for"
        self._do(actions)

    def _tell_present(self, member: Member) -> None:
        shares = _Shares(one for one in self.members.values() if not one.leaving)
        self._spawn(self._look_for(member.name, shares, self.source.row_ids()))

    async def _look_for(self, name: str, shares: _Shares, row_ids: list[str]) -> None:
        """Notes which rows are to be told of. They are told even when the consumer has gone: others have them then."""
        self._looking += 1
        try:
            for start in range(0, len(row_ids), _BREATHE):
                self._present.update(dict.fromkeys(shares.of(name, row_ids[start : start + _BREATHE])))
                if self._teller is None:
                    self._teller = self._spawn(self._tell())
                await asyncio.sleep(0)
        finally:
            self._looking -= 1

    async def _tell(self) -> None:
        """Offers the rows that are to be told of, as they are by then. Half of the window is left to changes."""
        count = 0
        try:
            while self._present:
                while not self._has_room or self._unsettled > self._around.config.window // 2:
                    self._room.clear()
                    await self._room.wait()
                if not self._present:
                    break
                row_id, _ = self._present.popitem()
                change = self.source.change_of(row_id)
                if change is not None:
                    self._offer(change)
                count += 1
                if count % _BREATHE == 0:
                    await asyncio.sleep(0)
        finally:
            self._teller = None

    # ---- for people

    def resolve(self, row_ids: Collection[str] | None, *, discard: bool) -> list[str]:
        decide = self._dispatcher.discard if discard else self._dispatcher.unblock
        blocked = [(offset, self._messages[offset].change.row_id) for offset in self._dispatcher.blocked()]
        decided = []
        for offset, row_id in blocked:
            if row_ids is not None and row_id not in row_ids:
                continue
            actions = decide(offset, self._now())
            if actions is None:
                continue
            if discard:
                self._settle(offset)
            self._do(actions)
            decided.append(row_id)
        return decided

    def status(self) -> dict[str, Any]:
        dispatcher = self._dispatcher
        states = {state.consumer: state for state in dispatcher.consumers()}
        consumers = [
            {
                "name": member.name,
                "api": member.api,
                "connected": member.connected,
                "leaving": member.leaving,
                "filters": list(member.filters),
                "capacity": member.capacity,
                "in_flight": states[number].in_flight if number in states else 0,
                "waiting": states[number].waiting if number in states else 0,
            }
            for number, member in self.members.items()
        ]
        blocked = [
            {"row_id": self._messages[offset].change.row_id, "offset": offset, "reason": self._reasons.get(offset, "")}
            for offset in dispatcher.blocked()
        ]
        return {
            "store": self.source.store,
            "key": self.source.key,
            "group": self.name,
            "mode": self.mode,
            "poison_policy": self.policy,
            "cursor": dispatcher.cursor,
            "last": self._last,
            "in_flight": dispatcher.in_flight,
            "lag": self.lag,
            "bytes": self._bytes,
            "blocked": blocked,
            "counts": dispatcher.counts(),
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
        return self._unsettled + len(self._present) + self._waiting

    @property
    def _unsettled(self) -> int:
        return self._dispatcher.unsettled + len(self._coming)

    @property
    def telling(self) -> bool:
        """Whether rows that were there when a consumer came are still to become messages."""
        return bool(self._present or self._looking)

    def counts(self) -> dict[str, int]:
        return self._dispatcher.counts()

    def close(self, error: StoppedError | None = None) -> None:
        super().close(error)
        for task in self._tasks:
            task.cancel()
        self._messages.clear()
        self._coming.clear()
        self._present.clear()
        self._reasons.clear()
        self._bytes = 0
        self._room.set()

    # ---- what the dispatcher wants done

    def _add(self, name: str, filters: Sequence[str], capacity: int, api: str) -> Member:
        number, actions = self._dispatcher.join(name, filters, now_ms=self._now(), capacity=capacity)
        member = self.members[number] = Member(number, name, filters, capacity, api)
        self._do(actions)
        return member

    def _evict(self, member: Member) -> None:
        self._do(self._dispatcher.evict(member.number, self._now()) or [])

    def _tick(self) -> None:
        self._do(self._dispatcher.tick(self._now()))

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
                actions += self._dispatcher.acknowledge(number, [offset], [attempt], self._now())[1]
                self._settle(offset)
        self._room.set()
        self._arm(self._dispatcher.next_deadline_ms)

    def _deliver(self, number: int, offset: int, attempt: int, revoked: list[tuple[int, int, int]]) -> None:
        change, size = self._messages[offset]
        if self.source.owns(change.partition):
            self.members[number].give(Delivery(offset, attempt, change, size))
        else:  # another host has it, and begins with the rows as they are
            revoked.append((number, offset, attempt))

    def _do_one(self, action: Action) -> None:
        match action:
            case Action.TimedOut(number, offset, _):
                self._reasons[offset] = f"not answered within {self._around.config.ack_timeout_s:g} s"
                self.members[number].answered(offset)
            case Action.DeadLetter(offset, deliveries, reason):
                self._spawn(self._send_letter(offset, deliveries, reason))
            case Action.Drop(offset, deliveries, reason):
                self._log_poison("is dropped", offset, deliveries, reason)
                self._settle(offset)
            case Action.Block(offset, deliveries, reason):
                self._log_poison("blocks its row", offset, deliveries, reason)
            case Action.Skip(offset, _):
                self._settle(offset)
            case Action.Evicted(number):
                self._forget(number, self._evicted())
            case Action.Left(number):
                self._forget(number, self._left_with)

    def _settle(self, offset: int) -> None:
        message = self._messages.pop(offset, None)
        if message is not None:
            self._bytes -= message.size
        if self._reasons:
            self._reasons.pop(offset, None)

    def _log_poison(self, what: str, offset: int, deliveries: int, reason: str) -> None:
        change = self._messages[offset].change
        told = self._reasons.get(offset, reason)
        log.error(
            "a message %s: %s, partition %d, version %d, deliveries %d, %s",
            what,
            self._shown,
            change.partition,
            change.version,
            deliveries,
            told,
        )

    async def _send_letter(self, offset: int, deliveries: int, reason: str) -> None:
        self._log_poison("goes to the dead letters", offset, deliveries, reason)
        async with self._letter_turns:
            await self._around.letters.publish(
                self._messages[offset].change,
                group=self.name,
                worker_id=self.source.worker_id,
                why=f"{self._shown}: {self._reasons.get(offset, reason)}",
                tries=deliveries,
            )
        actions = self._dispatcher.dead_lettered(offset, self._now())
        self._settle(offset)
        self._do(actions or [])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._around.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
