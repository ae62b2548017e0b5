"""What becomes of changes whose handler has failed every time: dropped, sent to the dead letters, or held back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from ringcast_wire import (
    MAX_REPLAY_WHY_CHARS,
    WIRE_VERSION,
    DeadLetter,
    EventLog,
    ReplayAnswer,
    ReplayOutcome,
    ReplayRequest,
    event_within,
    version_for,
)
from ringcast_wire.reports import RowFailure

from ringcast._common.change import Change, PoisonPolicy
from ringcast._common.config import WorkerConfig
from ringcast._common.stats import Stats
from ringcast._delivery.calls import HandlerCall, HandlerCalls
from ringcast._delivery.dead_letters import DeadLetters, DeadLetterSender, dead_letter_of
from ringcast._delivery.failures import Failure, Failures

MAX_BLOCKED_ROWS: Final = 1_024
"""Rows of one key that are held back at once; one more waits, and all that comes after it, until there is room."""
_LOOK_S: Final = 1.0
_ERROR_CHARS: Final = 4_096


@dataclass(frozen=True, slots=True)
class BlockedRow:
    """A row that is held back: its newest change, and the last error of its handler."""

    change: Change
    error: str


Attempt: TypeAlias = Callable[[HandlerCall], Awaitable[BaseException | None]]
"""Calls the handler as often as it may be called; returns the last error if it raised every time."""


class Replay(NamedTuple):
    """A request to hand a row over again: its id, how often that was done before and failed, and which wire version of
    an answer its asker reads."""

    id: str
    replays: int
    reads: int = WIRE_VERSION

    @classmethod
    def of(cls, request: ReplayRequest) -> Replay:
        """What there is to know of it where the row is handed over."""
        return cls(request.id, request.replays, request.reads)

    def answer(self, outcome: ReplayOutcome, change: Change | None, why: str = "") -> ReplayAnswer:
        """The answer to the request."""
        version = 0 if change is None else change.version
        return ReplayAnswer(version_for(self.reads), self.id, outcome, version, why[:MAX_REPLAY_WHY_CHARS])


@dataclass(slots=True)
class _Entry:
    change: Change
    error: str
    replay: Replay | None = None
    """The row is not blocked, only handed over again now; what comes meanwhile waits for the end of that."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Poison:
    """The poison policy of one config key."""

    def __init__(
        self, config: WorkerConfig, stats: Stats, log: EventLog, dead_letters: DeadLetters, owned: Callable[[int], bool]
    ) -> None:
        self._config = config
        self._stats = stats
        self._log = log
        self._owned = owned
        self._sender = DeadLetterSender(dead_letters, self._not_sent)
        self._blocked: dict[tuple[int, str], _Entry] = {}
        self._room = asyncio.Event()
        self.failures = Failures()

    def hold(self, change: Change) -> bool:
        """Whether the row is held back; this, its newest change, is then held in the place of the last."""
        entry = self._blocked.get((change.partition, change.row_id)) if self._blocked else None
        if entry is None:
            return False
        entry.change = change
        return True

    async def give_up(self, call: HandlerCall, error: BaseException) -> None:
        """Deals with a change for good. What it can't do now it tries until it can, or the partition is lost."""
        change = call.change
        self._stats.poisoned += 1
        facts = {"partition": change.partition, "version": change.version, "error": repr(error)}
        match self._config.poison_policy:
            case PoisonPolicy.DROP:
                self._log.error("change.given_up", action="drop", **facts)
                self.failures.note(change, RowFailure.DROPPED, repr(error))
            case PoisonPolicy.DEAD_LETTER:
                self._log.error("change.given_up", action="dead_letter", **facts)
                self.failures.note(change, RowFailure.SENDING, repr(error))
                if await self._send(call, error):
                    self.failures.note(change, RowFailure.DEAD_LETTERED, repr(error))
            case PoisonPolicy.BLOCK:
                self._log.error("change.given_up", action="block", **facts)
                await self._block(change, error)

    def blocked_row(self, partition: int, row_id: str) -> BlockedRow | None:
        """The row if it is held back."""
        entry = self._blocked.get((partition, row_id))
        return None if entry is None or entry.replay is not None else BlockedRow(entry.change, entry.error)

    def blocked(self) -> list[BlockedRow]:
        """The rows that are held back."""
        return [BlockedRow(entry.change, entry.error) for entry in list(self._blocked.values()) if entry.replay is None]

    @property
    def may_have_refused(self) -> bool:
        """Whether :meth:`refused` finds anything of any revisions."""
        return bool(self._blocked) or not self.failures.is_empty

    def refused(self, ranges: Mapping[int, tuple[int, int]]) -> tuple[list[Failure], int]:
        """What the handler did not take of these revisions of each partition, and how much of that may be forgotten.

        Of a row that is held back, because it is blocked or being replayed, its newest change counts.
        """
        held = self._blocked
        found = [each for each in self.failures.within(ranges) if (each.partition, each.row_id) not in held]
        for (partition, row_id), entry in held.items():
            first, last = ranges.get(partition, (1, 0))
            if first <= entry.change.version <= last:
                what = RowFailure.BLOCKED if entry.replay is None else RowFailure.RETRYING
                found.append(Failure(partition, row_id, entry.change.version, what, entry.error, time.monotonic()))
        return found, self.failures.forgotten(ranges)

    async def unblock(
        self, partition: int, row_id: str, attempt: Callable[[Change], Awaitable[BaseException | None]]
    ) -> bool:
        """Tries the newest change of a row again; returns whether the row is free now, as one never blocked is."""
        place = (partition, row_id)
        entry = self._blocked.get(place)
        if entry is None:
            return True
        async with entry.lock:
            while self._blocked.get(place) is entry:
                change = entry.change
                error = await attempt(change)
                if error is not None:
                    entry.error = repr(error)
                    self.failures.note(change, RowFailure.BLOCKED, entry.error)
                    return False
                if entry.change is change:  # else a newer one came meanwhile
                    self.failures.settle(change)
                    self._free(place)
        return True

    async def replay(self, change: Change, replay: Replay, calls: HandlerCalls, attempt: Attempt) -> ReplayAnswer:
        """Hands a row over again: ``change`` is what it is now, of a partition that is owned.

        Until it ends the newest change of the row waits: so what is handed over here never comes after something newer.
        To be cancelled only when the worker ends.
        """
        place = (change.partition, change.row_id)
        entry = self._blocked.get(place)
        if entry is not None and entry.replay is not None:
            return replay.answer(ReplayOutcome.KEPT, change, "the row is being replayed already")
        if entry is not None:
            return replay.answer(ReplayOutcome.KEPT, change, f"the worker blocks the row: {entry.error}")
        entry = self._blocked[place] = _Entry(change, "", replay)
        try:
            async with entry.lock:
                await calls.row_ended(*place)
                return await self._replay(entry, replay, calls, attempt)
        finally:
            if (
                self._blocked.get(place) is entry and entry.replay is not None
            ):  # the partition is lost, or the worker ends
                self._free(place)

    async def _replay(self, entry: _Entry, replay: Replay, calls: HandlerCalls, attempt: Attempt) -> ReplayAnswer:
        place = (entry.change.partition, entry.change.row_id)
        while self._blocked.get(place) is entry and self._owned(place[0]):
            call = calls.begin(entry.change)
            try:
                error = await attempt(call)
                if call.lost:
                    break  # whatever it was: the next owner begins with the row
                if error is None:
                    self.failures.settle(call.change)
                    answer = replay.answer(ReplayOutcome.HANDLED, call.change)
                else:
                    answer = await self._replay_failed(call, error, entry, replay)
            finally:
                calls.end(call)
            if entry.replay is None:
                return answer  # it is blocked from now on
            if entry.change is call.change:  # else a newer one came meanwhile
                self._free(place)
                return answer
        return replay.answer(ReplayOutcome.KEPT, entry.change, "the partition has gone to another worker")

    async def _replay_failed(
        self, call: HandlerCall, error: BaseException, entry: _Entry, replay: Replay
    ) -> ReplayAnswer:
        change = call.change
        self._stats.poisoned += 1
        facts = {"partition": change.partition, "version": change.version, "error": repr(error)}
        match self._config.poison_policy:
            case PoisonPolicy.DROP:
                self._log.error("replay.given_up", action="drop", **facts)
                return replay.answer(ReplayOutcome.KEPT, change, f"it failed again, and was dropped: {error!r}")
            case PoisonPolicy.BLOCK:
                self._log.error("replay.given_up", action="block", **facts)
                self._stats.blocked += 1
                entry.error, entry.replay = repr(error), None
                self.failures.note(change, RowFailure.BLOCKED, entry.error)
                return replay.answer(ReplayOutcome.KEPT, change, f"it failed again, and its row is blocked: {error!r}")
            case PoisonPolicy.DEAD_LETTER:
                self._log.error("replay.given_up", action="dead_letter", **facts)
                if await self._send(call, error, replay):
                    self.failures.note(change, RowFailure.DEAD_LETTERED, repr(error))
                    return replay.answer(ReplayOutcome.FAILED_AGAIN, change, repr(error))
                return replay.answer(ReplayOutcome.KEPT, change, "the partition has gone to another worker")

    async def lose(self, partitions: frozenset[int]) -> None:
        """Forgets the rows of partitions that this worker has lost; waits for a handler that has one of them."""
        self.failures.lose(partitions)
        for place, entry in [(place, entry) for place, entry in self._blocked.items() if place[0] in partitions]:
            async with entry.lock:
                if self._blocked.get(place) is entry:
                    self._free(place)

    def _free(self, place: tuple[int, str]) -> None:
        del self._blocked[place]
        self._room.set()

    async def _block(self, change: Change, error: BaseException) -> None:
        while len(self._blocked) >= MAX_BLOCKED_ROWS and self._owned(change.partition):
            self._log.warning("blocked_rows.full", partition=change.partition)
            self._room.clear()
            await event_within(self._room, _LOOK_S)
        if self._owned(change.partition):
            self._stats.blocked += 1
            self._blocked[(change.partition, change.row_id)] = _Entry(change, repr(error))
            self.failures.note(change, RowFailure.BLOCKED, repr(error))

    async def _send(self, call: HandlerCall, error: BaseException, replay: Replay | None = None) -> bool:
        """Sends a dead letter until the stream has it, or the partition is lost; returns whether the stream has it."""
        letter = dead_letter_of(
            call.change,
            error=repr(error)[:_ERROR_CHARS],
            worker_id=self._config.worker_id,
            tries=self._config.handler_tries,
            observer=self._config.observe,
            replays=0 if replay is None else replay.replays + 1,
        )
        replay_id = "" if replay is None else replay.id
        sent = await self._sender.send(letter, replay_id=replay_id, pause=call.pause, is_void=lambda: call.lost)
        self._stats.dead_letters += sent
        return sent

    def _not_sent(self, letter: DeadLetter, error: Exception) -> None:
        self._stats.dead_letter_failures += 1
        self._log.warning("dead_letter.publish_failed", partition=letter.partition, error=repr(error))
