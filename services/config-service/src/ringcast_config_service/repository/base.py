"""What a system of record offers to the service, whatever database it is."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, NamedTuple, Protocol, overload

from ringcast_wire import FetchReply, HeadsReply, RingcastError, Row, StoreSettings, UnavailableError

from ringcast_config_service.permits import Permit


def new_history_id() -> str:
    """A random name for an unbroken run of revisions."""
    return secrets.token_hex(8)


DEFAULT_LOCK_TIMEOUT_MS: Final = 5_000
DEFAULT_WRITE_CONNECTIONS: Final = 4


class Deletion(NamedTuple):
    """When a store or key was deleted, and until when it can be restored, in Unix time; 0: it is being purged."""

    deleted_at_ms: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """A store: what is locked at its creation, and what may change. ``created_at_ms`` is Unix time.

    ``history_id`` names the history of the whole store; each key has one of its own, which its revisions belong to.
    """

    name: str
    settings: StoreSettings
    inline_max_bytes: int
    created_at_ms: int
    history_id: str = field(default_factory=new_history_id)
    deletion: Deletion | None = None

    @property
    def partition_count(self) -> int:
        return self.settings.partition_count


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

    ``condition`` is the version that the live row has to have, 0 where there must be none, ``None`` for no condition.
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
    ``skip_unchanged``: rows that are there with the same value and metadata are not written again. ``conditional``:
    some rows have a condition. ``mark``: if a request with its key was written before, its outcome is this one's, and
    nothing is written; of a bundle the first request has it. ``generation``: the repository's when the request was let
    in; once that has risen, the request is refused.
    """

    store: StoreRecord
    key: str
    rows: Sequence[RowWrite]
    chain: Chain | None = None
    traceparent: str | None = None
    skip_unchanged: bool = False
    generation: int = 0
    conditional: bool = False
    mark: IdempotencyMark | None = None
    bundle: Bundle | None = None
    permit: Permit = field(default_factory=Permit)
    bytes: int = field(init=False)
    partitions: frozenset[int] = field(init=False)
    """Those that its rows are in."""

    def __post_init__(self) -> None:
        plain = self.rows if isinstance(self.rows, PlainWrites) else None
        sizes = (row.size for row in self.rows) if plain is None else plain.sizes
        partitions = (row.partition for row in self.rows) if plain is None else plain.partitions
        object.__setattr__(self, "bytes", sum(sizes))
        object.__setattr__(self, "partitions", frozenset(partitions))


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What a request did. ``versions`` has an entry a row, 0 where nothing was written (a delete of no row)."""

    written: int
    deleted: int
    unchanged: int
    versions: list[int]


class LockedError(UnavailableError):
    """A transaction waited for too long for a lock that another holds; nothing was written."""


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


class Revision(NamedTuple):
    """One write of a row; the version of ``row`` is the revision.

    ``prev``: that of the row's write before, 0 if none was stored. ``previous``: the row as of it, where it was asked
    for and is still there.
    """

    partition: int
    row: Row
    written_at_ms: int
    prev: int = 0
    previous: Row | None = None


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
    """What a compaction removed; ``skipped`` when another instance is at it, or was not long ago."""

    tombstones: int
    revisions: int
    skipped: bool = False


class Repository(Protocol):
    """A system of record.

    Every call may raise :class:`ringcast_wire.UnavailableError` when the database can't be reached or refuses, and
    reads raise ``UnknownStoreError`` and ``UnknownKeyError``, or of what is deleted ``StoreDeletedError`` and
    ``KeyDeletedError``. Each read sees one snapshot.
    """

    async def open(self) -> None:
        """Connects, and creates the tables that are missing.

        Raises:
            UnavailableError: the database can't be reached; trying again may help.
            ConfigError: it can't be used (no such directory, wrong password, a newer schema).
        """

    async def close(self) -> None:
        """Closes every connection; harmless when called again."""

    async def ping(self) -> None:
        """Returns when the database answers: reads are possible."""

    async def check_writable(self) -> None:
        """Returns when the database would take a write.

        Raises:
            UnavailableError: it is read-only, or away.
        """

    async def create_store(self, record: StoreRecord) -> StoreRecord:
        """Creates a store, or returns the one that is there with the same settings.

        Raises:
            AlreadyExistsError: it is there with other settings.
            LimitExceededError: there are 50 stores.
            StoreDeletedError: one of this name is deleted and not purged yet.
        """

    async def get_record(self, name: str) -> StoreRecord:
        """A store without its keys, which is one look-up."""

    async def get_store(self, name: str, *, include_deleted: bool = False) -> StoreInfo:
        """A store and its keys; with ``include_deleted`` those that are deleted too."""

    async def list_stores(self, *, include_deleted: bool = False) -> list[StoreInfo]:
        """Every store with its keys by name: this counts the rows of every partition."""

    async def store_records(self) -> list[StoreRecord]:
        """Every store by name, deleted ones too, without their keys: one short look, however much they hold."""

    async def update_store(self, name: str, inline_max_bytes: int) -> StoreInfo:
        """Changes what is not locked."""

    async def delete_store(self, name: str, deletion: Deletion) -> StoreInfo:
        """Deletes a store, or returns the one that is deleted already (whose restoring ends now if that is asked for).

        Once this returns nothing is written to it any more, by any instance.

        Raises:
            LimitExceededError: as many as may be are deleted already.
        """

    async def restore_store(self, name: str, now_ms: int) -> StoreInfo:
        """Undoes a deletion; keys that were deleted by themselves stay deleted. A store that is there is left alone.

        Raises:
            StoreDeletedError: it is too late.
        """

    async def delete_key(self, store: str, key: str, deletion: Deletion) -> KeyStats:
        """The same for a key."""

    async def restore_key(self, store: str, key: str, now_ms: int) -> KeyStats:
        """The same for a key.

        Raises:
            KeyDeletedError: it is too late.
            LimitExceededError: the store has 100 keys without it.
        """

    async def clock_ms(self) -> int:
        """Unix time by the clock that all instances share: the database's."""

    async def expire_deleted(self, now_ms: int) -> Expired:
        """What can't be restored any more, from now on: to be purged. Also ends deletions that were broken off."""

    async def purge_rows(self, store: str, key: str | None) -> int:
        """Removes some rows and revisions of an expired store (``key`` is ``None``) or key; 0: there are none left."""

    async def drop_store(self, name: str) -> None:
        """Removes what is left of an expired store: its name is free."""

    async def drop_key(self, store: str, key: str) -> None:
        """Removes what is left of an expired key: its name is free."""

    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        """Writes a group of requests in one transaction, in order; a refused one does not touch the others.

        A request is refused with ``UnknownStoreError``, ``UnknownKeyError`` (only deletes, and no such key) or
        ``LimitExceededError``. The rows, their history, the revisions and the outbox records are committed together.
        Any number of tasks may write at once, to the same partitions too: those are written one after the other.

        Raises:
            LockedError: somebody else had the lock of one of the partitions for too long.
            UnavailableError: nothing was written, unless the sentence says that the commit itself may have happened.
        """

    async def read_partition(
        self, store: str, key: str, partition: int, since: int | None, history: str = "", as_of: int | None = None
    ) -> FetchReply:
        """A whole partition, or what changed after a revision of a history; now, or ``as_of`` a revision of it.

        Whole as well where the tombstones are gone, or the history is another now.

        Raises:
            InvalidInputError: ``as_of`` is above the head.
            RevisionGoneError: the history is another now, or revisions that ``as_of`` needs are removed.
        """

    async def read_rows(self, store: str, key: str, row_ids: Sequence[str]) -> FetchReply:
        """The named rows, tombstones included, an entry for each partition asked about."""

    async def read_full(self, store: str, key: str) -> FetchReply:
        """Every partition that was ever written, whole.

        Raises:
            LimitExceededError: they are larger than one reply may be.
        """

    async def heads(self, store: str, key: str, at_ms: int | None = None) -> HeadsReply:
        """The revision of each partition, and how many live rows it has; or the revisions at a moment (Unix time).

        Raises:
            RevisionGoneError: revisions that were there at the moment are removed.
        """

    async def new_history(self, store: str, *, instead_of: str | None = None) -> str:
        """Gives a store and each of its keys a new history, and returns the store's.

        ``instead_of``: only if the store's history is still this one; otherwise the one that it has is returned.
        """

    def list_rows(self, store: str, key: str, query: ListFilter) -> AsyncGenerator[list[ListedRow], None]:
        """Pages of rows by partition and row id, all from one snapshot."""

    def history(self, store: str, key: str, query: HistoryFilter) -> AsyncGenerator[list[Revision], None]:
        """Pages of revisions by partition and revision, all from one snapshot."""

    async def outbox_spans(self) -> list[OutboxSpan]:
        """An entry for each store that has events in the outbox, by name."""

    async def outbox(self, store: str, after: int, limit: int, max_bytes: int) -> list[OutboxRecord]:
        """Events of a store with an id above ``after``, oldest first: up to ``limit`` with payloads of up to
        ``max_bytes`` together, and always the first. No transaction is open afterwards."""

    async def claim_outbox(self, store: str, holder: str, lease_ms: int) -> bool:
        """Whether ``holder`` is the one that publishes what others have left of a store, for so long from now.

        Only one is, by the database's clock, so that two instances don't send the same backlog.
        """

    async def release_outbox(self, holder: str) -> None:
        """Ends the claims of ``holder``."""

    async def delete_events(self, ids: Sequence[int]) -> None:
        """Removes records that the broker has; those that are gone already don't matter."""

    async def refuse_event(self, event_id: int, reason: str) -> None:
        """Moves a record that can't be published to where the newest 10,000 are kept, and not tried again."""

    async def refused_events(self, after: int, limit: int) -> list[RefusedRecord]:
        """Up to ``limit`` of these with an id above ``after``, oldest first."""

    async def outbox_state(self) -> OutboxState:
        """What waits in the outbox, locked or not."""

    @property
    def generation(self) -> int:
        """Rises whenever the record may have gone back, so that it has to be compared with what was published."""

    @property
    def write_lanes(self) -> int:
        """Calls of :meth:`write` that may be under way at once, if they touch different partitions."""

    @property
    def retries(self) -> Mapping[str, int]:
        """Transactions that began again, by SQLSTATE."""

    def pools(self) -> list[PoolUse]:
        """How busy the connections are."""

    async def forget_marks(self, older_than_ms: int, limit: int) -> int:
        """Removes up to ``limit`` idempotency keys that are older than this, the oldest first; how many."""

    async def compact(self, tombstones_ms: int, history_ms: int, every_ms: int = 0) -> Compaction:
        """Removes tombstones, and revisions that have newer ones, that are older than these, by the database's clock.

        The newest revision of a live row stays however old it is, and so does what a row held ``history_ms`` ago. One
        instance of all does this at a time, and after it none of the others within ``every_ms``.
        """
