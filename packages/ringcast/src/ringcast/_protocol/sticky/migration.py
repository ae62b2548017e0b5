"""The migration of a running store between a strategy of peers and exclusive ownership.

An operator takes steps, each with a higher number. A leader has the table follow: from one rule to the other there is
no way but over ``NOBODY``, and that ends once no call of the rule before can run. So that this can be known of a peer,
it has to be *guarded*: then it starts no call but those that the table lets start, before the fence of its session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ringcast_wire import Stage
from ringcast_wire.ended_sessions import Span
from ringcast_wire.migrating import Step, may_own
from ringcast_wire.owner_records import Rule, Session, State, Table


class Guard:
    """Whether a worker starts only calls that the table lets start.

    A worker that starts from ``VALIDATE`` on, or on the way back from there, begins guarded. One that runs already gets
    guarded when it hears of ``VALIDATE``. It is let go once the table is back at the peer rule, by the operator's step
    back, and the state of its session says that it is not guarded: no leader that has missed the step has a table name
    owners then. At ``OFF`` the table is back already, and that state is what counts. While the bucket has the state of
    another session it is not let go: another process of this id may have written that, which is what the operator and
    the leaders know of, and not this one.

    Calls that run when it gets guarded are ``strays``: no table has let them start, and nothing bounds them. It does
    not say that it is guarded before :meth:`strays_ended`. One that begins guarded has some where it ``has_called``: it
    has handed over what was on its disk.

    One that an operator has said is gone, and that is not, is guarded at once, and until it hears of a later step:
    owners may serve by now what it had.
    """

    def __init__(self, step: Step, *, has_called: bool = False) -> None:
        self._step = step
        self.is_on = step.guards
        self._is_doubted = False
        self.strays = self.is_on and has_called

    @property
    def step(self) -> Step:
        """The latest step that is known of."""
        return self._step

    @property
    def number(self) -> int:
        """What the worker's state says of it."""
        is_said = self.is_on and not self.strays and self._step.stage >= Stage.VALIDATE
        return self._step.number if is_said else 0

    def heard(self, step: Step) -> None:
        """The operator's step is this, or was it."""
        if step.number > self._step.number:
            self._step = step
            self._is_doubted = False
            self._turn(self.is_on or step.stage >= Stage.VALIDATE)

    def strays_ended(self) -> None:
        """The calls that ran when it got guarded have ended."""
        self.strays = False

    def said_gone(self) -> None:
        """An operator has said that this worker is gone: nothing that it knew of the table and of others counts."""
        self._is_doubted = True
        self._turn(self.is_on or self._step.stage is not Stage.OFF)

    def _turn(self, is_on: bool) -> None:
        self.strays = is_on and (self.strays or not self.is_on)
        self.is_on = is_on

    def saw(self, table: Table | None, said: int | None) -> None:
        """The worker acts by this table. ``said``: what the state of its session, which runs, has as ``guarded``, as
        the bucket has it; ``None`` where there is no such state."""
        if self._is_of_owners(table):
            self._turn(True)
        elif self.is_on and said == 0 and self._is_back(table):
            self._turn(False)

    def _is_of_owners(self, table: Table | None) -> bool:
        return self._step.stage is not Stage.OFF and table is not None and table.rule is not Rule.PEERS

    def _is_back(self, table: Table | None) -> bool:
        """Whether no table names owners, nor will before a later step."""
        if self._step.stage is Stage.OFF:
            return True
        has_followed = table is not None and table.step >= self._step.number
        return self._step.stage is Stage.SHADOW and has_followed and not self._is_doubted


def governed(
    table: Table,
    sessions: Mapping[str, Session],
    states: Mapping[str, State],
    wanted: Rule,
    step: int,
    *,
    ended: Mapping[str, Span],
    is_over: Callable[[Session], bool],
) -> Table:
    """The table with its rule, and the sessions that go with it, one step on: its next epoch begins a new rule.

    A leader that does not know of a later step than the table does leaves the rule alone.

    Args:
        sessions: those that run, by worker.
        ended: by worker, sessions whose process has ended, as its own agent says.
        is_over: whether no call of a session runs, and none can start.
    """
    epoch = table.epoch + 1
    knows = step >= table.step
    may_follow = knows and (wanted is Rule.PEERS or may_own(step, states, ended))
    after = table._replace(step=max(step, table.step))
    match table.rule:
        case Rule.OWNERS if knows and wanted is Rule.PEERS:
            owners = {entry.owner for entry in table.entries if entry.owner is not None}
            return after._replace(rule=Rule.NOBODY, since=epoch, peers=tuple(sorted(owners)))
        case Rule.OWNERS:
            return after
        case Rule.PEERS if may_follow and wanted is Rule.OWNERS:
            return after._replace(rule=Rule.NOBODY, since=epoch)
        case Rule.PEERS:
            kept = {session for session in table.peers if not is_over(session)}
            return after._replace(peers=tuple(sorted(kept | set(sessions.values()))))
        case Rule.NOBODY:
            have_stopped = all(is_over(each) or _has_stopped(each, table, states) for each in table.peers)
            if not (may_follow and have_stopped):
                return after
            peers = tuple(sorted(sessions.values())) if wanted is Rule.PEERS else ()
            return after._replace(rule=wanted, since=epoch, peers=peers)


def said_guarded(said: State | None, session: Session | None) -> int | None:
    """As of which step the bucket has a worker as guarded, by the state ``said`` of its id; 0: as not guarded.

    ``None``: no ``session`` of it runs, or that state is of another one, maybe of another process of its id.
    """
    return said.guarded if said is not None and session is not None and _is_of(said, session) else None


def _has_stopped(session: Session, table: Table, states: Mapping[str, State]) -> bool:
    """Whether a session has said that it has no calls of the rule before."""
    state = states.get(session.worker_id)
    return state is not None and _is_of(state, session) and state.stopped == table.since


def _is_of(state: State, session: Session) -> bool:
    return (state.lease, state.session) == (session.lease, session.number)
