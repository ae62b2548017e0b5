"""What a system of record offers, as one Protocol for each kind of use: a component takes those that it calls.

A further kind is one more Protocol here, and one more attribute of :class:`Repository`.

Every call may raise :class:`ringcast_wire.UnavailableError` when the database can't be reached or refuses, and reads
raise ``UnknownStoreError`` and ``UnknownKeyError``, or of what is deleted ``StoreDeletedError`` and
``KeyDeletedError``.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from ringcast_wire import WIRE_VERSION, FetchReply, HeadsReply, Migration, Role
from ringcast_wire.tokens import KnownToken

from ringcast_config_service.repository.audit import AuditFact, AuditFilter, AuditPage, ChainPage
from ringcast_config_service.repository.base import (
    SERVICE,
    Authorship,
    Compaction,
    Deletion,
    Difference,
    Expired,
    HistoryFilter,
    KeyStats,
    ListedRow,
    ListFilter,
    OutboxRecord,
    OutboxSpan,
    OutboxState,
    PoolUse,
    RefusedRecord,
    Revision,
    RoleGrant,
    StoreInfo,
    StoreRecord,
    WriteRequest,
    Written,
)
from ringcast_config_service.repository.counts import WrongCount
from ringcast_config_service.repository.lead import Lead, LeadRepository
from ringcast_config_service.repository.policies import PolicyChange
from ringcast_config_service.repository.release_records import ReleaseRepository
from ringcast_config_service.repository.schemas import SchemaRepository


class DatabaseConnection(Protocol):
    """The connections to the database: opened and closed once, checked and measured in between."""

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

    @property
    def retries(self) -> Mapping[str, int]:
        """Transactions that began again, by SQLSTATE."""

    def pools(self) -> list[PoolUse]:
        """How busy the connections are."""


class DatabaseClock(Protocol):
    """The clock that all instances of the service share."""

    async def clock_ms(self) -> int:
        """Unix time by the clock that all instances share: the database's."""


class StoreRepository(Protocol):
    """Stores and their keys, created, read and updated. ``by``: what the audit log says of a change."""

    async def create_store(self, record: StoreRecord, by: Authorship = SERVICE) -> StoreRecord:
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

    async def update_store(self, name: str, inline_max_bytes: int, by: Authorship = SERVICE) -> StoreInfo:
        """Changes what is not locked."""

    async def migrate_store(
        self, name: str, before: Migration | None, step: Migration, by: Authorship = SERVICE
    ) -> StoreInfo:
        """Takes a step of a migration, if ``before`` is the last one.

        Raises:
            ConditionFailedError: it is not.
        """

    async def pin_wire(self, lead: Lead, name: str, version: int) -> None:
        """Pins the events of a store to a wire version. Raises ``LostLeadError`` where another instance leads."""


class DeletionRepository(Protocol):
    """Stores and keys that are deleted: restored until their retention is over, then purged. ``by`` as for stores."""

    async def delete_store(self, name: str, deletion: Deletion, by: Authorship = SERVICE) -> StoreInfo:
        """Deletes a store, or returns the one that is deleted already (whose restoring ends now if that is asked for).

        Once this returns nothing is written to it any more, by any instance.

        Raises:
            LimitExceededError: as many as may be are deleted already.
        """

    async def restore_store(self, name: str, now_ms: int, by: Authorship = SERVICE) -> StoreInfo:
        """Undoes a deletion; keys that were deleted by themselves stay deleted. A store that is there is left alone.

        Raises:
            StoreDeletedError: it is too late.
        """

    async def delete_key(self, store: str, key: str, deletion: Deletion, by: Authorship = SERVICE) -> KeyStats:
        """The same for a key."""

    async def restore_key(self, store: str, key: str, now_ms: int, by: Authorship = SERVICE) -> KeyStats:
        """The same for a key.

        Raises:
            KeyDeletedError: it is too late.
            LimitExceededError: the store has 100 keys without it.
        """

    # With a ``lead`` a transaction is a duty of maintenance, and may raise ``LostLeadError``; without one a caller has
    # asked for the purge, and any number of instances may be at it.

    async def expire_deleted(self, lead: Lead, now_ms: int) -> Expired:
        """What can't be restored any more, from now on: to be purged. Also ends deletions that were broken off."""

    async def purge_rows(self, store: str, key: str | None, lead: Lead | None = None) -> int:
        """Removes some rows and revisions of an expired store (``key`` is ``None``) or key; 0: there are none left."""

    async def drop_store(self, name: str, lead: Lead | None = None, *, created_at_ms: int | None = None) -> None:
        """Removes what is left of an expired store: its name is free.

        ``created_at_ms``: only the store that was created then, and not one that was made since under the name.
        """

    async def drop_key(self, store: str, key: str, lead: Lead | None = None) -> None:
        """Removes what is left of an expired key: its name is free."""


class PolicyRepository(Protocol):
    """What stores allow."""

    async def set_policy(self, name: str, change: PolicyChange, by: Authorship = SERVICE) -> StoreInfo:
        """Changes the policies of a store, and returns it as it is then, with the keys that are deleted too.

        A limit that is below what is there keeps that from growing. Once this returns no instance lets the rows of the
        store, or their bytes, grow over their limits.
        """


class RowReader(Protocol):
    """Rows, revisions and partition heads. Each read sees one snapshot."""

    async def read_partition(
        self,
        store: str,
        key: str,
        partition: int,
        since: int | None,
        history: str = "",
        as_of: int | None = None,
        most_bytes: int = sys.maxsize,
        version: int = WIRE_VERSION,
    ) -> bytearray:
        """A whole partition, or what changed after a revision of a history; now, or ``as_of`` a revision of it.

        Whole as well where the tombstones are gone, or the history is another now. The answer is an encoded
        ``FetchReply`` of the wire ``version``, and takes little more memory than its bytes while it is made.

        Raises:
            LargeAnswerError: the answer would have over ``most_bytes``, as far as its rows are known beforehand.
            InvalidInputError: ``as_of`` is above the head.
            RevisionGoneError: the history is another now, or revisions that ``as_of`` needs are removed.
        """

    async def read_rows(
        self, store: str, key: str, row_ids: Sequence[str], most_bytes: int = sys.maxsize
    ) -> FetchReply:
        """The named rows, tombstones included, an entry for each partition asked about.

        Raises:
            LargeAnswerError: the encoded answer would have over ``most_bytes``; no row was read.
            LimitExceededError: the rows are larger than one reply may be; no row was read.
        """

    async def read_full(self, store: str, key: str, version: int = WIRE_VERSION) -> bytearray:
        """Every partition that was ever written, whole, as an encoded ``FetchReply`` of the wire ``version``.

        Raises:
            LimitExceededError: they are larger than one reply may be.
        """

    async def heads(self, store: str, key: str, at_ms: int | None = None) -> HeadsReply:
        """The revision of each partition, and how many live rows it has; or the revisions at a moment (Unix time).

        Raises:
            RevisionGoneError: revisions that were there at the moment are removed.
        """

    async def heads_of_release(self, store: str, key: str, number: int) -> HeadsReply:
        """The revision of each partition when the last row of a release was published; also of a key without such rows.

        Raises:
            ConditionFailedError: not all of the release is published, or nothing.
            InvalidInputError: there is no such release.
            RevisionGoneError: its rows, or revisions that were there then, are removed.
        """

    def list_rows(self, store: str, key: str, query: ListFilter) -> AsyncGenerator[list[ListedRow], None]:
        """Pages of rows by partition and row id, all from one snapshot."""

    def history(self, store: str, key: str, query: HistoryFilter) -> AsyncGenerator[list[Revision], None]:
        """Pages of revisions by partition and revision, all from one snapshot."""

    def rows_as_of(
        self, store: str, key: str, then: HeadsReply, query: ListFilter
    ) -> AsyncGenerator[list[ListedRow], None]:
        """The same pages of live rows as :meth:`list_rows`, of a key as it was at the revisions ``then``.

        Raises:
            RevisionGoneError: the history is another now, or revisions that ``then`` needs are removed.
        """

    def differences(
        self, store: str, key: str, before: HeadsReply, after: HeadsReply, query: ListFilter
    ) -> AsyncGenerator[list[Difference], None]:
        """Pages of the rows whose value or metadata differ between two states of a key, by partition and row id.

        Raises:
            RevisionGoneError: as for :meth:`rows_as_of`.
        """


class RowWriter(Protocol):
    """Writes of rows, with their history and events, in one transaction a group."""

    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        """Writes a group of requests in one transaction, in order; a refused one does not touch the others.

        A request is refused with ``UnknownStoreError``, ``UnknownKeyError`` (only deletes, and no such key) or
        ``LimitExceededError``. The rows, their history, the revisions and the outbox records are committed together.
        Any number of tasks may write at once, to the same partitions too: those are written one after the other.

        Raises:
            LockedError: another transaction had the lock of one of the partitions for too long.
            UnavailableError: nothing was written, unless the sentence says that the commit itself may have happened.
        """

    @property
    def write_lanes(self) -> int:
        """Calls of :meth:`write` that may be under way at once, if they touch different partitions."""


class HistoryRepository(Protocol):
    """The histories that revisions belong to, and whether the record may have gone back."""

    async def new_history(
        self, store: str, *, instead_of: str | None = None, by: Authorship = SERVICE, after: int = 0
    ) -> str:
        """Gives a store and each of its keys a new history, and returns the store's.

        ``instead_of``: only if the store's history is still this one; otherwise the one that it has is returned.
        ``after``: the highest ordinal of a history that was seen; the new ones have a higher one.
        """

    async def look(self) -> int:
        """Whether the record has gone back since this instance looked last: then each store and its keys have got new
        histories, and it returns how many stores. Otherwise 0. May raise ``UnavailableError``."""

    @property
    def generation(self) -> int:
        """Rises whenever the record may have gone back, so that it has to be compared with what was published."""


class OutboxRepository(Protocol):
    """Events that wait to be published, and those that can't be."""

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


class RoleRepository(Protocol):
    """The roles that are granted."""

    async def role_grants(self) -> list[RoleGrant]:
        """All of them by store, principal and role."""

    async def grant_role(self, grant: RoleGrant, reason: str = "", groups: Sequence[str] = ()) -> RoleGrant | None:
        """Grants a role at the time of the database's clock, which is in what it returns; ``None`` where it is granted
        already.

        With a reason the role BREAK_GLASS counts as ADMIN. The roles of ``groups`` count as those of
        :attr:`RoleGrant.granted_by`.

        Raises:
            PermissionDeniedError: :attr:`RoleGrant.granted_by` is no ADMIN of the store now, and roles are granted.
            InvalidInputError: it is the first, and not ADMIN of all stores: nobody could grant another.
            LimitExceededError: as many as may be are granted.
        """

    async def revoke_role(
        self, principal: str, store: str, role: Role, by: Authorship, groups: Sequence[str] = ()
    ) -> bool:
        """Takes a role away; false where there is none.

        Raises:
            PermissionDeniedError: neither ``by`` nor one of its groups is ADMIN of the store now, and roles are
                granted.
            InvalidInputError: it is the last ADMIN of all stores.
        """

    async def revoked_tokens(self) -> frozenset[bytes]:
        """The digests (SHA-256) of tokens that are refused."""

    async def revoke_tokens(
        self,
        tokens: Sequence[KnownToken],
        known: Sequence[KnownToken] | None,
        by: Authorship,
        groups: Sequence[str] = (),
        issuers: Sequence[str] = (),
    ) -> int:
        """Has tokens refused from now on; how many were not yet.

        ``known``: the tokens that can log in; ``None``: callers need none. ``issuers``: how
        the principals begin whose tokens others make.

        Raises:
            PermissionDeniedError: the principal of ``by`` is no ADMIN of all stores now, and roles are granted.
            InvalidInputError: no ADMIN of all stores could log in any more.
            LimitExceededError: as many as may be are revoked.
        """


class AuditRepository(Protocol):
    """The audit log: mutations add entries in their own transactions (:mod:`~.repository.audit` says how)."""

    async def add(self, facts: Sequence[AuditFact]) -> None:
        """Adds entries about what is no mutation of the database, such as refusals."""

    async def seal(self) -> int:
        """Moves up to 1,000 entries that wait to the end of the chain; how many. 0: none waits.

        Any number of instances may do so at once: the row of the chain is locked.
        """

    async def audit_entries(self, wanted: AuditFilter, after: int, limit: int, *, newest_first: bool) -> AuditPage:
        """A page of chained entries behind the entry ``after``, or before it where the newest come first; 0: all.

        It looks at 50,000 entries at most, so it may have few of them, or none, and still name where to go on.
        """

    async def chain_page(self, after: int, limit: int) -> ChainPage:
        """Up to ``limit`` entries behind the entry ``after``, and the ends of the chain, of one snapshot."""

    async def forget_audit(self, lead: Lead, before_ms: int) -> int:
        """Removes up to 5,000 of the oldest entries, all older than a moment, and adds one that says so; how many.

        Raises:
            LostLeadError: another instance leads maintenance.
        """


class RecordMaintenance(Protocol):
    """Removal of what is past its retention. Each change raises ``LostLeadError`` where another instance leads."""

    async def compact(self, lead: Lead, tombstones_ms: int, history_ms: int) -> Compaction:
        """Removes tombstones, and revisions that have newer ones, that are older than these, by the database's clock.

        The newest revision of a live row stays however old it is, and so does what a row held ``history_ms`` ago.
        """

    def check_counts(self, lead: Lead, every_ms: int = 0) -> AsyncGenerator[WrongCount, None]:
        """Compares the counts of live rows in the heads with the rows, sets right what is wrong, and yields it.

        It reads every row, unless the last pass began within ``every_ms``.
        """

    async def forget_marks(self, lead: Lead, older_than_ms: int, limit: int) -> int:
        """Removes up to ``limit`` idempotency keys that are older than this, the oldest first; how many."""


class Repository(DatabaseConnection, DatabaseClock, Protocol):
    """A system of record: its connections and its clock, and a part for each kind of use."""

    @property
    def stores(self) -> StoreRepository:
        """Stores and keys."""

    @property
    def deletions(self) -> DeletionRepository:
        """Those that are deleted."""

    @property
    def policies(self) -> PolicyRepository:
        """What stores allow."""

    @property
    def schemas(self) -> SchemaRepository:
        """What values have to be."""

    @property
    def reader(self) -> RowReader:
        """Rows and revisions."""

    @property
    def writer(self) -> RowWriter:
        """Groups of writes."""

    @property
    def releases(self) -> ReleaseRepository:
        """Staged rows."""

    @property
    def histories(self) -> HistoryRepository:
        """What revisions belong to."""

    @property
    def events(self) -> OutboxRepository:
        """The outbox."""

    @property
    def roles(self) -> RoleRepository:
        """Who may do what."""

    @property
    def audit(self) -> AuditRepository:
        """What was done, and what was refused."""

    @property
    def lead(self) -> LeadRepository:
        """Which instance does maintenance."""

    @property
    def maintenance(self) -> RecordMaintenance:
        """What is past its retention."""
