"""The keys of a worker in a store of peers, which may get exclusive ownership while they are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ringcast_wire import EventLog

from ringcast._cache.cache import Cache
from ringcast._common.stats import Trigger
from ringcast._coordination.sticky.ownership import ExclusiveCoordinator
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast._worker.exclusive import ExclusiveKeys, KeyGate, Wish
from ringcast._worker.session import KeySession


class MigratingKeys(ExclusiveKeys):
    """The participant of a store that migrates. A key is served by the peer rule, or it is guarded.

    A key that is not guarded is not told what the table says. What the peer rule gives it counts as prepared at once,
    so that it goes on undisturbed when it gets guarded. Nothing is fetched for the plan before that.
    """

    def __init__(
        self,
        sessions: Mapping[str, KeySession],
        log: EventLog,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None],
        cache: Cache | None,
    ) -> None:
        super().__init__(sessions, log)
        self._spawn = spawn
        self._cache = cache
        self._bound_s = 0.0
        self._guarded: set[str] = set()
        self._begun: set[str] = set()
        """Keys that are registered, and whose step is known."""
        self._shares: dict[str, tuple[frozenset[int], Trigger]] = {}
        """What the peer rule has for this worker, and what has brought it about."""
        self._strays: dict[str, asyncio.Task[None]] = {}

    # ---- the peer rule

    def assign(self, key: str, partitions: frozenset[int], trigger: Trigger) -> None:
        """The peer rule has these partitions for this worker."""
        self._shares[key] = partitions, trigger
        session = self._sessions[key]
        if key in self._guarded:
            if not partitions:
                session.ownership.has_no_share()
        elif key in self._begun:
            self._share(key)

    def may_begin(self, key: str) -> None:
        """Calls of a key may start, unless it is guarded."""
        if key in self._begun:
            return
        self._begun.add(key)
        if key not in self._guarded:
            self._share(key)

    def _share(self, key: str) -> None:
        """The share counts from now on. A key that has been guarded, or waits with what a cache had, begins with it."""
        if (share := self._shares.get(key)) is None:
            return
        session, (partitions, trigger) = self._sessions[key], share
        if session.machine.exclusive:
            session.ownership.become_shared(partitions)
        else:
            session.ownership.assign(partitions, trigger)
        self._look_at_prepared(key)

    def step_unknown(self, reason: str) -> None:
        """Keys wait for the step."""
        for key, session in self._sessions.items():
            if not reason:
                session.vitals.works("migration")
            elif key not in self._begun:
                session.vitals.fails("migration", reason)

    def may_have_migrated(self, may: bool) -> None:
        """Whether what is on the disk may be handed over when the worker starts again."""
        if self._cache is not None:
            self._cache.remember_migration(may)

    # ---- the coordinator

    def follow(self, coordinator: ExclusiveCoordinator, bound_s: float) -> None:
        """This coordinator lets calls start of keys that are guarded, and of no others."""
        self._coordinator, self._bound_s = coordinator, bound_s

    def unfollow(self) -> None:
        """There is no coordinator any more."""
        self._coordinator = None
        for key in self._sessions:
            self._wishes[key].clear()
            self._preparing[key].clear()

    def guarded(self, key: str, tokens: dict[int, int]) -> None:
        """From now on each call of a key is let start by the coordinator."""
        assert self._coordinator is not None
        session = self._sessions[key]
        self._guarded.add(key)
        self._gate(key, KeyGate(session, self._coordinator, self._bound_s, adopted=tokens))
        session.ownership.become_exclusive(tokens)
        self._wanted[key] = frozenset(session.machine.partitions)
        if (strays := self._spawn(self._wait_for_strays(key))) is not None:
            self._strays[key] = strays
        self._log.info("migration.guarded", key=key, partitions=len(tokens))
        if preparing := dict(self._preparing[key]):
            self._do(key, Wish.PREPARE, preparing)
            self._look_at_prepared(key)

    async def _wait_for_strays(self, key: str) -> None:
        """Waits for the disk, too: a process that begins with what it has must not hand it over unasked."""
        await self._sessions[key].applier.strays_ended()
        if self._cache is not None:
            await self._cache.knows_migration()
        if self._coordinator is not None:
            self._coordinator.strays_ended(key)

    def let_go(self, key: str) -> None:
        """From now on calls of a key need not be let start: its partitions are those of the peer rule."""
        assert self._coordinator is not None
        session = self._sessions[key]
        if (strays := self._strays.pop(key, None)) is not None:
            strays.cancel()
        for number in range(session.machine.partition_count):
            if self._coordinator.state_of(key, number) is OwnedState.DRAINING:
                self._coordinator.end_last_call(key, number)
        self._guarded.discard(key)
        session.applier.gate = None
        if (gate := self._gates.pop(key, None)) is not None:
            gate.extend(None)  # nothing bounds the calls of peers, nor those that have become such
        session.vitals.works("session")
        self._log.info("migration.let_go", key=key)
        if key in self._begun:
            self._share(key)

    def session_changed(self, key: str, runs: bool) -> None:
        """Of a key that is not guarded no session is needed."""
        if key in self._guarded:
            super().session_changed(key, runs)

    def settled(self, key: str, partitions: frozenset[int]) -> None:
        """What the table says counts for keys that are guarded."""
        if key in self._guarded:
            super().settled(key, partitions)

    def _do(self, key: str, wish: Wish, tokens: dict[int, int]) -> None:
        if key in self._guarded:
            super()._do(key, wish, tokens)
            return
        assert self._coordinator is not None
        match wish:
            case Wish.PREPARE:
                self._preparing[key].update(tokens)
            case Wish.ACTIVATE:
                pass  # it is owned, by the peer rule
            case Wish.STOP:
                for number in tokens:
                    self._coordinator.end_last_call(key, number)
            case Wish.FORGET:
                for number in tokens:
                    self._preparing[key].pop(number, None)

    def _look_at_prepared(self, key: str) -> None:
        if key in self._guarded:
            super()._look_at_prepared(key)
        elif self._coordinator is not None:
            preparing, owned = self._preparing[key], self._sessions[key].machine.owned()
            for number in [each for each in preparing if each in owned]:
                self._coordinator.ready(key, number, preparing.pop(number))

    # ---- the end

    async def give_up(self) -> None:
        """Makes the last calls of all keys. To be called once nothing hands changes over any more."""
        if self._coordinator is not None:
            await super().give_up()
