"""What a system of record takes and returns, whatever database it is."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, NamedTuple, overload

from ringcast_wire import (
    NO_POLICY,
    WIRE_VERSION,
    Migration,
    RingcastError,
    Role,
    Row,
    StorePolicy,
    StoreSettings,
    UnavailableError,
    limits,
)

from ringcast_config_service.permits import Permit

_ORDINAL: Final = re.compile(r"-([0-9]{1,15})\Z", re.ASCII)


def new_history_id(ordinal: int = 0) -> str:
    """A random name for an unbroken run of revisions. ``ordinal``: how many of its store came before it, at least."""
    return secrets.token_hex(8) + (f"-{ordinal}" if ordinal else "")


def history_ordinal(history_id: str) -> int:
    """How many histories of its store came before one, at least: one with a higher ordinal is a later one."""
    found = _ORDINAL.search(history_id)
    return int(found[1]) if found else 0


DEFAULT_LOCK_TIMEOUT_MS: Final = 5_000
DEFAULT_WRITE_CONNECTIONS: Final = 4
SMALL_ANSWER_BYTES: Final = 2 * limits.MIB
"""Answers that are larger are read apart, so that no short read waits for them."""
PURGE_ROWS: Final = 5_000
"""Rows or revisions that a purge removes in a transaction."""


class Deletion(NamedTuple):
    """When a store or key was deleted, and until when it can be restored, in Unix time; 0: it is being purged."""

    deleted_at_ms: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """A store: what is locked at its creation, and what may change. ``created_at_ms`` is Unix time.

    ``settings`` are those of its creation; where it has finished migrating ``settings_now`` count in their place.
    ``history_id`` names the history of the whole store; each key has one of its own, which its revisions belong to.
    ``policy``: what it allows.
    """

    name: str
    settings: StoreSettings
    inline_max_bytes: int
    created_at_ms: int
    history_id: str = field(default_factory=new_history_id)
    deletion: Deletion | None = None
    policy: StorePolicy = NO_POLICY
    migration: Migration | None = None
    """The operator's last step of a migration; ``None``: there never was one."""
    wire_pin: int = WIRE_VERSION
    """The newest wire version that its events may be of: what every process reads, as far as is known."""

    @property
    def partition_count(self) -> int:
        return self.settings.partition_count

    @property
    def settings_now(self) -> StoreSettings:
        return self.settings.after(self.migration)


@dataclass(frozen=True, slots=True)
class KeyStats:
    """A config key: its live rows, and their bytes (ids, values and metadata)."""

    name: str
    rows: int
    bytes: int
    deletion: Deletion | None = None


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store and its keys by name."""

    record: StoreRecord
    keys: tuple[KeyStats, ...]


class RowWrite(NamedTuple):
    """One checked row. ``value`` is ``None`` for a delete; ``size`` is what :func:`ringcast_wire.check_row` said.

    ``condition`` is the version that the live row has to have, 0 where there must be none, ``None`` for no condition. A
    negative one: there must be no live row, and if its tombstone is there it has to have this version.
    """

    partition: int
    row_id: str
    value: str | None
    metadata: dict[str, str] | None
    size: int
    condition: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PlainWrites(Sequence[RowWrite]):
    """Puts with nothing but a value, column by column: a large write need not make an object of each row.

    The columns are of one length.
    """

    partitions: Sequence[int]
    row_ids: Sequence[str]
    values: Sequence[str]
    sizes: Sequence[int]

    def __len__(self) -> int:
        return len(self.row_ids)

    @overload
    def __getitem__(self, index: int) -> RowWrite: ...
    @overload
    def __getitem__(self, index: slice) -> PlainWrites: ...
    def __getitem__(self, index: int | slice) -> RowWrite | PlainWrites:
        if isinstance(index, slice):
            return PlainWrites(self.partitions[index], self.row_ids[index], self.values[index], self.sizes[index])
        return RowWrite(self.partitions[index], self.row_ids[index], self.values[index], None, self.sizes[index])

    def __iter__(self) -> Iterator[RowWrite]:
        none = repeat(None)
        columns = zip(self.partitions, self.row_ids, self.values, none, self.sizes, none, strict=False)
        return map(RowWrite._make, columns)


class Authorship(NamedTuple):
    """The principal that writes (one line), and the reason it gives; each may be
    empty."""

    author: str
    reason: str = ""


NOBODY: Final = Authorship("")
"""Of revisions that were written before authors were kept."""
SERVICE: Final = Authorship("local")
"""The service itself, which does some things by their time."""


ALL: Final = "*"
"""In place of a principal, or of a store, of a role."""


class RoleGrant(NamedTuple):
    """A role that a principal has for a store; each of these two may be :data:`ALL`."""

    principal: str
    store: str
    role: Role
    granted_at_ms: int
    granted_by: str


class IdempotencyMark(NamedTuple):
    """A client's key for a request, and a digest of the request: the key is not for another one."""

    key: str
    digest: str


class Bundle:
    """Links requests of several keys of one store that are written together or not at all, one after the other."""

    __slots__ = ()


class Chain:
    """Links the batches of one bulk stream: once one fails, those after it are not written.

    So a client that is told of a failure knows that nothing it sent later was stored.
    """

    __slots__ = ("failed",)

    def __init__(self) -> None:
        self.failed = False


@dataclass(frozen=True, slots=True, eq=False)
class WriteRequest:
    """Rows of one key that are written together or not at all. No two have the same id.

    ``traceparent`` goes into the outbox with the events, so that whichever process publishes them goes on from it.
    ``skip_unchanged``: rows that are there with the same value and metadata are not written again. ``mark``: if a
    request with its key was written before, its outcome is this one's, and nothing is written; of a bundle the first
    request has it. ``generation``: the repository's when the request was let in; once that has risen, the request is
    refused. ``by``: the history has it with each row. ``skip_conflicts``: a row whose condition does not hold is left
    as it is, and the others are written. ``release``: the number of the release that it is a part of; all requests that
    are written together have the same. ``of_release``: a release is published or undone with it, so a store that takes
    no other writes takes it. ``schema_id``: of the schema that its values were checked against, 0 for none; where
    another one is enforced, they are checked within the transaction.
    """

    store: StoreRecord
    key: str
    rows: Sequence[RowWrite]
    chain: Chain | None = None
    traceparent: str | None = None
    skip_unchanged: bool = False
    generation: int = 0
    mark: IdempotencyMark | None = None
    bundle: Bundle | None = None
    permit: Permit = field(default_factory=Permit)
    by: Authorship = NOBODY
    skip_conflicts: bool = False
    release: int = 0
    of_release: bool = False
    schema_id: int = 0
    bytes: int = field(init=False)
    partitions: frozenset[int] = field(init=False)
    """Those that its rows are in."""

    def __post_init__(self) -> None:
        plain = self.rows if isinstance(self.rows, PlainWrites) else None
        sizes = (row.size for row in self.rows) if plain is None else plain.sizes
        partitions = (row.partition for row in self.rows) if plain is None else plain.partitions
        object.__setattr__(self, "bytes", sum(sizes))
        object.__setattr__(self, "partitions", frozenset(partitions))


def ordinals_of(requests: Iterable[WriteRequest]) -> dict[str, int]:
    """The ordinals of the histories of the stores that requests are for."""
    return {request.store.name: history_ordinal(request.store.history_id) for request in requests}


class KeptRows(NamedTuple):
    """What requests write is what a release has kept of its rows: the database has it, and need not be sent it.

    They are all rows of the release ``number`` of ``store`` that are published, from the place ``first`` on up to
    ``last``. ``places``: those of the rows of each request.
    """

    store: str
    number: int
    first: int
    last: int
    places: Sequence[Sequence[int]]

    @property
    def span(self) -> tuple[str, int, int, int]:
        """Where they are in the database."""
        return self.store, self.number, self.first, self.last


class StagedRows(NamedTuple):
    """What requests write is what the release ``number`` of ``store`` has staged: the database has it, as with
    :class:`KeptRows`. ``places``: those of the rows of each request.
    """

    store: str
    number: int
    places: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What a request did. ``versions`` has an entry a row, 0 where nothing was written (a delete of no row)."""

    written: int
    deleted: int
    unchanged: int
    versions: list[int]


class LockedError(UnavailableError):
    """A transaction waited for too long for a lock that another holds; nothing was written."""


class LargeAnswerError(Exception):
    """An answer would have about ``size`` bytes, more than its reader has room for. Nothing was read."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the answer would have about {size} bytes")
        self.size = size


class OutboxRecord(NamedTuple):
    """An event that waits to be published."""

    id: int
    subject: str
    msg_id: str
    payload: bytes
    traceparent: str | None = None


class Written(NamedTuple):
    """What became of a group: an outcome for each request, and the events that wait in the outbox because of it."""

    outcomes: list[WriteOutcome | RingcastError]
    events: list[OutboxRecord]


class OutboxState(NamedTuple):
    """How many records wait, counted up to a bound, and when the oldest was written (Unix time)."""

    depth: int
    oldest_ms: int | None


class PoolUse(NamedTuple):
    """The connections of one pool."""

    name: str
    busy: int
    idle: int


class OutboxSpan(NamedTuple):
    """The lowest and the highest id among the events of a store that wait."""

    store: str
    oldest: int
    newest: int


class RefusedRecord(NamedTuple):
    """An event that can't be published in any form, and why."""

    record: OutboxRecord
    reason: str


class ListedRow(NamedTuple):
    partition: int
    row: Row


class KeyState(NamedTuple):
    """A state of a key: when a release was published, at a moment (Unix time), or with neither as it is."""

    release: int | None = None
    at_ms: int | None = None


class Difference(NamedTuple):
    """A row that is not the same in two states of its key; ``None``: it is not there."""

    partition: int
    row_id: str
    before: Row | None
    after: Row | None


class Revision(NamedTuple):
    """One write of a row; the version of ``row`` is the revision.

    ``prev``: that of the row's write before, 0 if none was stored. ``previous``: the row as of it, where it was asked
    for and is still there. ``by``: who wrote it, and why.
    """

    partition: int
    row: Row
    written_at_ms: int
    prev: int = 0
    previous: Row | None = None
    by: Authorship = NOBODY


@dataclass(frozen=True, slots=True)
class ListFilter:
    """What to list; ``limit`` 0 is no limit. ``after``: only what comes behind this partition and row id."""

    partition: int | None = None
    include_deleted: bool = False
    limit: int = 0
    after: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Which revisions to list: of one row, of one partition, above ``since``; ``limit`` 0 is no limit.

    ``after``: only what comes behind this partition and revision. ``previous``: each with the row before it.
    """

    partition: int | None = None
    row_id: str | None = None
    since: int = 0
    limit: int = 0
    after: tuple[int, int] | None = None
    previous: bool = False


@dataclass(frozen=True, slots=True)
class Expired:
    """Deleted stores, and (store, key) of deleted keys, that are to be purged."""

    stores: list[str]
    keys: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction removed."""

    tombstones: int
    revisions: int
