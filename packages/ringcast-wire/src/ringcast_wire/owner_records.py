"""The records of exclusive ownership in the bucket of owners, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, partial
from itertools import compress, repeat
from operator import itemgetter
from typing import Annotated, Final, NamedTuple, TypeVar, overload

import msgspec

from ringcast_wire._common import limits
from ringcast_wire._common.errors import LimitExceededError, ProtocolError
from ringcast_wire._common.versions import WIRE_VERSION, Reads

MAX_STATE_BYTES: Final = limits.MAX_RECORD_BYTES - 256
"""A worker's state, or the term, as JSON: a record with its headers takes no more than any other."""
MAX_MOVING: Final = 64
"""Partitions of a key that change their owner at once: a worker lists each of them in its state."""
RECORD_AGE_S: Final = 86_400.0
"""NATS forgets what workers write of themselves, and their registrations, so long after it was last written."""
MAX_NUMBER: Final = 2**53 - 1
"""Epochs, tokens and sessions: what every reader of JSON takes."""
MAX_SESSIONS: Final = 2 * limits.MAX_WORKERS_PER_KEY + 2 * MAX_MOVING
"""Sessions that a table names: of the workers, and of those before that are not given away yet."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=limits.MAX_PARTITIONS)]
_Index = Annotated[int, msgspec.Meta(ge=-1, lt=MAX_SESSIONS)]
_SessionIndex = Annotated[int, msgspec.Meta(ge=0, lt=MAX_SESSIONS)]
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
_LeaseId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})?\Z")]
_Listed = Annotated[tuple[tuple[_Partition, _Number], ...], msgspec.Meta(max_length=MAX_MOVING)]


class Session(NamedTuple):
    """A worker while its fence has not passed. ``number``: the revision of the refresh of ``lease`` it began with."""

    worker_id: str
    lease: str
    number: int


class Rule(StrEnum):
    """By which rule the partitions of a key are served."""

    OWNERS = "owners"  # each by the owner that the table names
    PEERS = "peers"  # by what each peer computes for itself, as long as the table lists its session
    NOBODY = "nobody"  # between the two: no call starts


class Phase(StrEnum):
    """Where a partition is."""

    HELD = "held"  # the owner has it, if there is one
    PREPARE = "prepare"  # the owner has it, and the next one prepares
    DRAIN = "drain"  # the owner is to stop; there is no way back to its token


class Entry(NamedTuple):
    """The owner of a partition, and the ``next`` one, to be with ``next_token``. ``token`` outlives its owner."""

    owner: Session | None
    token: int
    phase: Phase = Phase.HELD
    next: Session | None = None
    next_token: int = 0


_owner: Final = itemgetter(Entry._fields.index("owner"))
_next: Final = itemgetter(Entry._fields.index("next"))


class _ReadEntries(Sequence[Entry]):
    """The entries of a record, each made when it is asked for.

    All workers read each table. Most follow, and ask for their own entries alone: to make four thousand of them would
    take most of the time that a table costs.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        owners: Sequence[int],
        tokens: Sequence[int],
        moves: Mapping[int, tuple[Phase, Session | None, int]],
    ) -> None:
        self._sessions = sessions
        self._owners = owners
        """An index of ``sessions`` each, or -1."""
        self._tokens = tokens
        self._moves = moves

    def __len__(self) -> int:
        return len(self._owners)

    @overload
    def __getitem__(self, number: int) -> Entry: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Entry]: ...

    def __getitem__(self, number: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(number, slice) or number < 0:
            return self._all[number]
        index, token = self._owners[number], self._tokens[number]
        return Entry(self._sessions[index] if index >= 0 else None, token, *self._moves.get(number, ()))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._all)

    def __eq__(self, other: object) -> bool:
        return self._all == (other._all if isinstance(other, _ReadEntries) else other)

    def __hash__(self) -> int:
        return hash(self._all)

    def __repr__(self) -> str:
        return repr(self._all)

    @cached_property
    def _all(self) -> tuple[Entry, ...]:
        owners = map([*self._sessions, None].__getitem__, self._owners)
        # Four thousand at a time: the class itself would take most of the time.
        held = zip(owners, self._tokens, repeat(Phase.HELD), repeat(None), repeat(0))
        entries: list[Entry] = list(map(partial(tuple.__new__, Entry), held))
        for number in self._moves:
            entries[number] = self[number]
        return tuple(entries)

    def sessions(self) -> set[Session | None]:
        """What the entries name."""
        owners = {self._sessions[index] if index >= 0 else None for index in set(self._owners)}
        return owners.union(following for _, following, _ in self._moves.values())

    def naming(self, sessions: frozenset[Session]) -> frozenset[int]:
        """The partitions that these sessions own, or are next for."""
        indices = frozenset(index for index, session in enumerate(self._sessions) if session in sessions)
        owned = compress(range(len(self._owners)), map(indices.__contains__, self._owners))
        return frozenset(owned).union(number for number, move in self._moves.items() if move[1] in sessions)


class _TableFields(NamedTuple):
    epoch: int
    entries: Sequence[Entry]
    rule: Rule = Rule.OWNERS
    since: int = 0
    peers: tuple[Session, ...] = ()
    step: int = 0


class Table(_TableFields):
    """The owners of a key. ``epoch`` rises with every write; a token is the epoch of the write that first named it.

    Of a store that migrates: ``since`` is the epoch of the write that the ``rule`` began with, and ``step`` the number
    of the operator's step that it follows. Under ``PEERS`` only the sessions ``peers`` may start calls, and under
    ``NOBODY`` they are those that may have calls of the rule before. The entries are a plan then, without moves.
    """

    @cached_property
    def _sessions(self) -> frozenset[Session]:
        entries = self.entries
        named = (
            entries.sessions() if isinstance(entries, _ReadEntries) else {*map(_owner, entries), *map(_next, entries)}
        )
        return frozenset(session for session in named.union(self.peers) if session is not None)

    def sessions(self) -> frozenset[Session]:
        """All sessions that the table names."""
        return self._sessions  # each worker asks several times of each table: four thousand entries are looked at once

    def naming(self, worker_id: str) -> frozenset[int]:
        """The partitions that a worker owns, or is next for, in whatever session."""
        sessions = frozenset(session for session in self.sessions() if session.worker_id == worker_id)
        if not sessions:
            return frozenset()
        if isinstance(self.entries, _ReadEntries):
            return self.entries.naming(sessions)
        return frozenset(
            number for number, entry in enumerate(self.entries) if entry.owner in sessions or entry.next in sessions
        )


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that leads. It keeps others from trying: what makes a write safe is its compare-and-set alone."""

    leader: _Name


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself.

    ``session`` is 0 while it has none. No call of a session from ``first`` up to ``ended`` runs, or will: all of these
    are of this process. ``seen``: the epoch of the first of the tables that it acts by; 0 while it acts by none.
    ``prepared`` and ``released`` name partitions with their token. ``agent``: the one that sees this process end, if
    there is one.

    Of a store that migrates: ``stopped`` is the ``since`` of a table of the rule ``NOBODY`` under which no call runs.
    ``guarded``: every call is one that the table lets start, as the operator's step of this number wants it; 0 if not.
    ``wire``: the newest version of messages that the worker reads.
    """

    lease: _LeaseId
    session: _Number
    first: _Number = 0
    ended: _Number = 0
    seen: _Number = 0
    prepared: _Listed = ()
    released: _Listed = ()
    leaving: bool = False
    capacity: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    agent: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z")] = ""
    stopped: _Number = 0
    guarded: _Number = 0
    wire: Reads = WIRE_VERSION


class _TableRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    epoch: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    sessions: Annotated[tuple[tuple[_Name, _LeaseId, _Number], ...], msgspec.Meta(max_length=MAX_SESSIONS)]
    owners: Annotated[tuple[_Index, ...], msgspec.Meta(min_length=1, max_length=limits.MAX_PARTITIONS)]
    tokens: Annotated[tuple[_Number, ...], msgspec.Meta(min_length=1, max_length=limits.MAX_PARTITIONS)]
    moves: Annotated[tuple[tuple[_Partition, Phase, _Index, _Number], ...], msgspec.Meta(max_length=MAX_MOVING)]
    rule: Rule = Rule.OWNERS
    since: _Number = 0
    peers: Annotated[tuple[_SessionIndex, ...], msgspec.Meta(max_length=MAX_SESSIONS)] = ()
    step: _Number = 0


T = TypeVar("T", Term, State, _TableRecord)


def encode_table(table: Table) -> bytes:
    """A table as JSON: sessions once, then an owner and a token a partition, and what moves.

    Raises:
        LimitExceededError: it would take more than ``limits.MAX_TABLE_BYTES``, or more move than ``MAX_MOVING``.
    """
    sessions: dict[Session, int] = {}

    def index(session: Session | None) -> int:
        return -1 if session is None else sessions.setdefault(session, len(sessions))

    owners = tuple(index(entry.owner) for entry in table.entries)
    moves = tuple(
        (number, entry.phase, index(entry.next), entry.next_token)
        for number, entry in enumerate(table.entries)
        if entry.phase is not Phase.HELD
    )
    peers = tuple(index(session) for session in table.peers)
    for name, count, most in (("moves", len(moves), MAX_MOVING), ("sessions", len(sessions), MAX_SESSIONS)):
        if count > most:
            raise LimitExceededError(f"a table has {count} {name}: at most {most} are allowed")
    tokens = tuple(entry.token for entry in table.entries)
    record = _TableRecord(
        epoch=table.epoch,
        sessions=tuple(sessions),
        owners=owners,
        tokens=tokens,
        moves=moves,
        rule=table.rule,
        since=table.since,
        peers=peers,
        step=table.step,
    )
    return _within(msgspec.json.encode(record), "table", limits.MAX_TABLE_BYTES)


def decode_table(data: bytes, partitions: int) -> Table:
    """Reads a table of so many partitions.

    Raises:
        ProtocolError: it is not one.
    """
    record = _decode(data, _TableRecord, limits.MAX_TABLE_BYTES)
    if not len(record.owners) == len(record.tokens) == partitions:
        raise ProtocolError(f"table has {len(record.owners)} owners and {len(record.tokens)} tokens, not {partitions}")
    sessions = list(map(Session._make, record.sessions))
    if (highest := max(*record.owners, *(move[2] for move in record.moves), *record.peers, -1)) >= len(sessions):
        raise ProtocolError(f"table names session {highest} of {len(sessions)}")
    if max(*record.tokens, *(move[3] for move in record.moves), record.since) > record.epoch:
        raise ProtocolError(f"table of epoch {record.epoch} has a token of a later one")
    if record.rule is not Rule.OWNERS and record.moves:
        raise ProtocolError(f"table moves partitions, which have no owners under the rule {record.rule}")
    moves: dict[int, tuple[Phase, Session | None, int]] = {}
    for number, phase, index, token in record.moves:
        if number >= partitions or number in moves or phase is Phase.HELD:
            raise ProtocolError(f"table moves partition {number} of {partitions} twice, or not at all")
        moves[number] = phase, sessions[index] if index >= 0 else None, token
    entries = _ReadEntries(sessions, record.owners, record.tokens, moves)
    peers = tuple(sessions[index] for index in record.peers)
    return Table(record.epoch, entries, record.rule, record.since, peers, record.step)


def encode_state(state: State) -> bytes:
    """A worker's state as JSON.

    Raises:
        LimitExceededError: it takes more than ``MAX_STATE_BYTES``.
    """
    return _within(msgspec.json.encode(state), "state", MAX_STATE_BYTES)


def decode_state(data: bytes) -> State:
    """Reads a worker's state.

    Raises:
        ProtocolError: it is not one.
    """
    return _decode(data, State, MAX_STATE_BYTES)


def encode_term(term: Term) -> bytes:
    """A term as JSON."""
    return _within(msgspec.json.encode(term), "term", MAX_STATE_BYTES)


def decode_term(data: bytes) -> Term:
    """Reads a term.

    Raises:
        ProtocolError: it is not one.
    """
    return _decode(data, Term, MAX_STATE_BYTES)


def check_numbers(record: Table | State, revision: int) -> None:
    """Compares the numbers of a record that stands at ``revision`` with it.

    Sessions are revisions of the same bucket, and an epoch is at most the revision of its write. So a higher number was
    not written by a worker that keeps to the rules, and would leave none for those that do.

    Raises:
        ProtocolError: there is a higher one.
    """
    match record:
        case Table():
            highest = max(record.epoch, 0, *(session.number for session in record.sessions()))
        case State():
            highest = max(record.session, record.first, record.ended, record.seen, record.stopped)
    if highest > revision:
        raise ProtocolError(f"{type(record).__name__} of revision {revision} has the number {highest}: none is higher")


def check_step(table: Table, step: int) -> None:
    """Compares the operator's step that a table follows with the one that is known of: ``step``, 0 where none is.

    A worker that means harm could name one that was never taken: a leader leaves the rule of a table alone that
    follows a later step than it knows of.

    Raises:
        ProtocolError: the table follows a later one.
    """
    if table.step > step:
        raise ProtocolError(f"table follows step {table.step} of a migration: the last one is {step}")


def _within(data: bytes, what: str, most: int) -> bytes:
    if len(data) > most:
        raise LimitExceededError(f"{what} takes {len(data)} bytes: at most {most} are allowed")
    return data


def _decode(data: bytes, kind: type[T], most: int) -> T:
    what = kind.__name__.removeprefix("_")
    if len(data) > most:
        raise ProtocolError(f"{what} takes {len(data)} bytes: at most {most} are allowed")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{what} of {len(data)} bytes can't be read: {error}") from error
