"""A store that migrates, in one worker: it follows the operator's steps, and is guarded or let go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ringcast_wire.migrating import Step

from ringcast._coordination.sticky.leader import KeyLeader
from ringcast._coordination.sticky.ownership import KeyOwnership
from ringcast._coordination.sticky.records import OwnerRecords
from ringcast._protocol.sticky.migration import Guard


class GuardedParticipant(Protocol):
    """The worker of a store that migrates, as its coordinator sees it. None of its calls waits."""

    def guarded(self, key: str, tokens: dict[int, int], /) -> None:
        """From now on each call of a key needs ``begin_call``. What is owned goes on with these tokens, by partition.

        :meth:`StoreMigration.strays_ended` follows, once the calls have ended that run now.
        """

    def let_go(self, key: str, /) -> None:
        """From now on calls of a key need nothing: its partitions are those of the peer rule."""


class Migrates(NamedTuple):
    """What a worker has to do with the migration of its store when it joins."""

    step: Step
    """The operator's step, as far as it is known."""
    participant: GuardedParticipant
    has_called: bool = False
    """Whether calls may run already that nothing has let start."""
    let_go: Callable[[], None] = lambda: None
    """Called whenever a key has been let go."""


class KeyGuard:
    """One key. The participant is told whenever it is guarded or let go; before the first time it counts as let go."""

    def __init__(
        self,
        key: str,
        migrates: Migrates,
        owned: KeyOwnership,
    ) -> None:
        self._key = key
        self._owned = owned
        self._participant = migrates.participant
        self._tell_let_go = migrates.let_go
        self._guard = Guard(migrates.step, has_called=migrates.has_called)
        self._is_told = False

    @property
    def is_on(self) -> bool:
        """Whether every call needs to be let start."""
        return self._guard.is_on

    @property
    def waits_to_be_let_go(self) -> bool:
        """Whether calls of the key need to be let start, and the worker takes part in it."""
        return self._guard.is_on and not self._owned.is_closed

    @property
    def step(self) -> Step:
        """The latest step that is known of."""
        return self._guard.step

    def heard(self, step: Step) -> None:
        """The operator's step is this, or was it."""
        self._guard.heard(step)
        self.follow()

    def strays_ended(self) -> None:
        """The calls that ran when the participant was guarded have ended."""
        self._guard.strays_ended()
        self.follow()

    def follow(self) -> None:
        """Looks whether the worker is to be guarded, or let go: the table, or its own state, may be another."""
        if self._owned.state.was_deleted:
            self._guard.said_gone()
        self._guard.saw(self._owned.table, self._owned.said_guarded())
        if self._guard.is_on is not self._is_told:
            self._is_told = self._guard.is_on
            if self._is_told:
                self._participant.guarded(self._key, self._owned.tokens())
            else:
                self._participant.let_go(self._key)
                self._tell_let_go()
        self._owned.say_guarded(self._guard.number, is_free=not self._guard.is_on or self._guard.strays)


class StoreMigration:
    """All keys of a worker. To be told of each step, and of what the peer rule gives.

    The participant hears that it is guarded from the start with the first :meth:`heard`: before it starts any call.
    """

    def __init__(
        self,
        migrates: Migrates,
        worker_id: str,
        records: OwnerRecords,
        owned: Mapping[str, KeyOwnership],
        leaders: Mapping[str, KeyLeader],
    ) -> None:
        self._worker_id = worker_id
        self._records = records
        self._owned = owned
        self._leaders = leaders
        step = migrates.step
        self._guards = {key: KeyGuard(key, migrates, each) for key, each in owned.items()}
        records.heard(step.number)
        for leader in leaders.values():
            leader.heard(step)

    def heard(self, step: Step) -> None:
        """The operator's step is this, or was it: one that is overtaken does not count."""
        self._records.heard(step.number)
        for key, guard in self._guards.items():
            guard.heard(step)
            self._leaders[key].heard(guard.step)
            self._owned[key].records_changed()  # a table may count by now that followed a step not heard of
            guard.follow()

    def share(self, key: str, owners: tuple[str | None, ...]) -> None:
        """The peer rule has these workers for the partitions of a key, as far as it is known."""
        self._leaders[key].shares_are(owners)
        self._owned[key].share_is(frozenset(n for n, owner in enumerate(owners) if owner == self._worker_id))

    def strays_ended(self, key: str) -> None:
        """The calls of a key that ran when the participant was guarded have ended."""
        self._guards[key].strays_ended()

    def follow(self, key: str) -> None:
        """The records of a key may be others."""
        self._guards[key].follow()

    @property
    def guards_any(self) -> bool:
        """Whether calls of any key need to be let start."""
        return any(guard.is_on for guard in self._guards.values())

    @property
    def waits_to_be_let_go(self) -> bool:
        """Whether that is so of any key that the worker takes part in."""
        return any(guard.waits_to_be_let_go for guard in self._guards.values())

    def is_guarded(self, key: str) -> bool:
        """Whether every call of a key needs to be let start."""
        return self._guards[key].is_on
