"""What the leader of a key writes next.

Each step is one compare-and-set on the revision of the table that it was computed from. What a step relies on stays
true once it is true, so it does no harm when two processes believe that they lead, or when one goes on after a long
halt. The leader keeps clocks and nothing else: a successor starts them again, and loses some time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from ringcast_wire.ended_sessions import Span
from ringcast_wire.migrating import may_own
from ringcast_wire.owner_records import MAX_MOVING, Entry, Phase, Rule, Session, State, Table, Term

from ringcast._protocol.sticky.balance import Balance, HotPartition
from ringcast._protocol.sticky.clocks import Clocks
from ringcast._protocol.sticky.evidence import LeaseEvidence
from ringcast._protocol.sticky.gathering import Gathering
from ringcast._protocol.sticky.loads import KeyLoad
from ringcast._protocol.sticky.migration import governed
from ringcast._protocol.sticky.passed_over import PassedOver
from ringcast._protocol.sticky.plan import Wishes, planned

TOUCH_S: Final = 6 * 3600.0
"""How often the term and the table are written again: the bucket deletes what was not written for a day."""
_STAGGER_MOST: Final = 20
"""A candidate waits for no more others than so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderTimes:
    """How long the leader waits, in seconds on its own clock."""

    quiet_s: float = 1.0
    """A cold start, and a change that is planned, wait until the members were the same for so long,"""
    quiet_most_s: float = 10.0
    """or until so long after the first change."""
    prepare_s: float = 60.0
    """A worker that was offered a partition and has not prepared it by then is passed over,"""
    passed_over_s: float = 300.0
    """for so long."""
    stagger_s: float = 0.5
    """Each candidate for the term gives the ones before it so long to take it."""
    touch_s: float = TOUCH_S
    gather_s: float = 0.2
    """Partitions that are prepared or released wait for others that are about to be, for so long at most: every write
    of the table goes to all workers. Nobody serves those that are released, so none waits for longer than it took."""
    rest_s: float = 60.0
    """After partitions have moved, none moves for so long because of loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one process sees of a key in the bucket. A revision is 0 where there is no record and never was one."""

    term: Term | None = None
    term_revision: int = 0
    table: Table | None = None
    table_revision: int = 0
    states: Mapping[str, State] = field(default_factory=dict)
    """By worker."""
    states_revision: int = 0
    """The highest of any of them. It counts where there is no table."""
    live: frozenset[str] = frozenset()
    """Workers whose leases are believed to live: a hint, by which the leader plans and gives nothing away."""
    gone: Mapping[str, Span] = field(default_factory=dict)
    """By worker, sessions whose process has ended, as its own agent says."""
    wishes: Wishes = field(default_factory=Wishes)
    rule: Rule = Rule.OWNERS
    """What the operator wants of a store that migrates,"""
    step: int = 0
    """as of the step of this number."""
    shares: tuple[str | None, ...] = ()
    """The worker of each partition by the peer rule, as far as it is known."""
    loads: Mapping[str, KeyLoad] | None = None
    """What workers report of the loads of their partitions; ``None``: they have not been read yet."""


@dataclass(frozen=True, slots=True)
class TakeTerm:
    """Write the term, if its revision is still ``last``."""

    term: Term
    last: int


@dataclass(frozen=True, slots=True)
class WriteTable:
    """Write the table, if its revision is still ``last``.

    ``founds``: there was none. Then ``last`` is that of the newest record of a leader, its term or a marker of a table:
    had another one led since, its table may be lost too, and nothing but its term would show it.
    """

    table: Table
    last: int
    founds: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The next write, if any, and when to look again if nothing changes before.

    ``passed_over``: partitions whose next owner has not prepared them in time, with its worker id, for the log.
    """

    write: TakeTerm | WriteTable | None = None
    wake_at: float | None = None
    passed_over: tuple[tuple[int, str], ...] = ()


class Leader:
    """One process that leads a key, or stands by to lead it."""

    def __init__(
        self, worker_id: str, partitions: int, evidence: LeaseEvidence, give_away_s: float, times: LeaderTimes
    ):
        self._worker_id = worker_id
        self._partitions = partitions
        self._evidence = evidence
        self._give_away_s = give_away_s
        self._times = times
        self._records = Clocks()
        self._prepares = Gathering(times.gather_s, are_dark=False)
        self._drains = Gathering(times.gather_s, are_dark=True)
        self._balance = Balance(times.rest_s)
        self._passed_over = PassedOver(times.prepare_s, times.passed_over_s)
        self._members: frozenset[tuple[str, bool, int]] = frozenset()
        self._noted: Table | None = None
        """The table seen last, and the sessions that it names: most changes of the view are not of it."""
        self._named: frozenset[Session] = frozenset()
        self._changed_at = self._first_change_at = 0.0
        self._is_settled = False
        self._wake_at: float | None = None

    def step(self, view: View, now: float) -> Step:
        """What to do now. Call it after every change of the view, and at ``wake_at``."""
        self._wake_at = None
        sessions = _sessions(view)
        self._note(view, sessions, now)
        if view.term is None or view.term.leader != self._worker_id:
            return Step(self._candidacy(view, sessions, now), self._wake_at)
        self._records.keep({("term", view.term_revision), ("table", view.table_revision)})
        if self._is_due(("term", view.term_revision), self._times.touch_s, now):
            return Step(TakeTerm(view.term, view.term_revision), now)
        if view.table is None:
            return Step(self._found(view, sessions, now), self._wake_at)
        return self._lead(view, view.table, sessions, now)

    @property
    def hot(self) -> tuple[HotPartition, ...]:
        """The hot partitions, the hottest first, as far as this process leads and knows loads."""
        return self._balance.hot

    @property
    def skew(self) -> float:
        """The load of the busiest worker over the mean of all; 0 as long as nothing is known."""
        return self._balance.skew

    @property
    def passed_over(self) -> int:
        """How many workers get no partitions now, since they have not prepared in time what they were offered."""
        return len(self._passed_over.names)

    def _is_due(self, clock: object, after_s: float, now: float) -> bool:
        """Whether something has been as it is for so long; if not, the leader looks again then."""
        due = self._records.since(clock, now) + after_s
        if now < due:
            self._wake(due)
        return now >= due

    def _wake(self, at: float) -> None:
        self._wake_at = at if self._wake_at is None else min(self._wake_at, at)

    def _note(self, view: View, sessions: Mapping[str, Session], now: float) -> None:
        """Starts the clocks of whatever is seen for the first time."""
        members = frozenset((name, view.states[name].leaving, view.states[name].capacity) for name in sessions)
        if members != self._members:
            if self._is_settled or not self._members:
                self._first_change_at = now
            self._members, self._changed_at, self._is_settled = members, now, False
        if view.table is not self._noted:
            self._noted, self._named = view.table, view.table.sessions() if view.table is not None else frozenset()
        named = self._named.union(sessions.values(), _acting(view) if view.table is None else ())
        for session in named:
            self._evidence.note(session, now)
            current = sessions.get(session.worker_id)
            if current is not None:
                self._evidence.succeeded(session, current, now)
        self._evidence.keep(named)

    def _is_quiet(self, now: float) -> bool:
        """Whether the members have been the same for long enough, or have changed for too long."""
        times = self._times
        due = min(self._changed_at + times.quiet_s, self._first_change_at + times.quiet_most_s)
        if now < due:
            self._wake(due)
        else:
            self._is_settled = True
        return now >= due

    def _candidacy(self, view: View, sessions: Mapping[str, Session], now: float) -> TakeTerm | None:
        """Takes the term of a leader that is gone, if the candidates before this one do not."""
        if self._worker_id not in sessions or (view.term is not None and _lives(view, view.term.leader)):
            self._records.keep(set())
            return None
        place = min(sorted(sessions).index(self._worker_id), _STAGGER_MOST)
        if not self._is_due(("vacant", view.term_revision), place * self._times.stagger_s, now):
            return None
        return TakeTerm(Term(leader=self._worker_id), view.term_revision)

    def _found(self, view: View, sessions: Mapping[str, Session], now: float) -> WriteTable | None:
        """The first table of a key, or the one after a table was lost: then no owner of that may be left."""
        seen = (state.seen for state in view.states.values())
        numbers = (session.number for session in sessions.values())
        # Who has acted by a lost table, and acts by none now, has said both since: its epoch is not used again.
        newest = max(view.term_revision, view.table_revision, view.states_revision, *seen, *numbers)
        if acting := _acting(view):
            missed = ("table", view.table_revision)
            is_over = self._is_due(missed, self._give_away_s, now)
            written = self._evidence.wrote_since(self._records.since(missed, now))
            # That a worker is not believed to live proves nothing: the leader may be answered by a server that lags.
            goes_on = [session for session in acting if not self._acts_no_more(view, session, now)]
            for session in goes_on:
                self._wake(self._evidence.provable_at(session))
            if not (is_over and written) or goes_on:
                return None
            newest = max(newest, written)
        if view.rule is Rule.OWNERS and not may_own(view.step, view.states, view.gone):
            return None
        if not self._is_quiet(now):
            return None
        targets = planned(list(view.shares) or [None] * self._partitions, self._taking(view, sessions), view.wishes)
        if targets is None and view.rule is Rule.OWNERS:
            return None
        # The epoch of a lost table was at most the revision of its write, and that came before the table was missed.
        epoch = newest + 1
        entries = tuple(Entry(sessions.get(name), epoch) for name in targets or ("",) * self._partitions)
        peers = tuple(sorted(sessions.values())) if view.rule is Rule.PEERS else ()
        last = max(view.term_revision, view.table_revision)
        return WriteTable(Table(epoch, entries, view.rule, epoch, peers, view.step), last, founds=True)

    def _taking(self, view: View, sessions: Mapping[str, Session]) -> dict[str, int]:
        """The capacities of the workers that may get partitions."""
        leaving = {name for name in sessions if view.states[name].leaving} | view.wishes.drains
        return {name: view.states[name].capacity for name in sessions if name not in leaving}

    def _lead(self, view: View, table: Table, sessions: Mapping[str, Session], now: float) -> Step:
        after = self._governed(view, table, sessions, now)
        if table.rule is Rule.OWNERS and after.rule is Rule.OWNERS:
            return self._own(view, table, after.step, sessions, now)
        entries = self._drafted(view, table, after, sessions, now)
        after = after._replace(entries=entries)
        is_touched = self._is_due(("table", view.table_revision), self._times.touch_s, now)
        for session in table.peers:
            if not _is_current(session, sessions):
                self._wake(self._evidence.provable_at(session))
        is_other = is_touched or after != table
        write = WriteTable(after._replace(epoch=table.epoch + 1), view.table_revision) if is_other else None
        return Step(write, self._wake_at)

    def _governed(self, view: View, table: Table, sessions: Mapping[str, Session], now: float) -> Table:
        return governed(
            table,
            sessions,
            view.states,
            view.rule,
            view.step,
            ended=view.gone,
            is_over=lambda session: self._is_session_over(view, session, now),
        )

    def _drafted(
        self, view: View, table: Table, after: Table, sessions: Mapping[str, Session], now: float
    ) -> Sequence[Entry]:
        """The entries while the table names no owners: who is to have what once it does."""
        if after.rule is Rule.OWNERS:
            return table.entries
        is_new = after.rule is Rule.NOBODY and table.rule is not Rule.NOBODY
        targets: tuple[str, ...] | None = None
        if is_new or self._is_quiet(now):
            present = list(view.shares) if after.rule is Rule.PEERS and view.shares else _names(table)
            targets = planned(present, self._taking(view, sessions), view.wishes)
        entries = []
        for number, entry in enumerate(table.entries):
            target = sessions.get(targets[number]) if targets is not None else entry.owner
            # What an owner may have released it never has again by the same token.
            entries.append(Entry(target, table.epoch + 1) if is_new or target != entry.owner else entry)
        return tuple(entries)

    def _own(self, view: View, table: Table, step: int, sessions: Mapping[str, Session], now: float) -> Step:
        passed_over = self._pass_over(view, table, now)
        quiet = self._is_quiet(now)
        targets = self._targets(view, table, sessions, now, quiet=quiet)
        over = {session for session in table.sessions() if self._is_session_over(view, session, now)}
        ready, is_due = self._gathered(view, table, over, now)
        moving = sum(entry.phase is not Phase.HELD for entry in table.entries)
        # Those that are to be released in this write make room for offers in it.
        offers, room = 0, MAX_MOVING - moving + sum(table.entries[number].phase is Phase.DRAIN for number in ready)
        is_urgent, epoch, entries = is_due, table.epoch + 1, []
        for number, entry in enumerate(table.entries):
            target = sessions.get(targets[number]) if targets is not None else None
            may_move = offers < room and (quiet or not _is_current(entry.owner, sessions))
            after = self._advanced(view, number, entry, target, epoch, over, may_move=may_move)
            if after is not entry and number not in ready:
                if entry.phase is Phase.HELD and after.phase is Phase.PREPARE:
                    offers += 1
                    is_urgent = is_urgent or offers <= MAX_MOVING - moving
                else:
                    is_urgent = True
            entries.append(after)
        write = None
        is_touched = self._is_due(("table", view.table_revision), self._times.touch_s, now)
        is_other = is_urgent and tuple(entries) != table.entries
        if is_touched or is_other or step != table.step:
            table_after = table._replace(epoch=epoch, entries=tuple(entries), step=step)
            write = WriteTable(table_after, view.table_revision)
        self._wake_for_evidence(table, sessions)
        return Step(write, self._wake_at, passed_over)

    def _gathered(self, view: View, table: Table, over: Set[Session], now: float) -> tuple[frozenset[int], bool]:
        """The partitions that go a step further in the next table, and whether they are to be written now."""
        # What an owner has that is over is given away at once.
        moves = [
            (number, entry)
            for number, entry in enumerate(table.entries)
            if entry.phase is not Phase.HELD and entry.owner not in over
        ]
        offered = {(number, entry.next_token) for number, entry in moves if entry.phase is Phase.PREPARE}
        prepared = {
            (number, entry.next_token) for number, entry in moves if _is_prepared(view, number, entry)
        } & offered
        drained = {(number, entry.token) for number, entry in moves if entry.phase is Phase.DRAIN}
        released = {
            (number, entry.token) for number, entry in moves if _has_let_go(view, number, entry, over)
        } & drained
        dues = self._prepares.due(offered, prepared, now), self._drains.due(drained, released, now)
        due = min((due for due in dues if due is not None), default=None)
        if due is not None and now < due:
            self._wake(due)
        return frozenset(number for number, _ in prepared | released), due is not None and now >= due

    def _advanced(
        self,
        view: View,
        number: int,
        entry: Entry,
        target: Session | None,
        epoch: int,
        over: Set[Session],
        *,
        may_move: bool,
    ) -> Entry:
        """The entry of a partition one step on, or as it is. ``over``: the sessions of which no call runs, nor will."""
        if entry.owner is None or _has_let_go(view, number, entry, over):
            if entry.owner is None and target is None:
                return entry
            is_offered = target is not None and target == entry.next
            return Entry(target, entry.next_token if is_offered else entry.token if target is None else epoch)
        match entry.phase:
            case Phase.HELD:
                if target is None or target.worker_id == entry.owner.worker_id or not may_move:
                    return entry
                return entry._replace(phase=Phase.PREPARE, next=target, next_token=epoch)
            case Phase.PREPARE:
                if target is None or target == entry.owner:
                    return Entry(entry.owner, entry.token)
                if target != entry.next:
                    return entry._replace(next=target, next_token=epoch)
                is_ready = _is_prepared(view, number, entry) and _lives(view, entry.owner.worker_id)
                return entry._replace(phase=Phase.DRAIN) if is_ready else entry
            case Phase.DRAIN:  # no way back: the owner may have let go already
                return entry if target == entry.next else entry._replace(next=target, next_token=epoch)

    def _is_session_over(self, view: View, session: Session, now: float) -> bool:
        """Whether no call of a session runs, and none can start. Once true, it stays true."""
        if _is_gone(view, session.worker_id, session.number):
            return True
        state = view.states.get(session.worker_id)
        if state is not None and state.lease == session.lease and state.first <= session.number <= state.ended:
            return True
        return self._evidence.is_over(session, now)

    def _acts_no_more(self, view: View, session: Session, now: float) -> bool:
        """Whether a worker that has acted by a lost table runs no call, and starts none. Once true, it stays true.

        What it says of ended sessions is not enough where none runs: its last one may not be among these yet.
        """
        if view.states[session.worker_id].session:
            return self._is_session_over(view, session, now)
        return self._evidence.is_over(session, now)

    def _targets(
        self, view: View, table: Table, sessions: Mapping[str, Session], now: float, *, quiet: bool
    ) -> tuple[str, ...] | None:
        """The worker that each partition is to get, in time; ``None``: no worker takes any."""
        fixed = self._passed_over.names
        taking = self._taking(view, sessions)
        if not taking.keys() - fixed:
            fixed = frozenset()  # of nobody else there is more to hope for
        able = sessions.keys() - fixed
        present = [_present(entry, able) for entry in table.entries]
        taking = {name: capacity for name, capacity in taking.items() if name not in fixed}
        kept = fixed & sessions.keys() - view.wishes.drains
        self._balance.note(table, view.loads, taking, now)
        if not view.wishes.by_load:
            return planned(present, taking, view.wishes, kept)
        targets = self._balance.targets(table, present, taking, view.wishes, kept, now, quiet=quiet)
        if self._balance.wake_at is not None:
            self._wake(self._balance.wake_at)
        return targets

    def _pass_over(self, view: View, table: Table, now: float) -> tuple[tuple[int, str], ...]:
        """Workers that were offered a partition and have not prepared it in time get none for a while."""
        late = self._passed_over.note(
            {
                (number, entry.next_token): entry.next.worker_id
                for number, entry in enumerate(table.entries)
                if entry.phase is Phase.PREPARE and entry.next is not None and not _is_prepared(view, number, entry)
            },
            now,
        )
        for at in self._passed_over.wakes():
            self._wake(at)
        return late

    def _wake_for_evidence(self, table: Table, sessions: Mapping[str, Session]) -> None:
        for entry in table.entries:
            if entry.owner is not None and not _is_current(entry.owner, sessions):
                self._wake(self._evidence.provable_at(entry.owner))


def _sessions(view: View) -> dict[str, Session]:
    """The sessions that run, as far as is known, of the workers that are believed to live."""
    return {
        name: Session(name, state.lease, state.session)
        for name, state in view.states.items()
        if state.session and _lives(view, name)
    }


def _acting(view: View) -> list[Session]:
    """The sessions of workers that have acted by a table, and have not said since that they act by none.

    Of a worker without a session it is the last one known of.
    """
    return [
        Session(name, state.lease, state.session or max(state.first, state.ended))
        for name, state in view.states.items()
        if state.seen
    ]


def _lives(view: View, worker_id: str) -> bool:
    """Whether a worker is believed to live. Its lease does for a while after its process has ended."""
    state = view.states.get(worker_id)
    return worker_id in view.live and not (state is not None and _is_gone(view, worker_id, state.session))


def _has_let_go(view: View, number: int, entry: Entry, over: Set[Session]) -> bool:
    """Whether no call with the entry's token runs, and none can start. Once true, it stays true."""
    owner = entry.owner
    if owner is None or owner in over:
        return True
    state = view.states.get(owner.worker_id)
    is_its_word = state is not None and (state.lease, state.session) == (owner.lease, owner.number)
    return is_its_word and state is not None and (number, entry.token) in state.released


def _is_gone(view: View, worker_id: str, number: int) -> bool:
    """Whether the process of a session is known to have ended."""
    span = view.gone.get(worker_id)
    return span is not None and span.has(number)


def _is_current(session: Session | None, sessions: Mapping[str, Session]) -> bool:
    return session is not None and sessions.get(session.worker_id) == session


def _is_prepared(view: View, number: int, entry: Entry) -> bool:
    """Whether the next owner has said that it is ready, in the session that it was asked in."""
    state = view.states.get(entry.next.worker_id) if entry.next is not None else None
    if state is None or entry.next is None or state.session != entry.next.number:
        return False
    return (number, entry.next_token) in state.prepared


def _names(table: Table) -> list[str | None]:
    return [entry.owner.worker_id if entry.owner is not None else None for entry in table.entries]


def _present(entry: Entry, able: Set[str]) -> str | None:
    """The worker that a partition goes to, as far as it is able to take it, or is at."""
    if entry.next is not None and entry.next.worker_id in able:
        return entry.next.worker_id
    return entry.owner.worker_id if entry.owner is not None else None
