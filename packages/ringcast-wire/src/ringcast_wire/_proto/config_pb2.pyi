from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_READER: _ClassVar[Role]
    ROLE_WRITER: _ClassVar[Role]
    ROLE_APPROVER: _ClassVar[Role]
    ROLE_ADMIN: _ClassVar[Role]
    ROLE_BREAK_GLASS: _ClassVar[Role]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_PARTITIONED: _ClassVar[Mode]
    MODE_FULL: _ClassVar[Mode]

class Strategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STRATEGY_UNSPECIFIED: _ClassVar[Strategy]
    STRATEGY_JUMP: _ClassVar[Strategy]
    STRATEGY_RING: _ClassVar[Strategy]
    STRATEGY_STICKY: _ClassVar[Strategy]

class MigrationStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MIGRATION_STAGE_UNSPECIFIED: _ClassVar[MigrationStage]
    MIGRATION_STAGE_OFF: _ClassVar[MigrationStage]
    MIGRATION_STAGE_SHADOW: _ClassVar[MigrationStage]
    MIGRATION_STAGE_VALIDATE: _ClassVar[MigrationStage]
    MIGRATION_STAGE_SWITCH: _ClassVar[MigrationStage]
    MIGRATION_STAGE_FINISH: _ClassVar[MigrationStage]

class SchemaKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEMA_KIND_UNSPECIFIED: _ClassVar[SchemaKind]
    SCHEMA_KIND_JSON_SCHEMA: _ClassVar[SchemaKind]
    SCHEMA_KIND_REGEX: _ClassVar[SchemaKind]
    SCHEMA_KIND_AVRO: _ClassVar[SchemaKind]
    SCHEMA_KIND_PROTOBUF: _ClassVar[SchemaKind]

class SchemaMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEMA_MODE_UNSPECIFIED: _ClassVar[SchemaMode]
    SCHEMA_MODE_ENFORCE: _ClassVar[SchemaMode]
    SCHEMA_MODE_WARN: _ClassVar[SchemaMode]
    SCHEMA_MODE_OFF: _ClassVar[SchemaMode]

class SchemaCompatibility(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCHEMA_COMPATIBILITY_UNSPECIFIED: _ClassVar[SchemaCompatibility]
    SCHEMA_COMPATIBILITY_NONE: _ClassVar[SchemaCompatibility]
    SCHEMA_COMPATIBILITY_BACKWARD: _ClassVar[SchemaCompatibility]
    SCHEMA_COMPATIBILITY_BACKWARD_TRANSITIVE: _ClassVar[SchemaCompatibility]
    SCHEMA_COMPATIBILITY_FORWARD: _ClassVar[SchemaCompatibility]
    SCHEMA_COMPATIBILITY_FORWARD_TRANSITIVE: _ClassVar[SchemaCompatibility]
    SCHEMA_COMPATIBILITY_FULL: _ClassVar[SchemaCompatibility]
    SCHEMA_COMPATIBILITY_FULL_TRANSITIVE: _ClassVar[SchemaCompatibility]

class ReleaseState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELEASE_STATE_UNSPECIFIED: _ClassVar[ReleaseState]
    RELEASE_STATE_STAGING: _ClassVar[ReleaseState]
    RELEASE_STATE_STAGED: _ClassVar[ReleaseState]
    RELEASE_STATE_PUBLISHING: _ClassVar[ReleaseState]
    RELEASE_STATE_PUBLISHED: _ClassVar[ReleaseState]
    RELEASE_STATE_UNDOING: _ClassVar[ReleaseState]
    RELEASE_STATE_UNDONE: _ClassVar[ReleaseState]
    RELEASE_STATE_DROPPED: _ClassVar[ReleaseState]
    RELEASE_STATE_EXPIRED: _ClassVar[ReleaseState]
    RELEASE_STATE_STOPPED: _ClassVar[ReleaseState]

class ReleaseOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELEASE_OUTCOME_UNSPECIFIED: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_WAITING: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_PUBLISHED: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_SKIPPED: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_UNDONE: _ClassVar[ReleaseOutcome]
    RELEASE_OUTCOME_KEPT: _ClassVar[ReleaseOutcome]

class OnInvalid(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_INVALID_UNSPECIFIED: _ClassVar[OnInvalid]
    ON_INVALID_REJECT_BATCH: _ClassVar[OnInvalid]
    ON_INVALID_SKIP_ROW: _ClassVar[OnInvalid]

class Replayed(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLAYED_UNSPECIFIED: _ClassVar[Replayed]
    REPLAYED_HANDLED: _ClassVar[Replayed]
    REPLAYED_FAILED_AGAIN: _ClassVar[Replayed]
    REPLAYED_KEPT: _ClassVar[Replayed]
    REPLAYED_NOT_THERE: _ClassVar[Replayed]
ROLE_UNSPECIFIED: Role
ROLE_READER: Role
ROLE_WRITER: Role
ROLE_APPROVER: Role
ROLE_ADMIN: Role
ROLE_BREAK_GLASS: Role
MODE_UNSPECIFIED: Mode
MODE_PARTITIONED: Mode
MODE_FULL: Mode
STRATEGY_UNSPECIFIED: Strategy
STRATEGY_JUMP: Strategy
STRATEGY_RING: Strategy
STRATEGY_STICKY: Strategy
MIGRATION_STAGE_UNSPECIFIED: MigrationStage
MIGRATION_STAGE_OFF: MigrationStage
MIGRATION_STAGE_SHADOW: MigrationStage
MIGRATION_STAGE_VALIDATE: MigrationStage
MIGRATION_STAGE_SWITCH: MigrationStage
MIGRATION_STAGE_FINISH: MigrationStage
SCHEMA_KIND_UNSPECIFIED: SchemaKind
SCHEMA_KIND_JSON_SCHEMA: SchemaKind
SCHEMA_KIND_REGEX: SchemaKind
SCHEMA_KIND_AVRO: SchemaKind
SCHEMA_KIND_PROTOBUF: SchemaKind
SCHEMA_MODE_UNSPECIFIED: SchemaMode
SCHEMA_MODE_ENFORCE: SchemaMode
SCHEMA_MODE_WARN: SchemaMode
SCHEMA_MODE_OFF: SchemaMode
SCHEMA_COMPATIBILITY_UNSPECIFIED: SchemaCompatibility
SCHEMA_COMPATIBILITY_NONE: SchemaCompatibility
SCHEMA_COMPATIBILITY_BACKWARD: SchemaCompatibility
SCHEMA_COMPATIBILITY_BACKWARD_TRANSITIVE: SchemaCompatibility
SCHEMA_COMPATIBILITY_FORWARD: SchemaCompatibility
SCHEMA_COMPATIBILITY_FORWARD_TRANSITIVE: SchemaCompatibility
SCHEMA_COMPATIBILITY_FULL: SchemaCompatibility
SCHEMA_COMPATIBILITY_FULL_TRANSITIVE: SchemaCompatibility
RELEASE_STATE_UNSPECIFIED: ReleaseState
RELEASE_STATE_STAGING: ReleaseState
RELEASE_STATE_STAGED: ReleaseState
RELEASE_STATE_PUBLISHING: ReleaseState
RELEASE_STATE_PUBLISHED: ReleaseState
RELEASE_STATE_UNDOING: ReleaseState
RELEASE_STATE_UNDONE: ReleaseState
RELEASE_STATE_DROPPED: ReleaseState
RELEASE_STATE_EXPIRED: ReleaseState
RELEASE_STATE_STOPPED: ReleaseState
RELEASE_OUTCOME_UNSPECIFIED: ReleaseOutcome
RELEASE_OUTCOME_WAITING: ReleaseOutcome
RELEASE_OUTCOME_PUBLISHED: ReleaseOutcome
RELEASE_OUTCOME_SKIPPED: ReleaseOutcome
RELEASE_OUTCOME_UNDONE: ReleaseOutcome
RELEASE_OUTCOME_KEPT: ReleaseOutcome
ON_INVALID_UNSPECIFIED: OnInvalid
ON_INVALID_REJECT_BATCH: OnInvalid
ON_INVALID_SKIP_ROW: OnInvalid
REPLAYED_UNSPECIFIED: Replayed
REPLAYED_HANDLED: Replayed
REPLAYED_FAILED_AGAIN: Replayed
REPLAYED_KEPT: Replayed
REPLAYED_NOT_THERE: Replayed

class WhoAmIRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WhoAmIResponse(_message.Message):
    __slots__ = ("principal", "roles", "unrestricted", "groups", "expires_at_ms")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    UNRESTRICTED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    principal: str
    roles: _containers.RepeatedCompositeFieldContainer[RoleGrant]
    unrestricted: bool
    groups: _containers.RepeatedScalarFieldContainer[str]
    expires_at_ms: int
    def __init__(self, principal: _Optional[str] = ..., roles: _Optional[_Iterable[_Union[RoleGrant, _Mapping]]] = ..., unrestricted: _Optional[bool] = ..., groups: _Optional[_Iterable[str]] = ..., expires_at_ms: _Optional[int] = ...) -> None: ...

class GetServiceStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServiceStatus(_message.Message):
    __slots__ = ("instance_id", "version", "now_ms", "not_served", "problems", "replicas", "streams", "jetstream", "jetstream_problem")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    NOT_SERVED_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    JETSTREAM_FIELD_NUMBER: _ClassVar[int]
    JETSTREAM_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    version: str
    now_ms: int
    not_served: _containers.RepeatedScalarFieldContainer[str]
    problems: _containers.RepeatedCompositeFieldContainer[StoreProblem]
    replicas: int
    streams: _containers.RepeatedCompositeFieldContainer[StreamStatus]
    jetstream: JetStreamStatus
    jetstream_problem: str
    def __init__(self, instance_id: _Optional[str] = ..., version: _Optional[str] = ..., now_ms: _Optional[int] = ..., not_served: _Optional[_Iterable[str]] = ..., problems: _Optional[_Iterable[_Union[StoreProblem, _Mapping]]] = ..., replicas: _Optional[int] = ..., streams: _Optional[_Iterable[_Union[StreamStatus, _Mapping]]] = ..., jetstream: _Optional[_Union[JetStreamStatus, _Mapping]] = ..., jetstream_problem: _Optional[str] = ...) -> None: ...

class StoreProblem(_message.Message):
    __slots__ = ("store", "problem")
    STORE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    store: str
    problem: str
    def __init__(self, store: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class StreamStatus(_message.Message):
    __slots__ = ("name", "store", "kind", "bytes", "max_bytes", "wanted_bytes", "refuses", "messages", "consumers", "consumer_limit", "replicas", "replicas_behind", "differs", "problem", "age_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WANTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_LIMIT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    DIFFERS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    store: str
    kind: str
    bytes: int
    max_bytes: int
    wanted_bytes: int
    refuses: bool
    messages: int
    consumers: int
    consumer_limit: int
    replicas: int
    replicas_behind: int
    differs: _containers.RepeatedScalarFieldContainer[str]
    problem: str
    age_ms: int
    def __init__(self, name: _Optional[str] = ..., store: _Optional[str] = ..., kind: _Optional[str] = ..., bytes: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wanted_bytes: _Optional[int] = ..., refuses: _Optional[bool] = ..., messages: _Optional[int] = ..., consumers: _Optional[int] = ..., consumer_limit: _Optional[int] = ..., replicas: _Optional[int] = ..., replicas_behind: _Optional[int] = ..., differs: _Optional[_Iterable[str]] = ..., problem: _Optional[str] = ..., age_ms: _Optional[int] = ...) -> None: ...

class JetStreamStatus(_message.Message):
    __slots__ = ("disk_used", "disk_reserved", "disk_limit", "memory_used", "memory_reserved", "memory_limit", "consumers", "consumer_limit", "streams", "stream_limit")
    DISK_USED_FIELD_NUMBER: _ClassVar[int]
    DISK_RESERVED_FIELD_NUMBER: _ClassVar[int]
    DISK_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_RESERVED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_LIMIT_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    STREAM_LIMIT_FIELD_NUMBER: _ClassVar[int]
    disk_used: int
    disk_reserved: int
    disk_limit: int
    memory_used: int
    memory_reserved: int
    memory_limit: int
    consumers: int
    consumer_limit: int
    streams: int
    stream_limit: int
    def __init__(self, disk_used: _Optional[int] = ..., disk_reserved: _Optional[int] = ..., disk_limit: _Optional[int] = ..., memory_used: _Optional[int] = ..., memory_reserved: _Optional[int] = ..., memory_limit: _Optional[int] = ..., consumers: _Optional[int] = ..., consumer_limit: _Optional[int] = ..., streams: _Optional[int] = ..., stream_limit: _Optional[int] = ...) -> None: ...

class RoleGrant(_message.Message):
    __slots__ = ("principal", "store", "role", "granted_at_ms", "granted_by")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_BY_FIELD_NUMBER: _ClassVar[int]
    principal: str
    store: str
    role: Role
    granted_at_ms: int
    granted_by: str
    def __init__(self, principal: _Optional[str] = ..., store: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ..., granted_at_ms: _Optional[int] = ..., granted_by: _Optional[str] = ...) -> None: ...

class GrantRoleRequest(_message.Message):
    __slots__ = ("principal", "store", "role")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    store: str
    role: Role
    def __init__(self, principal: _Optional[str] = ..., store: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ...) -> None: ...

class GrantRoleResponse(_message.Message):
    __slots__ = ("granted",)
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    granted: bool
    def __init__(self, granted: _Optional[bool] = ...) -> None: ...

class RevokeRoleRequest(_message.Message):
    __slots__ = ("principal", "store", "role")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    store: str
    role: Role
    def __init__(self, principal: _Optional[str] = ..., store: _Optional[str] = ..., role: _Optional[_Union[Role, str]] = ...) -> None: ...

class RevokeRoleResponse(_message.Message):
    __slots__ = ("revoked",)
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    revoked: bool
    def __init__(self, revoked: _Optional[bool] = ...) -> None: ...

class ListRolesRequest(_message.Message):
    __slots__ = ("store", "principal")
    STORE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    store: str
    principal: str
    def __init__(self, store: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class ListRolesResponse(_message.Message):
    __slots__ = ("roles",)
    ROLES_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedCompositeFieldContainer[RoleGrant]
    def __init__(self, roles: _Optional[_Iterable[_Union[RoleGrant, _Mapping]]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("principal", "digest")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    principal: str
    digest: str
    def __init__(self, principal: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class RevokeTokenResponse(_message.Message):
    __slots__ = ("revoked",)
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    revoked: int
    def __init__(self, revoked: _Optional[int] = ...) -> None: ...

class ListAuditRequest(_message.Message):
    __slots__ = ("store", "principal", "action", "since_ms", "newest_first", "limit", "after")
    STORE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    store: str
    principal: str
    action: str
    since_ms: int
    newest_first: bool
    limit: int
    after: int
    def __init__(self, store: _Optional[str] = ..., principal: _Optional[str] = ..., action: _Optional[str] = ..., since_ms: _Optional[int] = ..., newest_first: _Optional[bool] = ..., limit: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries", "next")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    next: int
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("seq", "at_ms", "principal", "action", "store", "key", "outcome", "reason", "details", "hash")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    seq: int
    at_ms: int
    principal: str
    action: str
    store: str
    key: str
    outcome: str
    reason: str
    details: str
    hash: str
    def __init__(self, seq: _Optional[int] = ..., at_ms: _Optional[int] = ..., principal: _Optional[str] = ..., action: _Optional[str] = ..., store: _Optional[str] = ..., key: _Optional[str] = ..., outcome: _Optional[str] = ..., reason: _Optional[str] = ..., details: _Optional[str] = ..., hash: _Optional[str] = ...) -> None: ...

class VerifyAuditRequest(_message.Message):
    __slots__ = ("anchor",)
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    anchor: str
    def __init__(self, anchor: _Optional[str] = ...) -> None: ...

class VerifyAuditResponse(_message.Message):
    __slots__ = ("checked", "at", "problem", "last")
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    checked: int
    at: str
    problem: str
    last: bool
    def __init__(self, checked: _Optional[int] = ..., at: _Optional[str] = ..., problem: _Optional[str] = ..., last: _Optional[bool] = ...) -> None: ...

class Migration(_message.Message):
    __slots__ = ("stage", "number", "lease_ttl_ms", "call_bound_ms")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    CALL_BOUND_MS_FIELD_NUMBER: _ClassVar[int]
    stage: MigrationStage
    number: int
    lease_ttl_ms: int
    call_bound_ms: int
    def __init__(self, stage: _Optional[_Union[MigrationStage, str]] = ..., number: _Optional[int] = ..., lease_ttl_ms: _Optional[int] = ..., call_bound_ms: _Optional[int] = ...) -> None: ...

class MigrateStoreRequest(_message.Message):
    __slots__ = ("name", "stage", "lease_ttl_ms", "call_bound_ms", "gone")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    CALL_BOUND_MS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    name: str
    stage: MigrationStage
    lease_ttl_ms: int
    call_bound_ms: int
    gone: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., stage: _Optional[_Union[MigrationStage, str]] = ..., lease_ttl_ms: _Optional[int] = ..., call_bound_ms: _Optional[int] = ..., gone: _Optional[_Iterable[str]] = ...) -> None: ...

class CreateStoreRequest(_message.Message):
    __slots__ = ("name", "partition_count", "mode", "strategy", "inline_max_bytes", "lease_ttl_ms", "call_bound_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    INLINE_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    CALL_BOUND_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition_count: int
    mode: Mode
    strategy: Strategy
    inline_max_bytes: int
    lease_ttl_ms: int
    call_bound_ms: int
    def __init__(self, name: _Optional[str] = ..., partition_count: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., strategy: _Optional[_Union[Strategy, str]] = ..., inline_max_bytes: _Optional[int] = ..., lease_ttl_ms: _Optional[int] = ..., call_bound_ms: _Optional[int] = ...) -> None: ...

class Store(_message.Message):
    __slots__ = ("name", "partition_count", "mode", "strategy", "hash", "inline_max_bytes", "created_at_ms", "keys", "history_id", "deletion", "lease_ttl_ms", "call_bound_ms", "migration", "wire_pin")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    INLINE_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_ID_FIELD_NUMBER: _ClassVar[int]
    DELETION_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    CALL_BOUND_MS_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_FIELD_NUMBER: _ClassVar[int]
    WIRE_PIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    partition_count: int
    mode: Mode
    strategy: Strategy
    hash: str
    inline_max_bytes: int
    created_at_ms: int
    keys: _containers.RepeatedCompositeFieldContainer[KeyInfo]
    history_id: str
    deletion: Deletion
    lease_ttl_ms: int
    call_bound_ms: int
    migration: Migration
    wire_pin: int
    def __init__(self, name: _Optional[str] = ..., partition_count: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., strategy: _Optional[_Union[Strategy, str]] = ..., hash: _Optional[str] = ..., inline_max_bytes: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[KeyInfo, _Mapping]]] = ..., history_id: _Optional[str] = ..., deletion: _Optional[_Union[Deletion, _Mapping]] = ..., lease_ttl_ms: _Optional[int] = ..., call_bound_ms: _Optional[int] = ..., migration: _Optional[_Union[Migration, _Mapping]] = ..., wire_pin: _Optional[int] = ...) -> None: ...

class StorePolicy(_message.Message):
    __slots__ = ("max_rows", "max_bytes", "max_row_bytes", "max_keys", "max_rows_per_second", "burst_rows", "history_retention_ms", "releases_only", "approvals", "max_release_growth_percent", "max_release_shrink_percent", "max_release_change_percent", "tombstone_retention_ms", "max_release_byte_growth_percent", "max_release_byte_shrink_percent", "max_release_partition_growth_percent", "max_release_partition_shrink_percent", "release_partition_tolerance_rows", "unique_ignoring_case", "unique_ignoring_outer_space", "unique_ignoring_unicode_form", "unique_ignoring_trailing_dot", "external_check")
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ROW_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BURST_ROWS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_ONLY_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    MAX_RELEASE_GROWTH_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MAX_RELEASE_SHRINK_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MAX_RELEASE_CHANGE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_RELEASE_BYTE_GROWTH_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MAX_RELEASE_BYTE_SHRINK_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MAX_RELEASE_PARTITION_GROWTH_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MAX_RELEASE_PARTITION_SHRINK_PERCENT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_PARTITION_TOLERANCE_ROWS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_IGNORING_CASE_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_IGNORING_OUTER_SPACE_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_IGNORING_UNICODE_FORM_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_IGNORING_TRAILING_DOT_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_CHECK_FIELD_NUMBER: _ClassVar[int]
    max_rows: int
    max_bytes: int
    max_row_bytes: int
    max_keys: int
    max_rows_per_second: int
    burst_rows: int
    history_retention_ms: int
    releases_only: bool
    approvals: int
    max_release_growth_percent: int
    max_release_shrink_percent: int
    max_release_change_percent: int
    tombstone_retention_ms: int
    max_release_byte_growth_percent: int
    max_release_byte_shrink_percent: int
    max_release_partition_growth_percent: int
    max_release_partition_shrink_percent: int
    release_partition_tolerance_rows: int
    unique_ignoring_case: bool
    unique_ignoring_outer_space: bool
    unique_ignoring_unicode_form: bool
    unique_ignoring_trailing_dot: bool
    external_check: bool
    def __init__(self, max_rows: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_row_bytes: _Optional[int] = ..., max_keys: _Optional[int] = ..., max_rows_per_second: _Optional[int] = ..., burst_rows: _Optional[int] = ..., history_retention_ms: _Optional[int] = ..., releases_only: _Optional[bool] = ..., approvals: _Optional[int] = ..., max_release_growth_percent: _Optional[int] = ..., max_release_shrink_percent: _Optional[int] = ..., max_release_change_percent: _Optional[int] = ..., tombstone_retention_ms: _Optional[int] = ..., max_release_byte_growth_percent: _Optional[int] = ..., max_release_byte_shrink_percent: _Optional[int] = ..., max_release_partition_growth_percent: _Optional[int] = ..., max_release_partition_shrink_percent: _Optional[int] = ..., release_partition_tolerance_rows: _Optional[int] = ..., unique_ignoring_case: _Optional[bool] = ..., unique_ignoring_outer_space: _Optional[bool] = ..., unique_ignoring_unicode_form: _Optional[bool] = ..., unique_ignoring_trailing_dot: _Optional[bool] = ..., external_check: _Optional[bool] = ...) -> None: ...

class KeySchema(_message.Message):
    __slots__ = ("key", "version", "kind", "mode", "author", "reason", "registered_at_ms", "changed_at_ms", "definition", "compatibility")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    key: str
    version: int
    kind: SchemaKind
    mode: SchemaMode
    author: str
    reason: str
    registered_at_ms: int
    changed_at_ms: int
    definition: str
    compatibility: SchemaCompatibility
    def __init__(self, key: _Optional[str] = ..., version: _Optional[int] = ..., kind: _Optional[_Union[SchemaKind, str]] = ..., mode: _Optional[_Union[SchemaMode, str]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., registered_at_ms: _Optional[int] = ..., changed_at_ms: _Optional[int] = ..., definition: _Optional[str] = ..., compatibility: _Optional[_Union[SchemaCompatibility, str]] = ...) -> None: ...

class RegisterSchemaRequest(_message.Message):
    __slots__ = ("store", "key", "kind", "definition", "mode", "compatibility")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    kind: SchemaKind
    definition: str
    mode: SchemaMode
    compatibility: SchemaCompatibility
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., kind: _Optional[_Union[SchemaKind, str]] = ..., definition: _Optional[str] = ..., mode: _Optional[_Union[SchemaMode, str]] = ..., compatibility: _Optional[_Union[SchemaCompatibility, str]] = ...) -> None: ...

class CheckSchemaRequest(_message.Message):
    __slots__ = ("store", "key", "kind", "definition")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    kind: SchemaKind
    definition: str
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., kind: _Optional[_Union[SchemaKind, str]] = ..., definition: _Optional[str] = ...) -> None: ...

class SchemaReport(_message.Message):
    __slots__ = ("rows", "broken", "first", "incompatible")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    INCOMPATIBLE_FIELD_NUMBER: _ClassVar[int]
    rows: int
    broken: int
    first: _containers.RepeatedCompositeFieldContainer[BrokenRow]
    incompatible: str
    def __init__(self, rows: _Optional[int] = ..., broken: _Optional[int] = ..., first: _Optional[_Iterable[_Union[BrokenRow, _Mapping]]] = ..., incompatible: _Optional[str] = ...) -> None: ...

class BrokenRow(_message.Message):
    __slots__ = ("row_id", "where", "rule", "reason", "found")
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    row_id: str
    where: str
    rule: str
    reason: str
    found: str
    def __init__(self, row_id: _Optional[str] = ..., where: _Optional[str] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ..., found: _Optional[str] = ...) -> None: ...

class SetSchemaModeRequest(_message.Message):
    __slots__ = ("store", "key", "mode", "compatibility")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    mode: SchemaMode
    compatibility: SchemaCompatibility
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., mode: _Optional[_Union[SchemaMode, str]] = ..., compatibility: _Optional[_Union[SchemaCompatibility, str]] = ...) -> None: ...

class ListSchemasRequest(_message.Message):
    __slots__ = ("store", "key")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class ListSchemasResponse(_message.Message):
    __slots__ = ("schemas",)
    SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    schemas: _containers.RepeatedCompositeFieldContainer[KeySchema]
    def __init__(self, schemas: _Optional[_Iterable[_Union[KeySchema, _Mapping]]] = ...) -> None: ...

class GetSchemaRequest(_message.Message):
    __slots__ = ("store", "key", "version")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    version: int
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class StorePolicyInfo(_message.Message):
    __slots__ = ("name", "policy", "rows", "bytes", "keys")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    name: str
    policy: StorePolicy
    rows: int
    bytes: int
    keys: int
    def __init__(self, name: _Optional[str] = ..., policy: _Optional[_Union[StorePolicy, _Mapping]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., keys: _Optional[int] = ...) -> None: ...

class GetStorePolicyRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SetStorePolicyRequest(_message.Message):
    __slots__ = ("name", "policy", "lift")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    LIFT_FIELD_NUMBER: _ClassVar[int]
    name: str
    policy: StorePolicy
    lift: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., policy: _Optional[_Union[StorePolicy, _Mapping]] = ..., lift: _Optional[_Iterable[str]] = ...) -> None: ...

class KeyInfo(_message.Message):
    __slots__ = ("name", "rows", "bytes", "deletion")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DELETION_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    bytes: int
    deletion: Deletion
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., deletion: _Optional[_Union[Deletion, _Mapping]] = ...) -> None: ...

class Deletion(_message.Message):
    __slots__ = ("deleted_at_ms", "restorable_until_ms")
    DELETED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    RESTORABLE_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    deleted_at_ms: int
    restorable_until_ms: int
    def __init__(self, deleted_at_ms: _Optional[int] = ..., restorable_until_ms: _Optional[int] = ...) -> None: ...

class GetStoreRequest(_message.Message):
    __slots__ = ("name", "include_deleted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DELETED_FIELD_NUMBER: _ClassVar[int]
    name: str
    include_deleted: bool
    def __init__(self, name: _Optional[str] = ..., include_deleted: _Optional[bool] = ...) -> None: ...

class ListStoresRequest(_message.Message):
    __slots__ = ("include_deleted",)
    INCLUDE_DELETED_FIELD_NUMBER: _ClassVar[int]
    include_deleted: bool
    def __init__(self, include_deleted: _Optional[bool] = ...) -> None: ...

class UpdateStoreRequest(_message.Message):
    __slots__ = ("name", "inline_max_bytes", "partition_count", "mode", "strategy", "lease_ttl_ms", "call_bound_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INLINE_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    CALL_BOUND_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    inline_max_bytes: int
    partition_count: int
    mode: Mode
    strategy: Strategy
    lease_ttl_ms: int
    call_bound_ms: int
    def __init__(self, name: _Optional[str] = ..., inline_max_bytes: _Optional[int] = ..., partition_count: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., strategy: _Optional[_Union[Strategy, str]] = ..., lease_ttl_ms: _Optional[int] = ..., call_bound_ms: _Optional[int] = ...) -> None: ...

class DeleteStoreRequest(_message.Message):
    __slots__ = ("name", "purge")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    purge: bool
    def __init__(self, name: _Optional[str] = ..., purge: _Optional[bool] = ...) -> None: ...

class RestoreStoreRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteKeyRequest(_message.Message):
    __slots__ = ("store", "key", "purge")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PURGE_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    purge: bool
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., purge: _Optional[bool] = ...) -> None: ...

class RestoreKeyRequest(_message.Message):
    __slots__ = ("store", "key")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class NewHistoryRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListStoresResponse(_message.Message):
    __slots__ = ("stores",)
    STORES_FIELD_NUMBER: _ClassVar[int]
    stores: _containers.RepeatedCompositeFieldContainer[Store]
    def __init__(self, stores: _Optional[_Iterable[_Union[Store, _Mapping]]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("store", "key", "row_id", "value", "metadata", "if_version", "if_absent", "idempotency_key", "reason")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    row_id: str
    value: str
    metadata: _containers.ScalarMap[str, str]
    if_version: int
    if_absent: bool
    idempotency_key: str
    reason: str
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., row_id: _Optional[str] = ..., value: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., if_version: _Optional[int] = ..., if_absent: _Optional[bool] = ..., idempotency_key: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("partition", "version")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    partition: int
    version: int
    def __init__(self, partition: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("store", "key", "row_id", "if_version", "idempotency_key", "reason")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    row_id: str
    if_version: int
    idempotency_key: str
    reason: str
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., row_id: _Optional[str] = ..., if_version: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("existed", "partition", "version")
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    existed: bool
    partition: int
    version: int
    def __init__(self, existed: _Optional[bool] = ..., partition: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Changes(_message.Message):
    __slots__ = ("store", "key", "changes")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    changes: _containers.RepeatedCompositeFieldContainer[RowChange]
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[RowChange, _Mapping]]] = ...) -> None: ...

class RowChange(_message.Message):
    __slots__ = ("number", "row_id", "value", "metadata", "delete", "traceparent", "if_version", "if_absent", "idempotency_key", "expires_ms", "reason")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    row_id: str
    value: str
    metadata: _containers.ScalarMap[str, str]
    delete: bool
    traceparent: str
    if_version: int
    if_absent: bool
    idempotency_key: str
    expires_ms: int
    reason: str
    def __init__(self, number: _Optional[int] = ..., row_id: _Optional[str] = ..., value: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., delete: _Optional[bool] = ..., traceparent: _Optional[str] = ..., if_version: _Optional[int] = ..., if_absent: _Optional[bool] = ..., idempotency_key: _Optional[str] = ..., expires_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ChangeResults(_message.Message):
    __slots__ = ("results", "last")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ChangeResult]
    last: bool
    def __init__(self, results: _Optional[_Iterable[_Union[ChangeResult, _Mapping]]] = ..., last: _Optional[bool] = ...) -> None: ...

class ChangeResult(_message.Message):
    __slots__ = ("number", "partition", "version", "error", "field", "message", "found_version")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FOUND_VERSION_FIELD_NUMBER: _ClassVar[int]
    number: int
    partition: int
    version: int
    error: str
    field: str
    message: str
    found_version: int
    def __init__(self, number: _Optional[int] = ..., partition: _Optional[int] = ..., version: _Optional[int] = ..., error: _Optional[str] = ..., field: _Optional[str] = ..., message: _Optional[str] = ..., found_version: _Optional[int] = ...) -> None: ...

class RowWrite(_message.Message):
    __slots__ = ("row_id", "value", "metadata", "delete", "if_version", "if_absent")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    IF_VERSION_FIELD_NUMBER: _ClassVar[int]
    IF_ABSENT_FIELD_NUMBER: _ClassVar[int]
    row_id: str
    value: str
    metadata: _containers.ScalarMap[str, str]
    delete: bool
    if_version: int
    if_absent: bool
    def __init__(self, row_id: _Optional[str] = ..., value: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., delete: _Optional[bool] = ..., if_version: _Optional[int] = ..., if_absent: _Optional[bool] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("store", "writes", "idempotency_key", "reason")
    STORE_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    store: str
    writes: _containers.RepeatedCompositeFieldContainer[KeyedWrite]
    idempotency_key: str
    reason: str
    def __init__(self, store: _Optional[str] = ..., writes: _Optional[_Iterable[_Union[KeyedWrite, _Mapping]]] = ..., idempotency_key: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class KeyedWrite(_message.Message):
    __slots__ = ("key", "row")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    key: str
    row: RowWrite
    def __init__(self, key: _Optional[str] = ..., row: _Optional[_Union[RowWrite, _Mapping]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Committed]
    def __init__(self, rows: _Optional[_Iterable[_Union[Committed, _Mapping]]] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("partition", "version")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    partition: int
    version: int
    def __init__(self, partition: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("store", "number", "state", "rows", "bytes", "published", "undone", "skipped", "keys", "author", "reason", "staged_at_ms", "changed_by", "change_reason", "changed_at_ms", "rows_kept", "problem", "proven_at_ms", "proven_by", "rollout", "digest", "approvals", "approvals_needed", "pinned", "rejected")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    UNDONE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STAGED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_BY_FIELD_NUMBER: _ClassVar[int]
    CHANGE_REASON_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ROWS_KEPT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    PROVEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PROVEN_BY_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    state: ReleaseState
    rows: int
    bytes: int
    published: int
    undone: int
    skipped: int
    keys: _containers.RepeatedCompositeFieldContainer[ReleaseKey]
    author: str
    reason: str
    staged_at_ms: int
    changed_by: str
    change_reason: str
    changed_at_ms: int
    rows_kept: bool
    problem: str
    proven_at_ms: int
    proven_by: str
    rollout: ReleaseRollout
    digest: str
    approvals: _containers.RepeatedCompositeFieldContainer[ReleaseApproval]
    approvals_needed: int
    pinned: bool
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedRow]
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ..., state: _Optional[_Union[ReleaseState, str]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., published: _Optional[int] = ..., undone: _Optional[int] = ..., skipped: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[ReleaseKey, _Mapping]]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., staged_at_ms: _Optional[int] = ..., changed_by: _Optional[str] = ..., change_reason: _Optional[str] = ..., changed_at_ms: _Optional[int] = ..., rows_kept: _Optional[bool] = ..., problem: _Optional[str] = ..., proven_at_ms: _Optional[int] = ..., proven_by: _Optional[str] = ..., rollout: _Optional[_Union[ReleaseRollout, _Mapping]] = ..., digest: _Optional[str] = ..., approvals: _Optional[_Iterable[_Union[ReleaseApproval, _Mapping]]] = ..., approvals_needed: _Optional[int] = ..., pinned: _Optional[bool] = ..., rejected: _Optional[_Iterable[_Union[RejectedRow, _Mapping]]] = ...) -> None: ...

class ReleaseApproval(_message.Message):
    __slots__ = ("principal", "approved_at_ms", "reason")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    APPROVED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    principal: str
    approved_at_ms: int
    reason: str
    def __init__(self, principal: _Optional[str] = ..., approved_at_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseRollout(_message.Message):
    __slots__ = ("waves", "partitions", "wave", "at_gate", "paused", "waits_for", "failure", "gate", "canary")
    WAVES_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    AT_GATE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    waves: _containers.RepeatedScalarFieldContainer[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    wave: int
    at_gate: bool
    paused: bool
    waits_for: str
    failure: str
    gate: ReleaseGate
    canary: str
    def __init__(self, waves: _Optional[_Iterable[int]] = ..., partitions: _Optional[_Iterable[int]] = ..., wave: _Optional[int] = ..., at_gate: _Optional[bool] = ..., paused: _Optional[bool] = ..., waits_for: _Optional[str] = ..., failure: _Optional[str] = ..., gate: _Optional[_Union[ReleaseGate, _Mapping]] = ..., canary: _Optional[str] = ...) -> None: ...

class ReleaseGate(_message.Message):
    __slots__ = ("bake_ms", "max_refused", "patience_ms", "promql")
    BAKE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_REFUSED_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_MS_FIELD_NUMBER: _ClassVar[int]
    PROMQL_FIELD_NUMBER: _ClassVar[int]
    bake_ms: int
    max_refused: int
    patience_ms: int
    promql: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bake_ms: _Optional[int] = ..., max_refused: _Optional[int] = ..., patience_ms: _Optional[int] = ..., promql: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseKey(_message.Message):
    __slots__ = ("key", "added", "changed", "deleted")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    key: str
    added: int
    changed: int
    deleted: int
    def __init__(self, key: _Optional[str] = ..., added: _Optional[int] = ..., changed: _Optional[int] = ..., deleted: _Optional[int] = ...) -> None: ...

class StageReleaseRequest(_message.Message):
    __slots__ = ("store", "stage_id", "sequence", "rows", "complete", "reason", "on_invalid")
    STORE_FIELD_NUMBER: _ClassVar[int]
    STAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ON_INVALID_FIELD_NUMBER: _ClassVar[int]
    store: str
    stage_id: str
    sequence: int
    rows: _containers.RepeatedCompositeFieldContainer[KeyedWrite]
    complete: bool
    reason: str
    on_invalid: OnInvalid
    def __init__(self, store: _Optional[str] = ..., stage_id: _Optional[str] = ..., sequence: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[KeyedWrite, _Mapping]]] = ..., complete: _Optional[bool] = ..., reason: _Optional[str] = ..., on_invalid: _Optional[_Union[OnInvalid, str]] = ...) -> None: ...

class ListReleasesRequest(_message.Message):
    __slots__ = ("store", "before", "limit")
    STORE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    store: str
    before: int
    limit: int
    def __init__(self, store: _Optional[str] = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListReleasesResponse(_message.Message):
    __slots__ = ("releases",)
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    releases: _containers.RepeatedCompositeFieldContainer[Release]
    def __init__(self, releases: _Optional[_Iterable[_Union[Release, _Mapping]]] = ...) -> None: ...

class GetReleaseRequest(_message.Message):
    __slots__ = ("store", "number")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class PublishReleaseRequest(_message.Message):
    __slots__ = ("store", "number", "reason", "waves", "gate", "canary", "dry_wave")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAVES_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    DRY_WAVE_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    reason: str
    waves: _containers.RepeatedScalarFieldContainer[int]
    gate: ReleaseGate
    canary: str
    dry_wave: bool
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ..., reason: _Optional[str] = ..., waves: _Optional[_Iterable[int]] = ..., gate: _Optional[_Union[ReleaseGate, _Mapping]] = ..., canary: _Optional[str] = ..., dry_wave: _Optional[bool] = ...) -> None: ...

class ApproveReleaseRequest(_message.Message):
    __slots__ = ("store", "number", "reason", "digest")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    reason: str
    digest: str
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ..., reason: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class ChangeReleaseRequest(_message.Message):
    __slots__ = ("store", "number", "reason")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    reason: str
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ListRowReleasesRequest(_message.Message):
    __slots__ = ("store", "key", "row_id")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    row_id: str
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., row_id: _Optional[str] = ...) -> None: ...

class ListRowReleasesResponse(_message.Message):
    __slots__ = ("releases",)
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    releases: _containers.RepeatedCompositeFieldContainer[RowRelease]
    def __init__(self, releases: _Optional[_Iterable[_Union[RowRelease, _Mapping]]] = ...) -> None: ...

class RowRelease(_message.Message):
    __slots__ = ("number", "state", "outcome", "version", "undo_version", "proven_at_ms", "wave", "rollout", "approvals", "approvals_needed")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNDO_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROVEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WAVE_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    APPROVALS_NEEDED_FIELD_NUMBER: _ClassVar[int]
    number: int
    state: ReleaseState
    outcome: ReleaseOutcome
    version: int
    undo_version: int
    proven_at_ms: int
    wave: int
    rollout: ReleaseRollout
    approvals: int
    approvals_needed: int
    def __init__(self, number: _Optional[int] = ..., state: _Optional[_Union[ReleaseState, str]] = ..., outcome: _Optional[_Union[ReleaseOutcome, str]] = ..., version: _Optional[int] = ..., undo_version: _Optional[int] = ..., proven_at_ms: _Optional[int] = ..., wave: _Optional[int] = ..., rollout: _Optional[_Union[ReleaseRollout, _Mapping]] = ..., approvals: _Optional[int] = ..., approvals_needed: _Optional[int] = ...) -> None: ...

class ProveReleaseRequest(_message.Message):
    __slots__ = ("store", "number")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class ReleaseProof(_message.Message):
    __slots__ = ("release", "certificate", "lacks", "more_lacks")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    LACKS_FIELD_NUMBER: _ClassVar[int]
    MORE_LACKS_FIELD_NUMBER: _ClassVar[int]
    release: Release
    certificate: ReleaseCertificate
    lacks: _containers.RepeatedCompositeFieldContainer[ReleaseLack]
    more_lacks: int
    def __init__(self, release: _Optional[_Union[Release, _Mapping]] = ..., certificate: _Optional[_Union[ReleaseCertificate, _Mapping]] = ..., lacks: _Optional[_Iterable[_Union[ReleaseLack, _Mapping]]] = ..., more_lacks: _Optional[int] = ...) -> None: ...

class ReleaseLack(_message.Message):
    __slots__ = ("key", "sentence", "worker_id", "row_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    key: str
    sentence: str
    worker_id: str
    row_id: str
    def __init__(self, key: _Optional[str] = ..., sentence: _Optional[str] = ..., worker_id: _Optional[str] = ..., row_id: _Optional[str] = ...) -> None: ...

class ReleaseCertificate(_message.Message):
    __slots__ = ("proven_at_ms", "proven_by", "keys")
    PROVEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PROVEN_BY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    proven_at_ms: int
    proven_by: str
    keys: _containers.RepeatedCompositeFieldContainer[ReleaseKeyCertificate]
    def __init__(self, proven_at_ms: _Optional[int] = ..., proven_by: _Optional[str] = ..., keys: _Optional[_Iterable[_Union[ReleaseKeyCertificate, _Mapping]]] = ...) -> None: ...

class ReleaseKeyCertificate(_message.Message):
    __slots__ = ("key", "history_id", "spans", "revisions", "workers")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HISTORY_ID_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    REVISIONS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    key: str
    history_id: str
    spans: _containers.RepeatedScalarFieldContainer[int]
    revisions: _containers.RepeatedScalarFieldContainer[int]
    workers: _containers.RepeatedCompositeFieldContainer[CertifiedWorker]
    def __init__(self, key: _Optional[str] = ..., history_id: _Optional[str] = ..., spans: _Optional[_Iterable[int]] = ..., revisions: _Optional[_Iterable[int]] = ..., workers: _Optional[_Iterable[_Union[CertifiedWorker, _Mapping]]] = ...) -> None: ...

class CertifiedWorker(_message.Message):
    __slots__ = ("worker_id", "incarnation", "kind", "spans")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: str
    kind: str
    spans: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., kind: _Optional[str] = ..., spans: _Optional[_Iterable[int]] = ...) -> None: ...

class ListReleaseRowsRequest(_message.Message):
    __slots__ = ("store", "number", "after", "limit", "conflicts_only")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_ONLY_FIELD_NUMBER: _ClassVar[int]
    store: str
    number: int
    after: int
    limit: int
    conflicts_only: bool
    def __init__(self, store: _Optional[str] = ..., number: _Optional[int] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., conflicts_only: _Optional[bool] = ...) -> None: ...

class ListReleaseRowsResponse(_message.Message):
    __slots__ = ("rows", "next")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[ReleaseRow]
    next: int
    def __init__(self, rows: _Optional[_Iterable[_Union[ReleaseRow, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class ReleaseRow(_message.Message):
    __slots__ = ("place", "key", "partition", "row_id", "deleted", "value", "metadata", "staged_version", "existed", "old_value", "old_metadata", "found_version", "outcome", "version", "undo_version")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OldMetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PLACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    STAGED_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    OLD_VALUE_FIELD_NUMBER: _ClassVar[int]
    OLD_METADATA_FIELD_NUMBER: _ClassVar[int]
    FOUND_VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNDO_VERSION_FIELD_NUMBER: _ClassVar[int]
    place: int
    key: str
    partition: int
    row_id: str
    deleted: bool
    value: str
    metadata: _containers.ScalarMap[str, str]
    staged_version: int
    existed: bool
    old_value: str
    old_metadata: _containers.ScalarMap[str, str]
    found_version: int
    outcome: ReleaseOutcome
    version: int
    undo_version: int
    def __init__(self, place: _Optional[int] = ..., key: _Optional[str] = ..., partition: _Optional[int] = ..., row_id: _Optional[str] = ..., deleted: _Optional[bool] = ..., value: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., staged_version: _Optional[int] = ..., existed: _Optional[bool] = ..., old_value: _Optional[str] = ..., old_metadata: _Optional[_Mapping[str, str]] = ..., found_version: _Optional[int] = ..., outcome: _Optional[_Union[ReleaseOutcome, str]] = ..., version: _Optional[int] = ..., undo_version: _Optional[int] = ...) -> None: ...

class WriteBatch(_message.Message):
    __slots__ = ("store", "key", "sequence", "rows", "on_invalid", "skip_unchanged", "row_ids", "values", "idempotency_key", "reason")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ON_INVALID_FIELD_NUMBER: _ClassVar[int]
    SKIP_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    ROW_IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    sequence: int
    rows: _containers.RepeatedCompositeFieldContainer[RowWrite]
    on_invalid: OnInvalid
    skip_unchanged: bool
    row_ids: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[str]
    idempotency_key: str
    reason: str
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., sequence: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[RowWrite, _Mapping]]] = ..., on_invalid: _Optional[_Union[OnInvalid, str]] = ..., skip_unchanged: _Optional[bool] = ..., row_ids: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[str]] = ..., idempotency_key: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RejectedRow(_message.Message):
    __slots__ = ("index", "row_id", "reason", "code", "field")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    index: int
    row_id: str
    reason: str
    code: str
    field: str
    def __init__(self, index: _Optional[int] = ..., row_id: _Optional[str] = ..., reason: _Optional[str] = ..., code: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class WriteResult(_message.Message):
    __slots__ = ("sequence", "written", "deleted", "unchanged", "rejected", "last")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    written: int
    deleted: int
    unchanged: int
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedRow]
    last: bool
    def __init__(self, sequence: _Optional[int] = ..., written: _Optional[int] = ..., deleted: _Optional[int] = ..., unchanged: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[RejectedRow, _Mapping]]] = ..., last: _Optional[bool] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("row_id", "value", "version", "partition", "deleted", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    row_id: str
    value: str
    version: int
    partition: int
    deleted: bool
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, row_id: _Optional[str] = ..., value: _Optional[str] = ..., version: _Optional[int] = ..., partition: _Optional[int] = ..., deleted: _Optional[bool] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("store", "key", "row_ids")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_IDS_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    row_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., row_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("store", "key", "partition", "include_deleted", "limit")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DELETED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    partition: int
    include_deleted: bool
    limit: int
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., partition: _Optional[int] = ..., include_deleted: _Optional[bool] = ..., limit: _Optional[int] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class HistoryRequest(_message.Message):
    __slots__ = ("store", "key", "row_id", "partition", "since", "limit", "with_previous")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    row_id: str
    partition: int
    since: int
    limit: int
    with_previous: bool
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., row_id: _Optional[str] = ..., partition: _Optional[int] = ..., since: _Optional[int] = ..., limit: _Optional[int] = ..., with_previous: _Optional[bool] = ...) -> None: ...

class Revision(_message.Message):
    __slots__ = ("row", "written_at_ms", "prev", "previous", "author", "reason")
    ROW_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PREV_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    row: Row
    written_at_ms: int
    prev: int
    previous: Row
    author: str
    reason: str
    def __init__(self, row: _Optional[_Union[Row, _Mapping]] = ..., written_at_ms: _Optional[int] = ..., prev: _Optional[int] = ..., previous: _Optional[_Union[Row, _Mapping]] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class HistoryResponse(_message.Message):
    __slots__ = ("revisions",)
    REVISIONS_FIELD_NUMBER: _ClassVar[int]
    revisions: _containers.RepeatedCompositeFieldContainer[Revision]
    def __init__(self, revisions: _Optional[_Iterable[_Union[Revision, _Mapping]]] = ...) -> None: ...

class KeyState(_message.Message):
    __slots__ = ("release", "time_ms")
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    release: int
    time_ms: int
    def __init__(self, release: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class ListAsOfRequest(_message.Message):
    __slots__ = ("store", "key", "state", "partition", "limit")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    state: KeyState
    partition: int
    limit: int
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., state: _Optional[_Union[KeyState, _Mapping]] = ..., partition: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class DiffRequest(_message.Message):
    __slots__ = ("store", "key", "before", "after", "partition", "limit")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    before: KeyState
    after: KeyState
    partition: int
    limit: int
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., before: _Optional[_Union[KeyState, _Mapping]] = ..., after: _Optional[_Union[KeyState, _Mapping]] = ..., partition: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class DiffResponse(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[RowDifference]
    def __init__(self, rows: _Optional[_Iterable[_Union[RowDifference, _Mapping]]] = ...) -> None: ...

class RowDifference(_message.Message):
    __slots__ = ("before", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: Row
    after: Row
    def __init__(self, before: _Optional[_Union[Row, _Mapping]] = ..., after: _Optional[_Union[Row, _Mapping]] = ...) -> None: ...

class HeadsRequest(_message.Message):
    __slots__ = ("store", "key", "release")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    release: int
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., release: _Optional[int] = ...) -> None: ...

class HeadsResponse(_message.Message):
    __slots__ = ("heads", "history_id")
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_ID_FIELD_NUMBER: _ClassVar[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    history_id: str
    def __init__(self, heads: _Optional[_Iterable[int]] = ..., history_id: _Optional[str] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("store", "key", "partition", "row_id", "group", "worker_id", "since_ms", "oldest_first", "limit", "after", "with_values")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WITH_VALUES_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    partition: int
    row_id: str
    group: str
    worker_id: str
    since_ms: int
    oldest_first: bool
    limit: int
    after: int
    with_values: bool
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., partition: _Optional[int] = ..., row_id: _Optional[str] = ..., group: _Optional[str] = ..., worker_id: _Optional[str] = ..., since_ms: _Optional[int] = ..., oldest_first: _Optional[bool] = ..., limit: _Optional[int] = ..., after: _Optional[int] = ..., with_values: _Optional[bool] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("dead_letters", "next")
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    dead_letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next: int
    def __init__(self, dead_letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class DiscardDeadLettersRequest(_message.Message):
    __slots__ = ("store", "numbers")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    store: str
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, store: _Optional[str] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class DiscardDeadLettersResponse(_message.Message):
    __slots__ = ("discarded",)
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    discarded: int
    def __init__(self, discarded: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("number", "key", "partition", "came_at_ms", "unreadable", "row_id", "version", "deleted", "value", "metadata", "left_out", "error", "worker_id", "group", "tries", "replays")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CAME_AT_MS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TRIES_FIELD_NUMBER: _ClassVar[int]
    REPLAYS_FIELD_NUMBER: _ClassVar[int]
    number: int
    key: str
    partition: int
    came_at_ms: int
    unreadable: str
    row_id: str
    version: int
    deleted: bool
    value: str
    metadata: _containers.ScalarMap[str, str]
    left_out: bool
    error: str
    worker_id: str
    group: str
    tries: int
    replays: int
    def __init__(self, number: _Optional[int] = ..., key: _Optional[str] = ..., partition: _Optional[int] = ..., came_at_ms: _Optional[int] = ..., unreadable: _Optional[str] = ..., row_id: _Optional[str] = ..., version: _Optional[int] = ..., deleted: _Optional[bool] = ..., value: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., left_out: _Optional[bool] = ..., error: _Optional[str] = ..., worker_id: _Optional[str] = ..., group: _Optional[str] = ..., tries: _Optional[int] = ..., replays: _Optional[int] = ...) -> None: ...

class ReplayDeadLettersRequest(_message.Message):
    __slots__ = ("store", "numbers", "patience_ms")
    STORE_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_MS_FIELD_NUMBER: _ClassVar[int]
    store: str
    numbers: _containers.RepeatedScalarFieldContainer[int]
    patience_ms: int
    def __init__(self, store: _Optional[str] = ..., numbers: _Optional[_Iterable[int]] = ..., patience_ms: _Optional[int] = ...) -> None: ...

class ReplayedDeadLetter(_message.Message):
    __slots__ = ("number", "key", "row_id", "outcome", "version", "worker_id", "why")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    number: int
    key: str
    row_id: str
    outcome: Replayed
    version: int
    worker_id: str
    why: str
    def __init__(self, number: _Optional[int] = ..., key: _Optional[str] = ..., row_id: _Optional[str] = ..., outcome: _Optional[_Union[Replayed, str]] = ..., version: _Optional[int] = ..., worker_id: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ReplayDeadLettersResponse(_message.Message):
    __slots__ = ("replayed",)
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    replayed: _containers.RepeatedCompositeFieldContainer[ReplayedDeadLetter]
    def __init__(self, replayed: _Optional[_Iterable[_Union[ReplayedDeadLetter, _Mapping]]] = ...) -> None: ...
