"""The client of the config service: create stores, write and read rows.

For tools and for applications that write. Workers don't need it: they receive changes and read over NATS.

Names are imported when they are first used: what only fetches, as tasks of Spark do, needs no gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcast_wire import ReleaseGate

    from ringcast_client._bulk.batches import InvalidRowError
    from ringcast_client._bulk.write import BulkWrite
    from ringcast_client._calls.change_writer import ChangeWriter
    from ringcast_client._client import DEFAULT_SERVICE, DEFAULT_TIMEOUT_S, ConfigServiceClient
    from ringcast_client._common.input import check_address
    from ringcast_client._common.records import (
        AuditVerdict,
        BatchResult,
        CommittedRow,
        DeleteResult,
        DeletionInfo,
        KeyedWrite,
        KeyInfo,
        MigrationInfo,
        OnInvalid,
        PutResult,
        RejectedRow,
        RevisionRecord,
        RoleGrant,
        RowRecord,
        RowWrite,
        StoreInfo,
        StorePolicyInfo,
        WhoAmI,
    )
    from ringcast_client._releases.proofs import ReleaseCertificate, ReleaseLack, ReleaseProof
    from ringcast_client._releases.records import (
        ReleaseApprovalInfo,
        ReleaseInfo,
        ReleaseKeyInfo,
        ReleaseRowInfo,
        RowReleaseInfo,
    )
    from ringcast_client._releases.releases import StagedRelease
    from ringcast_client._stores.dead_letters import DeadLetterRecord, ReplayOutcome, ReplayResult
    from ringcast_client._stores.reseal import ResealResult
    from ringcast_client._stores.schemas import BrokenRow, SchemaInfo, SchemaReport
    from ringcast_client._stores.states import AsOf, ChangeKind, RowDifference
    from ringcast_client._stores.status import JetStreamStatus, ServiceStatus, StreamStatus
    from ringcast_client._sync.sync import (
        DEFAULT_FIRST_ROWS,
        DEFAULT_MAX_DELETE_SHARE,
        SyncPhase,
        SyncProgress,
        SyncRefusedError,
        SyncResult,
    )

__all__ = [
    "AsOf",
    "AuditVerdict",
    "BatchResult",
    "BrokenRow",
    "BulkWrite",
    "ChangeKind",
    "ChangeWriter",
    "CommittedRow",
    "ConfigServiceClient",
    "DEFAULT_FIRST_ROWS",
    "DEFAULT_MAX_DELETE_SHARE",
    "DEFAULT_SERVICE",
    "DEFAULT_TIMEOUT_S",
    "DeadLetterRecord",
    "DeleteResult",
    "DeletionInfo",
    "InvalidRowError",
    "JetStreamStatus",
    "KeyInfo",
    "KeyedWrite",
    "MigrationInfo",
    "OnInvalid",
    "PutResult",
    "RejectedRow",
    "ReleaseApprovalInfo",
    "ReleaseCertificate",
    "ReleaseGate",
    "ReleaseInfo",
    "ReleaseKeyInfo",
    "ReleaseLack",
    "ReleaseProof",
    "ReleaseRowInfo",
    "ReplayOutcome",
    "ReplayResult",
    "ResealResult",
    "RevisionRecord",
    "RoleGrant",
    "RowDifference",
    "RowRecord",
    "RowReleaseInfo",
    "RowWrite",
    "SchemaInfo",
    "SchemaReport",
    "ServiceStatus",
    "StagedRelease",
    "StoreInfo",
    "StorePolicyInfo",
    "StreamStatus",
    "SyncPhase",
    "SyncProgress",
    "SyncRefusedError",
    "SyncResult",
    "WhoAmI",
    "check_address",
]

_HOMES = {
    "AsOf": "_stores.states",
    "AuditVerdict": "_common.records",
    "BatchResult": "_common.records",
    "BrokenRow": "_stores.schemas",
    "BulkWrite": "_bulk.write",
    "ChangeKind": "_stores.states",
    "ChangeWriter": "_calls.change_writer",
    "CommittedRow": "_common.records",
    "ConfigServiceClient": "_client",
    "DEFAULT_FIRST_ROWS": "_sync.sync",
    "DEFAULT_MAX_DELETE_SHARE": "_sync.sync",
    "DEFAULT_SERVICE": "_client",
    "DEFAULT_TIMEOUT_S": "_client",
    "DeadLetterRecord": "_stores.dead_letters",
    "DeleteResult": "_common.records",
    "DeletionInfo": "_common.records",
    "InvalidRowError": "_bulk.batches",
    "JetStreamStatus": "_stores.status",
    "KeyInfo": "_common.records",
    "KeyedWrite": "_common.records",
    "MigrationInfo": "_common.records",
    "OnInvalid": "_common.records",
    "PutResult": "_common.records",
    "RejectedRow": "_common.records",
    "ReleaseApprovalInfo": "_releases.records",
    "ReleaseCertificate": "_releases.proofs",
    "ReleaseGate": "_releases.releases",
    "ReleaseInfo": "_releases.records",
    "ReleaseKeyInfo": "_releases.records",
    "ReleaseLack": "_releases.proofs",
    "ReleaseProof": "_releases.proofs",
    "ReleaseRowInfo": "_releases.records",
    "RowReleaseInfo": "_releases.records",
    "ReplayOutcome": "_stores.dead_letters",
    "ReplayResult": "_stores.dead_letters",
    "ResealResult": "_stores.reseal",
    "RevisionRecord": "_common.records",
    "RoleGrant": "_common.records",
    "RowDifference": "_stores.states",
    "RowRecord": "_common.records",
    "RowWrite": "_common.records",
    "SchemaInfo": "_stores.schemas",
    "SchemaReport": "_stores.schemas",
    "ServiceStatus": "_stores.status",
    "StagedRelease": "_releases.releases",
    "StoreInfo": "_common.records",
    "StorePolicyInfo": "_common.records",
    "StreamStatus": "_stores.status",
    "SyncPhase": "_sync.sync",
    "SyncProgress": "_sync.sync",
    "SyncRefusedError": "_sync.sync",
    "SyncResult": "_sync.sync",
    "WhoAmI": "_common.records",
    "check_address": "_common.input",
}


if not TYPE_CHECKING:  # a checker would take any name for one of the module

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(__all__))
