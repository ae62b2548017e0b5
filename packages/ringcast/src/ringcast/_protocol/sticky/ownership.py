"""What a worker may do with the partitions of one key, and what it says of them.

Everything that changes the state of a partition stands in this file: ``TRANSITIONS`` has every way from one state to
another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ringcast_wire import NEWEST_WIRE_VERSION
from ringcast_wire.owner_records import MAX_MOVING, Phase, Rule, Session, State, Table

from ringcast._protocol.sticky.fence import Fence


class OwnedState(Enum):
    """How far a worker is with a partition."""

    ABSENT = auto()  # nothing is kept for it
    PREPARING = auto()  # it is being fetched; nothing is handed over
    PREPARED = auto()  # it is as current as an owner's; nothing is handed over
    ACTIVE = auto()  # calls may start, as long as the fence has not passed
    DRAINING = auto()  # no call starts but the last one, `on_revoked`; those that run end
    RELEASED = auto()  # no call runs, and none starts with the token it had


class OwnedInput(Enum):
    """What changes the state of a partition."""

    WANTED = auto()  # the table names this worker as its owner, or as the next one
    READY = auto()  # it has been prepared
    GRANTED = auto()  # it is prepared, and this worker owns it
    STOP = auto()  # the table wants it back, or the session is over
    ENDED = auto()  # no call runs any more, and the last one is made
    FORGOTTEN = auto()  # the table does not name this worker any more


TRANSITIONS: Final[Mapping[OwnedInput, Mapping[OwnedState, OwnedState]]] = {
    OwnedInput.WANTED: {
        OwnedState.ABSENT: OwnedState.PREPARING,
        OwnedState.RELEASED: OwnedState.PREPARING,
    },
    OwnedInput.READY: {
        OwnedState.PREPARING: OwnedState.PREPARED,
    },
    OwnedInput.GRANTED: {
        OwnedState.PREPARED: OwnedState.ACTIVE,
    },
    OwnedInput.STOP: {
        OwnedState.ABSENT: OwnedState.RELEASED,
        OwnedState.PREPARING: OwnedState.RELEASED,
        OwnedState.PREPARED: OwnedState.RELEASED,
        OwnedState.ACTIVE: OwnedState.DRAINING,
    },
    OwnedInput.ENDED: {
        OwnedState.DRAINING: OwnedState.RELEASED,
    },
    OwnedInput.FORGOTTEN: {
        OwnedState.PREPARING: OwnedState.ABSENT,
        OwnedState.PREPARED: OwnedState.ABSENT,
        OwnedState.RELEASED: OwnedState.ABSENT,
    },
}
"""What does not stand here can't happen."""


class TransitionError(AssertionError):
    """A partition was given an input that can't come in its state: the code is at fault."""


class Deed(Enum):
    """What the shell is to do."""

    PREPARE = auto()  # have it filtered, fetched and applied to memory, then call `ready`; again where rows were kept
    ACTIVATE = auto()  # hand over what is there, and then each change, with the token
    STOP = auto()  # start no call; those that run are given the rest of their time; then make the last one
    FORGET = auto()  # give its rows up


@dataclass(frozen=True, slots=True)
class Action:
    """A deed for one partition, with the token that it is for."""

    deed: Deed
    partition: int
    token: int


class Aim(Enum):
    """What the table wants of this worker's session, of one partition."""

    NOTHING = auto()
    KEEP = auto()  # an ended session of this worker had it: its rows may be of use
    OFFER = auto()  # it is next
    HOLD = auto()  # it owns it
    RELEASE = auto()  # it owns it, and is to stop


class OwnedPartition:
    """One partition of one worker."""

    __slots__ = ("calls", "number", "owes_last", "state", "token")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = OwnedState.ABSENT
        self.token = 0  # that it is prepared for, has, or has released
        self.calls = 0
        self.owes_last = False  # the last call is still to be made

    def on(self, happened: OwnedInput) -> None:
        """Goes over into the state that ``TRANSITIONS`` has for what has happened.

        Raises:
            TransitionError: there is none.
        """
        after = TRANSITIONS[happened].get(self.state)
        if after is None:
            raise TransitionError(f"partition {self.number} is {self.state.name}: it can't be {happened.name}")
        self.state = after
        if happened is OwnedInput.STOP:
            self.owes_last = after is OwnedState.DRAINING


class Ownership:
    """All partitions of a key in one worker.

    ``now`` is the worker's own monotonic clock, everywhere. Nothing waits. What is to be done is taken with
    :meth:`take_actions`, and :attr:`record` is what the worker's state in the bucket is to say: the shell writes it by
    compare-and-set whenever it is another, one write at a time.
    """

    def __init__(self, worker_id: str, lease: str, partitions: int, fence: Fence, *, capacity: int = 1) -> None:
        self._worker_id = worker_id
        self._lease = lease
        self._fence = fence
        self._capacity = capacity
        self._partitions = [OwnedPartition(number) for number in range(partitions)]
        self._table: Table | None = None
        self._seen = self._acts_since = 0
        self._number = self._first = self._last = self._ended = 0
        self._leaving = self._closed = self._is_broken = False
        self._last_until = self._calls_until = -math.inf
        self._inherited, self._inherited_until = 0, -math.inf
        """By which table a process before this one may act still, and until when."""
        self._actions: list[Action] = []
        self._share: frozenset[int] = frozenset()
        self._named: frozenset[int] = frozenset()
        """The partitions that the table names this worker for, in whatever session."""
        self._kept: set[int] = set()
        """The partitions that are not ``ABSENT``. The others are of no interest, unless named or shared."""
        self.agent = ""
        """The agent that sees this process end, if there is one."""
        self.guarded = 0
        """The operator's step since which no call starts that this does not let start; 0 if there are such calls."""
        self.is_free = False
        """Whether calls start that this does not let start."""

    @property
    def sessions(self) -> tuple[int, int]:
        """The first and the last session of this process, of those of which it is sure; 0 before there was one."""
        return self._first, self._last

    @property
    def session(self) -> Session | None:
        """The session that runs, as far as is known: the fence may have passed since."""
        return Session(self._worker_id, self._lease, self._number) if self._number else None

    @property
    def table(self) -> Table | None:
        """The table that the worker acts by."""
        return self._table

    @property
    def rule(self) -> Rule | None:
        """The rule of that table."""
        return self._table.rule if self._table is not None else None

    @property
    def record(self) -> State:
        """What the worker's state in the bucket is to say."""
        prepared: list[tuple[int, int]] = []
        released: list[tuple[int, int]] = []
        for number in self._kept:
            owned = self._partitions[number]
            if owned.state is OwnedState.PREPARED:
                # What the leader has to hear of: that it may go on.
                listed, said = prepared, Aim.OFFER
            elif owned.state is OwnedState.RELEASED:
                listed, said = released, Aim.RELEASE
            else:
                continue
            aim, token = self._aim(number)
            if aim is said and owned.token == token:
                listed.append((number, token))
        return State(
            lease=self._lease,
            session=self._number,
            first=self._first,
            ended=self._ended,
            # Not the epoch of each table: all workers would write their states with every step of the leader.
            seen=max(self._acts_since, self._inherited),
            prepared=tuple(sorted(prepared)[:MAX_MOVING]),
            released=tuple(sorted(released)[:MAX_MOVING]),
            leaving=self._leaving,
            capacity=self._capacity,
            agent=self.agent,
            stopped=self._stopped,
            # Once it is closed it never starts a call again.
            guarded=self.guarded or int(self._closed and not (self.is_free or self.is_draining)),
            wire=NEWEST_WIRE_VERSION,
        )

    @property
    def _stopped(self) -> int:
        has_stopped = self._table is not None and self._table.rule is Rule.NOBODY and not self.is_draining
        return self._table.since if self._table is not None and has_stopped else 0

    @property
    def wake_at(self) -> float | None:
        """When to poll next: the fence, while there is a session; and when no process before this one acts any more."""
        times = [self._fence.until] if self._number else []
        times += [self._inherited_until] if self._inherited and self._inherited_until < math.inf else []
        return min(times, default=None)

    @property
    def calls_until(self) -> float:
        """When the bound of the last call that may have started is up: the shell ends what waits then.

        While a session runs, each refresh moves this on. It stays where it is once the session is over, until the next
        begins: no call of the one before runs then. Minus infinity before there was one.
        """
        return self._bound_is_up() if self._number else self._calls_until

    @property
    def has_left(self) -> bool:
        """Whether a worker that leaves owns nothing any more, and runs no call."""
        if not self._leaving:
            return False
        table = self._table
        owns = table is not None and (
            any(_is_of(table.entries[number].owner, self._worker_id) for number in self._named)
            if table.rule is Rule.OWNERS
            else bool(self._share)
        )
        return not owns and not self.is_draining

    @property
    def is_draining(self) -> bool:
        """Whether a partition is to stop of which a call still runs, or the last one is to be made."""
        return any(self._partitions[number].state is OwnedState.DRAINING for number in self._kept)

    def state_of(self, partition: int) -> OwnedState:
        """How far this worker is with a partition."""
        return self._partitions[partition].state

    def tokens(self) -> dict[int, int]:
        """The partitions that are ``ACTIVE``, each with its token."""
        return {owned.number: owned.token for owned in self._kept_partitions() if owned.state is OwnedState.ACTIVE}

    def take_actions(self) -> list[Action]:
        """What is to be done, in order; each once."""
        taken, self._actions = self._actions, []
        return taken

    def refreshed(self, asked_at: float, revision: int, now: float, *, continued: bool = True) -> None:
        """The lease was refreshed with this revision; begins a session where there is none.

        ``asked_at``: when the refresh was sent. ``continued``: it took the place of a refresh of this process.
        Otherwise the lease was gone, and another process may have had it meanwhile: no session outlives that.
        """
        self.poll(now)  # first: an answer that comes after the fence does not undo that it has passed
        if self._number and not continued:
            self._end_session()
            self._settle()
        self._is_broken = self._is_broken or not continued
        self._fence.refreshed(asked_at)
        if not (self._number or self._closed or self.is_draining or self._fence.passed(now)) and revision > self._last:
            self._number = self._last = revision
            # Another process of this id may have had a session in between, and of that one nothing is said.
            self._first = self._first if self._first and not self._is_broken else revision
            self._is_broken = False
            self._inherited_until = min(self._inherited_until, now + self._fence.times.give_away_s)
            self._settle()

    def obey(self, table: Table | None, now: float) -> None:
        """The table is another; ``None``: it is gone. One that was overtaken is not gone back to."""
        self.poll(now)
        if table is None and self._table is not None:
            self._end_session(last_until=self._fence.until)
            self._table, self._named = None, frozenset()
        elif table is not None and table.epoch > self._seen and len(table.entries) == len(self._partitions):
            self._table, self._seen = table, table.epoch
            self._acts_since = self._acts_since or table.epoch
            self._named = table.naming(self._worker_id)
        else:
            return
        self._settle()

    def replaces(self, before: State, now: float) -> None:
        """The record is to take the place of this one. To be called before each look at a :attr:`record` to write.

        If it is that of another process, that one may act by its table still, however long it is cut off: what it has
        said goes on being said, until its fence has passed for certain. Otherwise a leader that misses the table would
        not wait for it. The time counts from a refresh of this process: after that the other one has none.
        """
        if before.seen and not before.first == self._first > 0:
            self._inherited = max(self._inherited, before.seen)
            self._inherited_until = now + self._fence.times.give_away_s if self._last else math.inf

    def share(self, partitions: frozenset[int], now: float) -> None:
        """What the peer rule gives this worker is another: it counts while the table has that rule."""
        self.poll(now)
        self._share = partitions
        self._settle()

    def ready(self, partition: int, token: int, now: float) -> None:
        """A partition has been prepared; what was prepared for a token that does not count any more is passed over."""
        self.poll(now)
        owned = self._partitions[partition]
        if owned.state is OwnedState.PREPARING and owned.token == token:
            self._go(owned, OwnedInput.READY)
            self._settle_one(owned)

    def begin_call(self, partition: int, now: float) -> int | None:
        """The token for one call that starts now, or ``None`` if none may. :meth:`end_call` follows."""
        self.poll(now)
        owned = self._partitions[partition]
        if owned.state is not OwnedState.ACTIVE:
            return None
        owned.calls += 1
        return owned.token

    def end_call(self, partition: int, now: float) -> None:
        """A call has ended."""
        owned = self._partitions[partition]
        owned.calls -= 1
        self._drain(owned, now)

    def begin_last_call(self, partition: int, now: float) -> int | None:
        """The token for the last call of a partition that is to stop: for ``on_revoked``. :meth:`end_call` follows.

        ``None``: the fence has passed, or the lease was lost: another worker may serve the partition by now.
        """
        self.poll(now)
        owned = self._partitions[partition]
        until = self._fence.until if self._number else self._last_until
        if not owned.owes_last or now >= until:
            return None
        owned.calls += 1
        return owned.token

    def end_last_call(self, partition: int, now: float) -> None:
        """The last call has ended, or there is none to make. The partition is not released before this."""
        owned = self._partitions[partition]
        owned.owes_last = False
        self._drain(owned, now)

    def _drain(self, owned: OwnedPartition, now: float) -> None:
        self.poll(now)
        if owned.state is OwnedState.DRAINING and _is_quiet(owned):
            self._settle_one(owned)
            self._note_ended()

    def poll(self, now: float) -> None:
        """Ends the session where the fence has passed."""
        if self._inherited and now >= self._inherited_until:
            self._inherited = 0
        if self._number and self._fence.passed(now):
            self._end_session()
            self._settle()

    def leave(self) -> None:
        """Has the leader give the partitions to others; goes on serving until :attr:`has_left`."""
        self._leaving = True

    def close(self) -> None:
        """Ends the session for good: no call starts from now on."""
        self._closed = True
        self._end_session(last_until=self._fence.until)
        self._settle()

    def _end_session(self, *, last_until: float = -math.inf) -> None:
        """``last_until``: when the fence of the session passes, if its last calls may still be made."""
        if self._number:
            self._calls_until = self._bound_is_up()
            self._number, self._last_until = 0, last_until

    def _bound_is_up(self) -> float:
        return self._fence.until + self._fence.times.call_s

    def _aim(self, number: int) -> tuple[Aim, int]:
        """What the table wants of this session for a partition, and the token that it is about."""
        if self._table is None:
            return Aim.NOTHING, 0
        entry, session = self._table.entries[number], self.session
        if self._table.rule is not Rule.OWNERS:
            return self._peer_aim(self._table, number, session)
        if session is not None and entry.owner == session:
            return (Aim.RELEASE if entry.phase is Phase.DRAIN else Aim.HOLD), entry.token
        if session is not None and entry.next == session:
            return Aim.OFFER, entry.next_token
        is_kept = _is_of(entry.owner, self._worker_id) or _is_of(entry.next, self._worker_id)
        return (Aim.KEEP if is_kept else Aim.NOTHING), 0

    def _peer_aim(self, table: Table, number: int, session: Session | None) -> tuple[Aim, int]:
        """While a store migrates: its own share, and what it is to own, prepared before it does."""
        if session is not None and number in self._share and table.rule is Rule.PEERS and session in table.peers:
            return Aim.HOLD, table.since
        if session is not None and table.entries[number].owner == session:
            return Aim.OFFER, table.entries[number].token
        return (Aim.KEEP if number in self._share else Aim.NOTHING), 0

    def _settle(self) -> None:
        """Brings every partition as near to what the table wants as it can be now."""
        for number in sorted(self._kept | self._named | self._share):
            self._settle_one(self._partitions[number])
        self._note_ended()

    def _settle_one(self, owned: OwnedPartition) -> None:
        aim, token = self._aim(owned.number)
        while self._advance(owned, aim, token):
            pass

    def _note_ended(self) -> None:
        """Once no call of an ended session runs, the worker says so; and that it acts by no table, if there is none."""
        if not self._number and not self.is_draining:
            self._ended = self._last
            if self._table is None:
                self._seen = self._acts_since = 0

    def _advance(self, owned: OwnedPartition, aim: Aim, token: int) -> bool:
        """One step of one partition; returns whether there was one."""
        match owned.state:
            case OwnedState.ACTIVE if aim is not Aim.HOLD or owned.token != token:
                self._do(owned, OwnedInput.STOP, Deed.STOP)
            case OwnedState.DRAINING if _is_quiet(owned):
                self._go(owned, OwnedInput.ENDED)
            case OwnedState.ABSENT | OwnedState.RELEASED if aim in _WANTS and self._is_open(owned, aim, token):
                owned.token = token
                self._do(owned, OwnedInput.WANTED, Deed.PREPARE)
            case OwnedState.PREPARING | OwnedState.PREPARED if aim in _WANTS and token != owned.token:
                is_preparing = owned.state is OwnedState.PREPARING
                owned.token = token
                if is_preparing:
                    self._actions.append(Action(Deed.PREPARE, owned.number, token))
            case OwnedState.PREPARED if aim is Aim.HOLD:
                self._do(owned, OwnedInput.GRANTED, Deed.ACTIVATE)
            case OwnedState.ABSENT | OwnedState.PREPARING | OwnedState.PREPARED if aim is Aim.RELEASE:
                owned.token = token
                self._go(owned, OwnedInput.STOP)
            case OwnedState.RELEASED if aim is Aim.RELEASE and token != owned.token:
                owned.token = token  # it never got so far as to start a call with it
                return False
            case OwnedState.PREPARING | OwnedState.PREPARED if aim is Aim.KEEP:
                self._go(owned, OwnedInput.STOP)
            case OwnedState.PREPARING | OwnedState.PREPARED | OwnedState.RELEASED if aim is Aim.NOTHING:
                self._do(owned, OwnedInput.FORGOTTEN, Deed.FORGET)
            case _:
                return False
        return True

    def _is_open(self, owned: OwnedPartition, aim: Aim, token: int) -> bool:
        """Whether a partition may be had with this token: not again with one that it was released with.

        Of peers no single token is given away, but all that the session has: theirs is as good as before.
        """
        return token > owned.token or (aim is Aim.HOLD and self.rule is Rule.PEERS)

    def _kept_partitions(self) -> list[OwnedPartition]:
        """In the order of their numbers."""
        return [self._partitions[number] for number in sorted(self._kept)]

    def _go(self, owned: OwnedPartition, happened: OwnedInput) -> None:
        owned.on(happened)
        if owned.state is OwnedState.ABSENT:
            self._kept.discard(owned.number)
        else:
            self._kept.add(owned.number)

    def _do(self, owned: OwnedPartition, happened: OwnedInput, deed: Deed) -> None:
        self._go(owned, happened)
        self._actions.append(Action(deed, owned.number, owned.token))


_WANTS: Final = (Aim.OFFER, Aim.HOLD)


def _is_quiet(owned: OwnedPartition) -> bool:
    return not owned.calls and not owned.owes_last


def _is_of(session: Session | None, worker_id: str) -> bool:
    return session is not None and session.worker_id == worker_id
