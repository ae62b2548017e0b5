"""Broken machines of exclusive ownership. Each takes one rule away; the judge has to notice every one."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from msgspec import structs
from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.fence import Fence
from ringcast._protocol.sticky.leader import Leader, Step, View, WriteTable
from ringcast._protocol.sticky.ownership import Aim, Deed, OwnedInput, OwnedPartition, Ownership
from ringcast._protocol.sticky.plan import Wishes
from ringcast._protocol.sticky.witness import Witness
from ringcast_wire.owner_records import Phase, Session, State, Table

from tests.simulation.sticky_machines import Machines


class NoFence(Fence):
    """Starts calls whenever it has the partition."""

    def passed(self, now: float) -> bool:
        return False


class TrustsTheMarker(LeaseEvidence):
    """Takes a lease that the server does not have any more for the end of its worker."""

    def __init__(self, give_away_s: float) -> None:
        super().__init__(give_away_s)
        self._missing: frozenset[str] = frozenset()

    def answered(self, asked: Collection[str], found: Mapping[str, int], own_revision: int, now: float) -> None:
        super().answered(asked, found, own_revision, now)
        self._missing = frozenset(asked) - found.keys()

    def is_over(self, session: Session, now: float) -> bool:
        return session.lease in self._missing or super().is_over(session, now)


class HearsNothing(LeaseEvidence):
    """Takes silence for the end: it does not ask whether it is cut off itself."""

    def is_over(self, session: Session, now: float) -> bool:
        heard = self._heard.get(session.lease)
        is_silent = heard is not None and heard.revision >= session.number and now - heard.at >= self._give_away_s
        return is_silent or super().is_over(session, now)


class GivesAwayEarly(LeaseEvidence):
    """Waits for less than the calls of a dead worker may take."""

    def __init__(self, give_away_s: float) -> None:
        super().__init__(give_away_s * 0.25)


class ActivatesEarly(Ownership):
    """Takes a partition up as soon as its owner was told to stop."""

    def _aim(self, number: int) -> tuple[Aim, int]:
        aim, token = super()._aim(number)
        is_drained = self._table is not None and self._table.entries[number].phase is Phase.DRAIN
        return (Aim.HOLD, token) if aim is Aim.OFFER and is_drained else (aim, token)


class ResumesItsToken(Ownership):
    """Goes on with what it had, once a refresh succeeds after its fence has passed."""

    def refreshed(self, asked_at: float, revision: int, now: float, *, continued: bool = True) -> None:
        super().refreshed(asked_at, revision, now, continued=True)

    def poll(self, now: float) -> None:
        self._settle()  # the session does not end

    def begin_call(self, partition: int, now: float) -> int | None:
        return None if self._fence.passed(now) else super().begin_call(partition, now)


class ReleasesBeforeTheLastCall(Ownership):
    """Says that it has released a partition while the application is still to be told that it has lost it."""

    def _do(self, owned: OwnedPartition, happened: OwnedInput, deed: Deed) -> None:
        super()._do(owned, happened, deed)
        owned.owes_last = False

    def begin_last_call(self, partition: int, now: float) -> int | None:
        if self._fence.passed(now):
            return None
        self._partitions[partition].calls += 1
        return self._partitions[partition].token


class LeaderWithMemory(Leader):
    """Goes on from the table that it wrote last, and not from the one that is there."""

    _mine: Table | None = None

    def step(self, view: View, now: float) -> Step:
        is_leader = view.term is not None and view.term.leader == self._worker_id
        if is_leader and self._mine is not None and view.table is not None:
            view = replace(view, table=self._mine._replace(epoch=max(self._mine.epoch, view.table.epoch)))
        step = super().step(view, now)
        if isinstance(step.write, WriteTable):
            self._mine = step.write.table
        return step


class IgnoresWishes(Leader):
    """Plans as if no operator wanted anything."""

    def step(self, view: View, now: float) -> Step:
        return super().step(replace(view, wishes=Wishes()), now)


class FoundsAtOnce(Leader):
    """Writes a first table while workers act by one that was lost."""

    def _found(self, view: View, sessions: Mapping[str, Session], now: float) -> WriteTable | None:
        unaware = {name: structs.replace(state, seen=0) for name, state in view.states.items()}
        return super()._found(replace(view, states=unaware), sessions, now)


class ForgetsTheOneBefore(Ownership):
    """Overwrites what a process before it has said of itself. ``test_sticky.py`` has the case: few seeds come to it."""

    def replaces(self, before: State, now: float) -> None:
        pass


class TrustsAClosedSocket(Witness):
    """Takes the end of a connection for the end of the process."""

    def forget(self, process: Hashable) -> None:
        self.ended(process)


class Variant(NamedTuple):
    """Machines with one rule less, what they do in a few words, and within how many seeds that has to be noticed."""

    machines: Machines
    what: str
    within: int = 60


VARIANTS: Final[Mapping[str, Variant]] = {
    "no_fence": Variant(Machines(fence=NoFence), "starts calls after its fence has passed"),
    "trusts_the_marker": Variant(
        Machines(evidence=TrustsTheMarker), "takes a lease that the server no longer has for the end of its worker"
    ),
    "takes_silence_for_the_end": Variant(
        Machines(evidence=HearsNothing), "gives away what it has heard nothing of, though it may be cut off itself"
    ),
    "gives_away_early": Variant(Machines(evidence=GivesAwayEarly), "waits a quarter as long for a dead worker"),
    "activates_before_released": Variant(
        Machines(ownership=ActivatesEarly), "takes a partition up before its owner has released it"
    ),
    "resumes_its_token": Variant(
        Machines(ownership=ResumesItsToken), "goes on with its tokens after its fence has passed, once it has a refresh"
    ),
    "releases_before_the_last_call": Variant(
        Machines(ownership=ReleasesBeforeTheLastCall), "says that it has released a partition before `on_revoked`"
    ),
    "leader_with_memory": Variant(
        Machines(leader=LeaderWithMemory), "goes on from the table that it wrote last, not from the one that is there"
    ),
    "founds_at_once": Variant(
        Machines(leader=FoundsAtOnce), "writes a table in place of a lost one while workers act by that"
    ),
    "ignores_wishes": Variant(Machines(leader=IgnoresWishes), "plans as if no operator wanted anything"),
    "trusts_a_closed_socket": Variant(
        Machines(witness=TrustsAClosedSocket), "takes a closed connection to an agent for the end of a process"
    ),
    "table_without_compare_and_set": Variant(Machines(is_compared=False), "writes the table whatever stands there"),
}
