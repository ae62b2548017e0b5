"""One owned partition: its state, its rows, its revisions, and the events that wait for an acknowledgement.

Everything that changes the state of a partition stands in this file: ``TRANSITIONS`` has every way from one state to
another, after the table of h11. That is what there is of its rows. Two things more are said of a partition, and each
has methods of its own, since any state goes with any of them: whether its events are delivered
(:meth:`Partition.confirm_filter`), and how far it is handed over, of exclusive ownership
(:meth:`Partition.receive_grant` and those that follow it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from ringcast_wire import Backoff, Event, RandomSource, Row

from ringcast._common.place import same_consumer
from ringcast._protocol.repeats import RepeatedDeliveries
from ringcast._protocol.unsaved import Unsaved

Token: TypeAlias = str
"""What acknowledges one delivery of an event; here it says no more than which consumer's that is."""

MAX_OWED_ROWS: Final = 65_536
"""Deleted rows of a silent partition that are remembered for its owner to be."""
MAX_RELEASES: Final = 64
"""Events of releases whose revisions are remembered."""
MAX_WAITING_EVENTS: Final = 256
"""Events kept while a fetch is under way; past it only the highest revision is remembered, and fetched."""


class PartitionState(Enum):
    """What a worker has of a partition."""

    LOADING = auto()  # nothing yet: the first fetch is still to be applied
    LOADING_AFRESH = auto()  # the same; of a fetch whose history is over the application may have had some rows
    CACHED = auto()  # the rows of the last life, from the disk
    CACHED_INVALID = auto()  # the same, of a history that is over or of a database that went back
    LIVE = auto()  # the rows as of a fetch, and the changes of events since
    RELOADING = auto()  # the same, of a history that is over or of a database that went back
    REVOKED = auto()  # nothing any more: another worker owns it, or another object has taken its place


class PartitionInput(Enum):
    """What changes the state of a partition."""

    RESTORED = auto()  # its rows of the last life were read from the disk
    INVALIDATED = auto()  # its revisions can't be compared any more: a whole fetch is to take its place
    LOADED = auto()  # the application has taken what a fetch brought
    REVOKED = auto()  # the worker does not own it any more


TRANSITIONS: Final[Mapping[PartitionInput, Mapping[PartitionState, PartitionState]]] = {
    PartitionInput.RESTORED: {
        PartitionState.LOADING: PartitionState.CACHED,
    },
    PartitionInput.INVALIDATED: {
        PartitionState.LOADING: PartitionState.LOADING_AFRESH,
        PartitionState.LOADING_AFRESH: PartitionState.LOADING_AFRESH,
        PartitionState.CACHED: PartitionState.CACHED_INVALID,
        PartitionState.CACHED_INVALID: PartitionState.CACHED_INVALID,
        PartitionState.LIVE: PartitionState.RELOADING,
        PartitionState.RELOADING: PartitionState.RELOADING,
    },
    PartitionInput.LOADED: {
        PartitionState.LOADING: PartitionState.LIVE,
        PartitionState.LOADING_AFRESH: PartitionState.LIVE,
        PartitionState.CACHED: PartitionState.LIVE,
        PartitionState.CACHED_INVALID: PartitionState.LIVE,
        PartitionState.LIVE: PartitionState.LIVE,
        PartitionState.RELOADING: PartitionState.LIVE,
    },
    PartitionInput.REVOKED: {
        PartitionState.LOADING: PartitionState.REVOKED,
        PartitionState.LOADING_AFRESH: PartitionState.REVOKED,
        PartitionState.CACHED: PartitionState.REVOKED,
        PartitionState.CACHED_INVALID: PartitionState.REVOKED,
        PartitionState.LIVE: PartitionState.REVOKED,
        PartitionState.RELOADING: PartitionState.REVOKED,
    },
}
"""What does not stand here can't happen."""


class TransitionError(AssertionError):
    """A partition was given an input that can't come in its state: the code is at fault."""


class _Facts(NamedTuple):
    live: bool
    cached: bool
    replace: bool
    dead: bool


_FACTS: Final = {
    PartitionState.LOADING: _Facts(live=False, cached=False, replace=False, dead=False),
    PartitionState.LOADING_AFRESH: _Facts(live=False, cached=False, replace=True, dead=False),
    PartitionState.CACHED: _Facts(live=False, cached=True, replace=False, dead=False),
    PartitionState.CACHED_INVALID: _Facts(live=False, cached=True, replace=True, dead=False),
    PartitionState.LIVE: _Facts(live=True, cached=False, replace=False, dead=False),
    PartitionState.RELOADING: _Facts(live=True, cached=False, replace=True, dead=False),
    PartitionState.REVOKED: _Facts(live=False, cached=False, replace=False, dead=True),
}


class EventKind(Enum):
    """What an event is to its partition."""

    DUPLICATE = auto()  # applied already
    REPEAT = auto()  # taken in already, not applied yet
    NEXT = auto()  # continues what was taken in
    GAP = auto()  # something before it is missing, or it does not list its changes


class Fetching(Enum):
    """Where the partition stands with its fetch."""

    IDLE = auto()
    WANTED = auto()
    REQUESTED = auto()
    APPLYING = auto()


class Partition:
    """One partition while this worker owns it; one that is lost and gained again starts from nothing.

    ``state`` is changed by :meth:`on` alone, and with it what it means: ``live`` (there are rows that events are added
    to), ``cached`` (there are rows from the disk), ``replace`` (the next fetch is whole and takes its place) and
    ``dead``. They are kept as plain attributes since every event reads them.

    The flags beside them are orthogonal to ``state``, and so ``TRANSITIONS`` knows nothing of them:

    - ``filtered``: the server delivers events whatever becomes of the rows. It confirms that once for a partition.
    - ``silent``, ``grant``, ``served``: rows are loaded, kept current, found invalid and fetched anew in the same way
      whether the worker owns a partition or only holds it. Of exclusive ownership a partition is held (silent), granted
      (it has a token), handed over (not silent any more) and served, in this order. The way back is :meth:`silenced`:
      another object takes its place, so that what is under way for this one comes to nothing. Peers are never silent.

    ``applied``: every change up to it has been through the handler. ``expected``: every change up to it has been taken
    in, and is on its way to the handler at most. ``expected >= applied`` always.
    """

    __slots__ = (
        "applied",
        "as_of",
        "backoff",
        "cached",
        "counted",
        "dead",
        "expected",
        "fetching",
        "filtered",
        "foreign",
        "grant",
        "highest",
        "history",
        "incomplete_fetches",
        "live",
        "number",
        "owed",
        "paced",
        "releases",
        "repeats",
        "replace",
        "retry_at",
        "row_bytes",
        "rows",
        "served",
        "silent",
        "state",
        "tokens",
        "tombstones",
        "unread",
        "unsaved",
        "waiting",
    )

    def __init__(self, number: int, random: RandomSource) -> None:
        self.number = number
        self.history = ""  # that its revisions are of; empty as long as none is known
        self.applied = 0
        self.expected = 0
        self.rows: dict[str, Row] = {}
        self.row_bytes = 0  # of these, kept as they change: a report must not walk over all of them
        # Deletions newer than `applied`: without them a late reply could bring a deleted row back.
        self.tombstones: dict[str, int] = {}
        self.tokens: dict[int, Token] = {}
        self.repeats = RepeatedDeliveries()
        # What events have said of releases: after which revision, up to which one, and of which release.
        self.releases: tuple[tuple[int, int, int], ...] = ()
        self.waiting: list[tuple[Event, Token]] = []
        # Deliveries of events of another history, by it and the revision: their changes have to be fetched.
        self.foreign: dict[tuple[str, int], Token] = {}
        self.highest = 0
        self.counted = 0  # deliveries that count for the key's share
        self.paced = 0  # and those that its pace counts as waiting for the handler
        self.unread = False  # an event that can't be read has come since the last fetch was sent
        self.filtered = False  # the server has confirmed that it delivers the partition's events
        self._enter(PartitionState.LOADING)
        self.as_of = 0.0  # when the rows from the disk were known to be current
        self.unsaved: Unsaved | None = None
        # Of exclusive ownership. Nothing of a silent partition is handed over: its rows are kept current, and what was
        # deleted is owed to the application. An owner has a grant, its token, and is served once it has got all that.
        self.silent = False
        self.grant = 0
        self.served = True
        self.owed: dict[str, int] = {}
        self.fetching = Fetching.IDLE
        self.backoff = Backoff(random)
        self.retry_at: float | None = None
        # After fetches whose answer is older than an event.
        self.incomplete_fetches = Backoff(random, first_s=0.05, most_s=5.0)

    def on(self, happened: PartitionInput) -> None:
        """Goes over into the state that ``TRANSITIONS`` has for what has happened.

        Raises:
            TransitionError: there is none.
        """
        after = TRANSITIONS[happened].get(self.state)
        if after is None:
            raise TransitionError(f"partition {self.number} is {self.state.name}: it can't be {happened.name}")
        self._enter(after)

    def _enter(self, state: PartitionState) -> None:
        self.state = state
        self.live, self.cached, self.replace, self.dead = _FACTS[state]

    def note_release(self, event: Event) -> None:
        """Remembers which release the revisions of an event came by."""
        noted = event.prev, event.rev, event.release
        if noted not in self.releases:
            self.releases = (*self.releases[1 - MAX_RELEASES :], noted)

    def release_of(self, version: int) -> int:
        """The number of the release that a revision came by; 0: by none, or that is not known (any more)."""
        return next((release for prev, rev, release in self.releases if prev < version <= rev), 0)

    def accept(self, row: Row) -> bool:
        """Takes a row in, from whatever source, if it is newer than what is known of it."""
        current = self.rows.get(row.row_id)
        # Nothing at or below it is news.
        known = current.version if current is not None else self.tombstones.get(row.row_id, self.applied)
        if row.version <= known:
            return False
        self._upsert(row)
        return True

    def accept_whole(self, rows: Iterable[Row], revision: int) -> list[Row]:
        """Takes in all live rows as of ``revision``; deletes rows that are no newer and not among them."""
        listed = set()
        news = []
        for row in rows:
            listed.add(row.row_id)
            if self.accept(row):
                news.append(row)
        gone = [row for row in self.rows.values() if row.version <= revision and row.row_id not in listed]
        return news + [self._delete(row.row_id, revision) for row in gone]

    def successor(
        self, rows: Iterable[Row], revision: int, random: RandomSource, history: str = ""
    ) -> tuple[Partition, list[Row]]:
        """Replaces the rows although the revisions of ``rows`` are of another history, or went back.

        Returns the partition that takes this one's place, and what is different. This one is to be given up, so
        whatever was under way for it comes to nothing.
        """
        after = Partition(self.number, random)
        after.confirm_filter()
        after.on(PartitionInput.LOADED)
        after.history = history
        after.unread, after.foreign = self.unread, self.foreign
        self.foreign = {}
        after.expected = revision  # `applied` follows once the application has taken what is different
        after.unsaved = None if self.unsaved is None else Unsaved(whole=True)
        after.take_rows({row.row_id: row for row in rows})
        news = [row for row_id, row in after.rows.items() if self.rows.get(row_id) != row]
        gone = [row_id for row_id in self.rows if row_id not in after.rows]
        news += [Row(row_id, "", revision, True) for row_id in gone]
        after.silent, after.grant, after.served = self.silent, self.grant, self.served
        if self.silent:
            after._owe({**self.owed, **dict.fromkeys(gone, revision)})
        return after, news

    def confirm_filter(self) -> None:
        """The server has confirmed that it delivers the events of the partition."""
        self.filtered = True

    def silence(self) -> None:
        """Holds the partition for exclusive ownership, before it is owned."""
        self.silent, self.served = True, False

    def receive_grant(self, token: int) -> None:
        """The worker owns the partition, and says so by this token. One that is silent is to be handed over."""
        self.grant = token

    def drop_grant(self) -> None:
        """The worker goes on with the partition as a peer: its changes have no token any more."""
        self.grant = 0

    def end_silence(self) -> None:
        """All that there is goes to the application now, with the deletions that are owed, and then each change."""
        self.silent = False

    def mark_served(self) -> None:
        """The application has all that there was when the silence ended: nothing is owed to it any more."""
        self.served, self.owed = True, {}

    def silenced(self, random: RandomSource, now: float) -> Partition:
        """What takes this one's place once it is not owned any more: the same rows, silent. They are fetched again.

        What the application was not handed over of them counts for nothing. This one is to be given up.
        """
        after = Partition(self.number, random)
        after.silence()
        after.filtered, after.history, after.as_of = self.filtered, self.history, now
        after.applied = after.expected = self.applied
        after.rows, after.tombstones, after.unsaved = self.rows, self.tombstones, self.unsaved
        after.row_bytes = self.row_bytes
        after._owe({**self.owed, **self.tombstones})
        if self.live or self.cached:
            after.on(PartitionInput.RESTORED)
            if self.replace:
                after.on(PartitionInput.INVALIDATED)
        return after

    @property
    def owned(self) -> bool:
        """Whether this worker owns it: one that is silent and has no grant is only held."""
        return self.grant > 0 or not self.silent

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows of any history, and none on their way to the handler."""
        return self.expected == 0 and not self.rows and not self.tombstones

    def classify(self, event: Event) -> EventKind:
        """What an event is to this partition; changes nothing."""
        if event.rev <= self.applied:
            return EventKind.DUPLICATE
        if event.rev <= self.expected:
            return EventKind.REPEAT
        if event.prev > self.expected or event.changes is None:
            return EventKind.GAP
        return EventKind.NEXT

    def keep(self, rev: int, token: Token) -> None:
        """Keeps one more delivery of an event; a later one by the same consumer takes the place of the one before."""
        before = self.tokens.get(rev)
        if before is None or same_consumer(before, token):
            self.tokens[rev] = token
        else:
            self.repeats.add(rev, token)

    def defer(self, event: Event, token: Token) -> None:
        """Keeps an event until the fetch that is under way has ended."""
        self.keep(event.rev, token)
        if len(self.waiting) < MAX_WAITING_EVENTS:
            self.waiting.append((event, token))
        else:
            self.highest = max(self.highest, event.rev)

    def set_apart(self, event: Event, token: Token) -> None:
        """Keeps the delivery of an event of another history; what does not fit comes again later."""
        if len(self.foreign) < MAX_WAITING_EVENTS or (event.history, event.rev) in self.foreign:
            self.foreign[event.history, event.rev] = token

    def settled(self, is_past: Callable[[str], bool]) -> list[Token]:
        """Forgets the events of other histories that are over, and of ours that are applied; returns their tokens.

        Those of ours that are not applied yet are taken in, as events that have to be fetched.
        """
        done: list[Token] = []
        for (history, rev), token in list(self.foreign.items()):
            is_ours = history == self.history and not self.replace
            if not is_ours and not is_past(history):
                continue
            del self.foreign[history, rev]
            if is_ours and rev > self.applied:
                self.keep(rev, token)
                self.highest = max(self.highest, rev)
            else:
                done.append(token)
        return done

    def advance(self, revision: int) -> list[Token]:
        """Everything up to ``revision`` has been applied; returns the tokens to acknowledge."""
        if revision > self.applied:
            self.applied = revision
        self.expected = max(self.expected, self.applied)
        if self.tombstones:
            self.tombstones = {row_id: at for row_id, at in self.tombstones.items() if at > self.applied}
        repeated = self.repeats.pop(self.applied.__ge__) if self.repeats else []
        tokens = self.tokens
        if not tokens:
            return repeated
        if max(tokens) <= self.applied:
            self.tokens = {}
            return [*tokens.values(), *repeated]
        done = [rev for rev in tokens if rev <= self.applied]
        return [*(tokens.pop(rev) for rev in done), *repeated]

    def tokens_to(self, revision: int) -> list[Token]:
        """The deliveries of events up to ``revision``."""
        return [token for rev, token in self.tokens.items() if rev <= revision] + self.repeats.of(revision.__ge__)

    @property
    def unacknowledged(self) -> list[Token]:
        """The deliveries that are not acknowledged yet."""
        return [*self.tokens.values(), *self.repeats.of(lambda _: True), *self.foreign.values()]

    @property
    def goal(self) -> int:
        """The highest revision that an event has named and that has to be fetched."""
        return max(self.highest, *(event.rev for event, _ in self.waiting)) if self.waiting else self.highest

    def fetch_ended(self, *, incomplete: bool, now: float) -> None:
        """A fetch has ended; after an ``incomplete`` one the next waits, longer each time."""
        if incomplete:
            self.retry_at = now + self.incomplete_fetches.next_s()
        else:
            self.retry_at = None
            self.incomplete_fetches.reset()

    def discard_unconfirmed(self, revisions: frozenset[int]) -> list[Token]:
        """Forgets events of these revisions that are still ahead of ``applied``; returns their tokens.

        The service was asked several times after they had come, and does not have them.
        """
        false = {rev for rev in revisions if rev > self.applied}
        self.waiting = [(event, token) for event, token in self.waiting if event.rev not in false]
        if self.highest in false:
            self.highest = 0
        return [self.tokens.pop(rev) for rev in false if rev in self.tokens] + self.repeats.pop(false.__contains__)

    def give_up(self) -> list[Token]:
        """The partition is no longer ours; returns the tokens, as the new owner starts with a fetch."""
        self.on(PartitionInput.REVOKED)
        tokens = self.unacknowledged
        self.rows, self.tombstones, self.tokens, self.waiting, self.foreign = {}, {}, {}, [], {}
        self.repeats, self.row_bytes = RepeatedDeliveries(), 0
        return tokens

    def take_rows(self, rows: dict[str, Row]) -> None:
        """These are the rows, in place of those that there were; nothing else of the partition changes."""
        self.rows, self.row_bytes = rows, sum(map(_size, rows.values()))

    def _upsert(self, row: Row) -> None:
        if row.deleted:
            self._delete(row.row_id, row.version)
        else:
            self.tombstones.pop(row.row_id, None)
            if self.owed:
                self.owed.pop(row.row_id, None)
            former = self.rows.get(row.row_id)
            self.row_bytes += _size(row) - (_size(former) if former is not None else 0)
            self.rows[row.row_id] = row
            if self.unsaved is not None:
                self.unsaved.note(row.row_id)

    def _delete(self, row_id: str, version: int) -> Row:
        former = self.rows.pop(row_id, None)
        if former is not None:
            self.row_bytes -= _size(former)
        if self.unsaved is not None:
            self.unsaved.note(row_id)
        if version > self.applied:
            self.tombstones[row_id] = version
        if self.silent:
            self._owe({row_id: version})
        return Row(row_id, "", version, True)

    def _owe(self, deleted: Mapping[str, int]) -> None:
        """Past ``MAX_OWED_ROWS`` the oldest are forgotten: the owner before has had the most time for them."""
        self.owed.update(deleted)
        while len(self.owed) > MAX_OWED_ROWS:
            del self.owed[next(iter(self.owed))]


def _size(row: Row) -> int:
    """The UTF-8 bytes of a row, as the config service counts them."""
    size = _bytes(row.row_id) + _bytes(row.value)
    if row.metadata:
        size += sum(_bytes(name) + _bytes(value) for name, value in row.metadata.items())
    return size


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
