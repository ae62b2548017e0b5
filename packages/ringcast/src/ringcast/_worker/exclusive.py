"""Exclusive ownership in a worker: what its coordinator wants of its keys, and what lets calls start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from enum import Enum, auto
from itertools import groupby
from typing import Final

from ringcast_wire import EventLog

from ringcast._common.stats import Trigger
from ringcast._coordination.sticky.ownership import ExclusiveCall, ExclusiveCoordinator
from ringcast._delivery.gate import CallEndedError
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast._worker.session import KeySession


class Wish(Enum):
    """What the coordinator wants of a partition."""

    PREPARE = auto()
    ACTIVATE = auto()
    STOP = auto()
    FORGET = auto()


class AdmittedCall:
    """A call that has been let start, and its time."""

    __slots__ = ("_call", "_gate", "_limit", "began_s", "partition")

    def __init__(self, call: ExclusiveCall, gate: KeyGate, partition: int) -> None:
        self.partition: Final = partition
        self._call = call
        self._gate = gate
        self._limit: asyncio.Timeout | None = None
        self.began_s: Final = time.monotonic()

    async def wait(self, awaitable: Awaitable[None]) -> None:
        """Waits for what the call gives, and cancels it when calls have to have ended.

        Raises:
            CallEndedError: it was cancelled. What it has returned or raised after that does not count.
        """
        limit = asyncio.timeout_at(self._gate.calls_until)
        try:
            async with limit:
                self._limit = limit
                await awaitable
        except Exception as error:
            if limit.expired():
                raise self._ended(limit) from error
            raise
        finally:
            self._limit = None
        if limit.expired():
            raise self._ended(limit)

    def _ended(self, limit: asyncio.Timeout) -> CallEndedError:
        now = asyncio.get_running_loop().time()
        return self._gate.cancelled(self, now - (limit.when() or now))

    def extend(self, until: float | None) -> None:
        """It may wait until this time of the loop, or for as long as it wants."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(until)

    def end(self) -> None:
        """The call has returned."""
        self._gate.ended(self)
        self._call.end()


class KeyGate:
    """A :class:`CallGate` of one key. ``bound_s``: what one call may take at most, as the store has it.

    ``calls_until``: when calls that wait are cancelled, by the loop's clock. Each refresh of the session moves that on;
    ``None``: never.

    ``adopted``: by partition, the tokens with which a peer has become an exclusive owner. Changes that were under way
    then have none: they are let through as long as the partition is owned with that token.
    """

    def __init__(
        self,
        session: KeySession,
        coordinator: ExclusiveCoordinator,
        bound_s: float,
        adopted: Mapping[int, int] | None = None,
    ) -> None:
        self.bound_s: Final = bound_s
        self._adopted = dict(adopted or {})
        self._session = session
        self._coordinator = coordinator
        self._running: dict[AdmittedCall, None] = {}
        self.calls_until: float | None = None

    def begin(self, partition: int, token: int | None = None) -> AdmittedCall | None:
        """Lets a call start."""
        call = self._coordinator.begin_call(self._session.key, partition)
        if call is None:
            self._session.machine.stats.fence_refusals += 1
            self._session.applier.lose({partition})
            return None
        if token == 0 and self._adopted.get(partition) == call.token:
            token = call.token
        if token is not None and token != call.token:
            self._session.machine.stats.fence_refusals += 1
            call.end()  # it was lost, and has come back: the change is of the time before
            return None
        return self._admit(call, partition)

    def begin_last(self, partition: int) -> AdmittedCall | None:
        """Lets ``on_revoked`` start."""
        call = self._coordinator.begin_last_call(self._session.key, partition)
        if call is None:
            self._session.machine.stats.fence_refusals += 1
            return None
        return self._admit(call, partition)

    def end_last(self, partition: int) -> None:
        """``on_revoked`` has returned, or there is none."""
        self._coordinator.end_last_call(self._session.key, partition)

    def _admit(self, call: ExclusiveCall, partition: int) -> AdmittedCall:
        admitted = AdmittedCall(call, self, partition)
        self._running[admitted] = None
        return admitted

    def extend(self, until: float | None) -> None:
        """Calls that run now, and those that start from now on, may wait until this time of the loop."""
        self.calls_until = until
        for call in self._running:
            call.extend(until)

    def cancelled(self, call: AdmittedCall, late_s: float) -> CallEndedError:
        """A call was cancelled, and has returned ``late_s`` after that; gives the error for it."""
        self._session.machine.stats.calls_ended += 1
        took_s = time.monotonic() - call.began_s
        facts = {"partition": call.partition, "seconds": round(took_s, 3), "late_s": round(late_s, 3)}
        self._session.log.warning("call.ended", **facts)
        return CallEndedError(f"the session is over that a call of partition {call.partition} started in")

    def ended(self, call: AdmittedCall) -> None:
        """A call has returned."""
        if call not in self._running:
            return
        del self._running[call]
        if (took_s := time.monotonic() - call.began_s) > self.bound_s:
            self._session.machine.stats.calls_over_bound += 1
            facts = {"partition": call.partition, "seconds": round(took_s, 3), "bound_s": self.bound_s}
            self._session.log.warning("call.over_bound", **facts)

    @property
    def over_bound_s(self) -> float:
        """For how long the oldest call has been running, if that is longer than the bound; else 0. From any thread."""
        oldest = next(iter(list(self._running)), None)
        running_s = 0.0 if oldest is None else time.monotonic() - oldest.began_s
        return running_s if running_s > self.bound_s else 0.0


class ExclusiveKeys:
    """The participant of an :class:`ExclusiveCoordinator`. Its wishes for a key are gathered, and done in ``acted``."""

    def __init__(self, sessions: Mapping[str, KeySession], log: EventLog) -> None:
        self._sessions = sessions
        self._log = log
        self._wishes: dict[str, list[tuple[Wish, int, int]]] = {key: [] for key in sessions}
        self._preparing: dict[str, dict[int, int]] = {key: {} for key in sessions}
        """Partitions that are being prepared, with the token that it is for."""
        self._wanted: dict[str, frozenset[int]] = dict.fromkeys(sessions, frozenset())
        """Partitions that events are wanted of. Those that a cache had are held before that."""
        self._coordinator: ExclusiveCoordinator | None = None
        self._gates: dict[str, KeyGate] = {}
        self._calls_until: dict[str, float] = {}

    def follow(self, coordinator: ExclusiveCoordinator, bound_s: float) -> None:
        """Has this coordinator let the calls of the application start. To be called once, before it runs."""
        self._coordinator = coordinator
        for key, session in self._sessions.items():
            self._gate(key, KeyGate(session, coordinator, bound_s))

    def _gate(self, key: str, gate: KeyGate) -> None:
        """Has a gate let the calls of a key start from now on."""
        session = self._sessions[key]
        gate.extend(self._calls_until.get(key))
        session.applier.gate = self._gates[key] = gate
        session.on_pumped = lambda: self._look_at_prepared(key)

    # ---- what the coordinator wants

    def prepare(self, key: str, partition: int, token: int) -> None:
        """Hold a partition; ``ready`` follows."""
        self._wishes[key].append((Wish.PREPARE, partition, token))

    def activate(self, key: str, partition: int, token: int) -> None:
        """Own it."""
        self._wishes[key].append((Wish.ACTIVATE, partition, token))

    def stop(self, key: str, partition: int, token: int) -> None:
        """Own it no more."""
        self._wishes[key].append((Wish.STOP, partition, token))

    def forget(self, key: str, partition: int, token: int) -> None:
        """Do not hold it."""
        self._wishes[key].append((Wish.FORGET, partition, token))

    def acted(self, key: str) -> None:
        """Does what was wanted since the last call. No job of the application ends in between."""
        wishes, self._wishes[key] = self._wishes[key], []
        for wish, group in groupby(wishes, lambda each: each[0]):
            self._do(key, wish, {partition: token for _, partition, token in group})
        self._look_at_prepared(key)

    def session_changed(self, key: str, runs: bool) -> None:
        """A session has begun, or its fence has passed."""
        vitals = self._sessions[key].vitals
        if not runs:
            vitals.fails("session", "the fence has passed, or the lease was lost: no partition is owned")
            return
        vitals.works("session")
        if not vitals.assigned:
            vitals.joins()

    def extended(self, key: str, until: float) -> None:
        """Calls that wait are to be cancelled at ``until``, by the loop's clock, and no longer at an earlier time."""
        self._calls_until[key] = until
        if (gate := self._gates.get(key)) is not None:
            gate.extend(until)

    def settled(self, key: str, partitions: frozenset[int]) -> None:
        """The share of this worker is known: what was restored of other partitions is given up."""
        session = self._sessions[key]
        assert self._coordinator is not None
        held = frozenset(session.machine.partitions)
        kept = frozenset(number for number in held if self._coordinator.state_of(key, number) is not OwnedState.ABSENT)
        if kept != held:
            self._hold(session, kept)
        if not partitions:
            session.ownership.has_no_share()

    def revisions(self, key: str) -> dict[int, int]:
        """What each partition that is owned is at: up to there all changes have come in."""
        partitions = self._sessions[key].machine.partitions
        return {number: partition.expected for number, partition in partitions.items() if partition.owned}

    # ---- how it is done

    def _do(self, key: str, wish: Wish, tokens: dict[int, int]) -> None:
        session, preparing = self._sessions[key], self._preparing[key]
        held, numbers = frozenset(session.machine.partitions), frozenset(tokens)
        match wish:
            case Wish.PREPARE:
                preparing.update(tokens)
                if not numbers <= held & self._wanted[key]:
                    self._hold(session, held | numbers)
            case Wish.ACTIVATE:
                session.ownership.take_over(tokens, Trigger.LEAVE)
            case Wish.STOP:
                session.ownership.hand_back(numbers, Trigger.JOIN)
                self._skip_last_calls(session, numbers)
            case Wish.FORGET:
                for number in numbers:
                    preparing.pop(number, None)
                self._hold(session, held - numbers)

    def _hold(self, session: KeySession, numbers: frozenset[int]) -> None:
        self._wanted[session.key] = numbers
        session.ownership.hold(numbers)

    def _skip_last_calls(self, session: KeySession, numbers: frozenset[int]) -> None:
        """The application does not have to be told of partitions that it was not told that it has."""
        assert self._coordinator is not None
        for number in numbers:
            if not session.machine.announcements.revokes(number):
                self._coordinator.end_last_call(session.key, number)

    def _look_at_prepared(self, key: str) -> None:
        preparing = self._preparing[key]
        if not preparing:
            return
        assert self._coordinator is not None
        silent = self._sessions[key].machine.silent
        # All at once: what the coordinator then wants leads here again.
        current = {number: preparing.pop(number) for number in list(preparing) if silent.is_current(number)}
        for number, token in current.items():
            self._coordinator.ready(key, number, token)

    # ---- the end

    async def give_up(self) -> None:
        """Starts no call from now on, and makes the last ones: what the coordinator then says is that all have ended.

        To be called once nothing hands changes over any more.
        """
        assert self._coordinator is not None
        self._coordinator.close()
        for key, session in self._sessions.items():
            if known := session.machine.announcements.known:
                await session.applier.announce(key, False, known, at_end=True)
            for number in range(session.machine.partition_count):
                self._coordinator.end_last_call(key, number)
