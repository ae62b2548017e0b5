"""Broken migrations between peers and exclusive ownership. Each takes one rule away; the judge has to notice each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs
from ringcast._protocol.sticky.leader import Leader, Step, View
from ringcast._protocol.sticky.migration import Guard
from ringcast._protocol.sticky.ownership import Ownership
from ringcast._protocol.sticky.succession import Succession
from ringcast_wire.migrating import Step as OperatorStep
from ringcast_wire.owner_records import Phase, Rule, Session, State, Table

from tests.simulation.sticky_machines import Machines
from tests.simulation.sticky_migration import MigratingWorld, SuccessorWorld
from tests.simulation.sticky_variants import Variant


class NoFenceForPeers(Ownership):
    """Goes on with its share by the peer rule after its fence has passed."""

    def poll(self, now: float) -> None:
        if self.rule is not Rule.PEERS:
            super().poll(now)


class DoesNotWaitForPeers(Leader):
    """Has owners begin as soon as the peers were told to stop."""

    def _governed(self, view: View, table: Table, sessions: Mapping[str, Session], now: float) -> Table:
        waits_for_none = table._replace(peers=()) if table.rule is Rule.NOBODY else table
        return super()._governed(view, waits_for_none, sessions, now)


class ForgetsASession(Leader):
    """Goes back without waiting for the owners that it has not heard of for a while."""

    def _governed(self, view: View, table: Table, sessions: Mapping[str, Session], now: float) -> Table:
        after = super()._governed(view, table, sessions, now)
        if table.rule is Rule.OWNERS and after.rule is Rule.NOBODY:
            running = set(sessions.values())
            return after._replace(peers=tuple(each for each in after.peers if each in running))
        return after


class GoesBackAtOnce(Leader):
    """Has peers begin while owners have calls."""

    def _governed(self, view: View, table: Table, sessions: Mapping[str, Session], now: float) -> Table:
        after = super()._governed(view, table, sessions, now)
        if table.rule is Rule.OWNERS and after.rule is Rule.NOBODY:
            if any(entry.phase is not Phase.HELD for entry in table.entries):
                return table
            return after._replace(rule=Rule.PEERS, peers=tuple(sorted(sessions.values())))
        return after


class SwitchesUnvalidated(Leader):
    """Believes that every worker is guarded."""

    def step(self, view: View, now: float) -> Step:
        states = {name: structs.replace(state, guarded=1) for name, state in view.states.items()}
        return super().step(replace(view, states=states), now)


class LetsGoAtOnce(Guard):
    """Is not guarded any more as soon as it hears of the step back."""

    def heard(self, step: OperatorStep) -> None:
        super().heard(step)
        if self.step.number == step.number and not self.number:
            self.is_on = False

    def saw(self, table: Table | None, said: int | None) -> None:
        """Does not matter."""


class KnowsNoLaterProcess(Succession):
    """Goes on, and says what it is, whatever process has had its id since."""

    def is_over(self, said: State | None) -> bool:
        return False


class StopsInWordsOnly(Ownership):
    """Says that it has stopped while calls of the rule before run."""

    @property
    def is_draining(self) -> bool:
        return False


VARIANTS: Final[Mapping[str, Variant]] = {
    "no_fence_for_peers": Variant(
        Machines(ownership=NoFenceForPeers), "serves by the peer rule after its fence has passed"
    ),
    "does_not_wait_for_peers": Variant(
        Machines(leader=DoesNotWaitForPeers), "has owners begin before the peers have stopped"
    ),
    "switches_unvalidated": Variant(
        Machines(leader=SwitchesUnvalidated, is_validated=False), "switches though not every worker is guarded"
    ),
    "forgets_a_session": Variant(
        Machines(leader=ForgetsASession), "goes back without waiting for owners that are cut off"
    ),
    "goes_back_at_once": Variant(Machines(leader=GoesBackAtOnce), "has peers begin while owners have calls"),
    "lets_go_at_once": Variant(
        Machines(guard=LetsGoAtOnce), "is not guarded any more before the table is back at the peer rule"
    ),
    "takes_anothers_state_for_its_own": Variant(
        Machines(knows_its_own=False), "is let go by what another process of its id has said", 400
    ),
    "knows_no_later_process": Variant(
        Machines(succession=KnowsNoLaterProcess), "goes on where another process of its id has come after it"
    ),
    "counts_only_registrations": Variant(
        Machines(counts_left=False), "switches without a halted worker whose registration its agent has deleted"
    ),
    "takes_a_lost_step_for_none": Variant(
        Machines(waits_for_step=False), "begins by the peer rule where it finds no step, though NATS may have lost it"
    ),
    "stops_in_words_only": Variant(
        Machines(ownership=StopsInWordsOnly), "says that it has stopped while calls of the rule before run"
    ),
}


def world(name: str, seed: int) -> MigratingWorld:
    """The world that a variant is tried in. What one needs two of 24,000 seeds of ``MigratingWorld`` came to."""
    kind = SuccessorWorld if name == "knows_no_later_process" else MigratingWorld
    return kind(seed, VARIANTS[name].machines)
