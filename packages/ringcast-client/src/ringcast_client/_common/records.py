"""What goes into and comes out of the client: frozen records instead of protobuf messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from msgspec.structs import asdict
from ringcast_wire import (
    POLICY_RANGES,
    WIRE_VERSION,
    Mode,
    Role,
    StorePolicy,
    Strategy,
    check_condition,
    check_policy,
    check_policy_name,
    check_row,
    check_row_id,
    names,
    stage_name,
)
from ringcast_wire.grpc import MODES, ROLES, STAGES, STRATEGIES, pb
from ringcast_wire.key_ring import ListKeys

from ringcast_client._common.enums import Known

_MODES = Known("a mode of a store", MODES)
_ROLES = Known("a role", ROLES)
_STAGES = Known("a stage of a migration", STAGES)
_STRATEGIES = Known("a strategy of a store", STRATEGIES)


class OnInvalid(StrEnum):
    """What a bulk write does with a row that breaks a rule."""

    REJECT_BATCH = "reject_batch"
    """Stop: nothing of the batch that the row is in is written, and nothing after it."""
    SKIP_ROW = "skip_row"
    """Report the row, write the others."""


@dataclass(frozen=True, slots=True)
class DeletionInfo:
    """When a store or key was deleted, and until when it can be restored (Unix time); 0: it is being purged."""

    deleted_at_ms: int
    restorable_until_ms: int


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A config key: its live rows, and their bytes (ids, values and metadata)."""

    name: str
    rows: int
    bytes: int
    deletion: DeletionInfo | None = None


@dataclass(frozen=True, slots=True)
class MigrationInfo:
    """A step of the migration of a store to exclusive ownership, and the times that go with it.

    ``stage``: ``off``, ``shadow``, ``validate``, ``switch`` or ``finish``. ``number`` rises with each step.
    """

    stage: str
    number: int
    lease_ttl_ms: int
    call_bound_ms: int


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store, its settings, and its config keys."""

    name: str
    partition_count: int
    mode: Mode
    strategy: Strategy
    hash: str
    inline_max_bytes: int
    created_at_ms: int
    keys: tuple[KeyInfo, ...]
    deletion: DeletionInfo | None = None
    history_id: str = ""
    """Another one after the database was restored, or the store created again."""
    lease_ttl_ms: int | None = None
    """Of a store of the strategy ``sticky``: how long a lease lasts after its refresh was asked for."""
    call_bound_ms: int | None = None
    """Of a store of the strategy ``sticky``: the bound on one handler call."""
    migration: MigrationInfo | None = None
    """The last step of its migration to exclusive ownership; ``None``: there never was one."""
    wire_pin: int = WIRE_VERSION
    """The newest wire version that its events may be of: one that every process reads."""


@dataclass(frozen=True, slots=True)
class StorePolicyInfo:
    """The policies of a store, and what is used of them: live rows and their bytes, those of keys that are deleted and
    not purged yet too, and config keys that are not deleted."""

    name: str
    policy: StorePolicy
    rows: int
    bytes: int
    keys: int


@dataclass(frozen=True, slots=True)
class RowRecord:
    """A row as the system of record has it; a deleted one has an empty value."""

    row_id: str
    value: str
    version: int
    partition: int
    deleted: bool
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class RevisionRecord:
    """One write in the history of a row; ``row.version`` is the revision."""

    row: RowRecord
    written_at_ms: int
    author: str = ""
    """The principal that wrote it; empty: it was written before the service kept authors."""
    reason: str = ""
    """What the write gave; empty: nothing."""


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """A role that a principal has for a store; either may be ``*`` for all. ``granted_by`` is a principal too."""

    principal: str
    store: str
    role: Role
    granted_at_ms: int
    granted_by: str


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """What the service takes a client for: the name of its token, ``oidc:`` with issuer and name of the token of an
    issuer, ``certificate:`` and the name in its certificate, or ``host:`` and its host where it has none; and the roles
    that count for it.

    ``unrestricted``: no role is granted to anybody, and every client may do everything. ``groups``: names that the
    token of an issuer gives it besides. ``expires_at_ms``: when its token expires; 0: it does not.
    """

    principal: str
    roles: tuple[RoleGrant, ...] = ()
    unrestricted: bool = False
    groups: tuple[str, ...] = ()
    expires_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """What came of looking through the audit log: how many entries fit, ``SEQ:HASH`` of the last one, which is an
    anchor for later, and a sentence about the first that does not fit, empty where all do."""

    checked: int
    at: str
    problem: str


@dataclass(frozen=True, slots=True)
class PutResult:
    """Where a row was written, and at which revision."""

    partition: int
    version: int


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """``existed`` is false when there was no live row: then nothing was written, and ``version`` is 0."""

    existed: bool
    partition: int
    version: int


@dataclass(frozen=True, slots=True)
class RowWrite:
    """One row of a bulk write: a put, or with ``delete`` a delete.

    ``if_version``: only where the live row has this version; ``if_absent``: only where there is none. A condition that
    does not hold refuses the whole batch.
    """

    row_id: str
    value: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    delete: bool = False
    if_version: int | None = None
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class KeyedWrite:
    """One row of a commit: a put, or with ``delete`` a delete, of a row of ``key``; conditions as in ``RowWrite``."""

    key: str
    row_id: str
    value: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    delete: bool = False
    if_version: int | None = None
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class CommittedRow:
    """What a commit did to one row; ``version`` is 0 for a delete of a row that was not there."""

    key: str
    row_id: str
    partition: int
    version: int


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that a bulk write left out; ``index`` counts from 0 over the whole input."""

    index: int
    row_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A committed batch of a bulk write: the input rows ``first`` to ``first + rows - 1``, counted from 0."""

    first: int
    rows: int
    written: int
    deleted: int
    unchanged: int
    rejected: tuple[RejectedRow, ...]


def store_info(store: pb.Store) -> StoreInfo:
    """From the protobuf message."""
    return StoreInfo(
        name=store.name,
        partition_count=store.partition_count,
        mode=_MODES[store.mode],
        strategy=_STRATEGIES[store.strategy],
        hash=store.hash,
        inline_max_bytes=store.inline_max_bytes,
        created_at_ms=store.created_at_ms,
        keys=tuple(map(key_info, store.keys)),
        deletion=_deletion_info(store),
        history_id=store.history_id,
        lease_ttl_ms=store.lease_ttl_ms if store.HasField("lease_ttl_ms") else None,
        call_bound_ms=store.call_bound_ms if store.HasField("call_bound_ms") else None,
        migration=_migration(store),
        wire_pin=store.wire_pin or WIRE_VERSION,  # an older service does not say
    )


def _migration(store: pb.Store) -> MigrationInfo | None:
    if not store.HasField("migration"):
        return None
    step = store.migration
    return MigrationInfo(
        stage=stage_name(_STAGES[step.stage]),
        number=step.number,
        lease_ttl_ms=step.lease_ttl_ms,
        call_bound_ms=step.call_bound_ms,
    )


def key_info(key: pb.KeyInfo) -> KeyInfo:
    """From the protobuf message."""
    return KeyInfo(key.name, key.rows, key.bytes, _deletion_info(key))


def _deletion_info(owner: pb.Store | pb.KeyInfo) -> DeletionInfo | None:
    if not owner.HasField("deletion"):
        return None
    return DeletionInfo(owner.deletion.deleted_at_ms, owner.deletion.restorable_until_ms)


def policy_info(info: pb.StorePolicyInfo) -> StorePolicyInfo:
    """From the protobuf message."""
    given = {name: getattr(info.policy, name) for name in POLICY_RANGES if info.policy.HasField(name)}
    return StorePolicyInfo(info.name, StorePolicy(**given), info.rows, info.bytes, info.keys)


def policy_request(name: str, policy: StorePolicy, lift: Collection[str]) -> pb.SetStorePolicyRequest:
    """The protobuf message of a change.

    Raises:
        InvalidInputError: a value is out of range, or a name is none.
    """
    given = {field: value for field, value in asdict(check_policy(policy)).items() if value is not None}
    return pb.SetStorePolicyRequest(
        name=names.check_name("store", name), policy=pb.StorePolicy(**given), lift=map(check_policy_name, lift)
    )


def row_record(row: pb.Row, keys: ListKeys | None = None) -> RowRecord:
    """From the protobuf message; opened with ``keys``.

    Raises:
        ValueSealedError: it can't be opened.
    """
    value, metadata = row.value, dict(row.metadata)
    if keys is not None and not row.deleted:
        value, opened = keys.open(row.row_id, value, metadata)
        metadata = dict(opened or {})
    return RowRecord(row.row_id, value, row.version, row.partition, row.deleted, metadata)


def role_grant(grant: pb.RoleGrant) -> RoleGrant:
    """From the protobuf message."""
    role = _ROLES[grant.role]
    return RoleGrant(grant.principal, grant.store, role, grant.granted_at_ms, grant.granted_by)


def revision_record(revision: pb.Revision, keys: ListKeys | None = None) -> RevisionRecord:
    """As :func:`row_record`."""
    return RevisionRecord(row_record(revision.row, keys), revision.written_at_ms, revision.author, revision.reason)


def sealed_row(row: RowWrite, keys: ListKeys | None) -> RowWrite:
    """The row as it is to be written: sealed, unless there is nothing to seal.

    Raises:
        InvalidInputError: it breaks a rule.
    """
    if keys is None or row.delete:
        return row
    value, metadata = keys.seal(row.row_id, row.value, row.metadata)
    return replace(row, value=value, metadata=metadata or {})


def checked_row(row: RowWrite | KeyedWrite) -> tuple[pb.RowWrite, int]:
    """The protobuf message, and the bytes of the row.

    Raises:
        InvalidInputError: it breaks a rule.
    """
    size = len(check_row_id(row.row_id).encode()) if row.delete else check_row(row.row_id, row.value, row.metadata)
    check_condition(row.if_version, row.if_absent, delete=row.delete)
    return row_message(row), size


def row_message(row: RowWrite | KeyedWrite) -> pb.RowWrite:
    """The protobuf message of a checked row."""
    return pb.RowWrite(
        row_id=row.row_id,
        value=row.value,
        metadata=row.metadata,
        delete=row.delete,
        if_version=row.if_version,
        if_absent=row.if_absent,
    )
