"""What a step of a migration asks for, and what has to be so before an operator may take the next one.

``docs/sticky.md`` has the proof that relies on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from ringcast_wire._common import names
from ringcast_wire._ownership.migration import Migration, Stage
from ringcast_wire.ended_sessions import Span
from ringcast_wire.owner_records import Rule, State, Table

_DIGITS: Final = 20
"""Of a revision."""


class Step(NamedTuple):
    """A step of the operator. ``number`` rises with each: one that is overtaken does not count any more.

    ``is_back``: to the shadow, from a later stage.
    """

    stage: Stage
    number: int
    is_back: bool = False

    @classmethod
    def of(cls, migration: Migration) -> Step:
        """The step that a store is at."""
        return cls(migration.stage, migration.number, migration.is_back)

    @property
    def guards(self) -> bool:
        """Whether a worker that starts is guarded from its start: in between a table may have named owners."""
        return self.is_back or self.stage >= Stage.VALIDATE

    @property
    def rule(self) -> Rule:
        """The rule that the leader is to bring about."""
        return Rule.OWNERS if self.stage >= Stage.SWITCH else Rule.PEERS


def said_gone(headers: Mapping[str, str]) -> int | None:
    """Of the marker in place of a state: as of which revision of its registration an operator has said that its worker
    is gone; ``None``: none has said so."""
    value = headers.get(names.HEADER_GONE, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else None


def counted(registrations: Mapping[str, int], gone: Mapping[str, int]) -> set[str]:
    """The workers whose registrations count: all but those that were last written before an operator said that the
    worker is gone.

    ``registrations``: by worker, the revision of its registration, or of the marker of one that counts. ``gone``: by
    worker, as :func:`said_gone` has it. A later registration is another process's, or of one that is not gone.
    """
    return {name for name, revision in registrations.items() if revision > gone.get(name, -1)}


def possible_members(registered: Collection[str], states: Mapping[str, State], ended: Mapping[str, Span]) -> set[str]:
    """The workers of a key that may have calls that no table has let start.

    ``registered``: also those whose registration was deleted with a marker that says that calls may run, where that
    counts. A state that says that its worker is not guarded counts as well, unless its agent says that its process has
    ended (``ended``, by worker). A registration counts all the same: another process of this id may have written it.
    """
    return {*registered, *_unguarded_states(states, ended)}


def _unguarded_states(states: Mapping[str, State], ended: Mapping[str, Span]) -> set[str]:
    def is_over(name: str, session: int) -> bool:
        return name in ended and ended[name].has(session)

    return {name for name, state in states.items() if not (state.guarded or is_over(name, state.session))}


def unguarded(step: Step, members: Collection[str], states: Mapping[str, State]) -> frozenset[str]:
    """The members that have not said that they are guarded since ``step``: as long as there are some, none may switch.

    ``members``: every worker that may take part by the peer rule, whether it is believed to live or not.
    """
    return frozenset(name for name in members if name not in states or states[name].guarded < step.number)


def may_own(step: int, states: Mapping[str, State], ended: Mapping[str, Span]) -> bool:
    """Whether the table may name owners, as far as the states say; a store that does not migrate has no step."""
    return not step or not _unguarded_states(states, ended)


def may_end(step: Step, members: Collection[str], states: Mapping[str, State], table: Table | None) -> bool:
    """Whether the operator may go from the shadow to the end: nobody obeys a table, or has not heard of ``step``.

    A table that is lost is waited for where there are members: they may act by it, and the next has to be above it.
    """
    is_back = not members if table is None else table.rule is Rule.PEERS and table.step >= step.number
    return is_back and not any(states[name].guarded for name in members if name in states)


def may_finish(step: Step, members: Collection[str], table: Table | None) -> bool:
    """Whether the operator may go from the switch to the finish: owners are served, where there are workers at all.

    It is for the operator's sake, who can't go back from there: after the switch every worker is guarded anyhow.
    """
    return not members or (table is not None and table.rule is Rule.OWNERS and table.step >= step.number)
