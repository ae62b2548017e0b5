"""The client of the config service: create stores, write and read rows.

For tools and for applications that write. Workers don't need it: they receive changes and read over NATS.

Names are imported when they are first used: what only fetches, as tasks of Spark do, needs no gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcast_wire import ReleaseGate

    from ringcast_client._bulk_batches import InvalidRowError
    from ringcast_client._bulk_write import BulkWrite
    from ringcast_client._change_writer import ChangeWriter
    from ringcast_client._client import DEFAULT_SERVICE, DEFAULT_TIMEOUT_S, ConfigServiceClient
    from ringcast_client._dead_letters import DeadLetterRecord, ReplayOutcome, ReplayResult
    from ringcast_client._input import check_address
    from ringcast_client._records import (
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
    from ringcast_client._release_proofs import ReleaseCertificate, ReleaseLack, ReleaseProof
    from ringcast_client._release_records import (
        ReleaseApprovalInfo,
        ReleaseInfo,
        ReleaseKeyInfo,
        ReleaseRowInfo,
        RowReleaseInfo,
    )
    from ringcast_client._releases import StagedRelease
    from ringcast_client._reseal import ResealResult
    from ringcast_client._schemas import BrokenRow, SchemaInfo, SchemaReport
    from ringcast_client._states import AsOf, ChangeKind, RowDifference
    from ringcast_client._status import JetStreamStatus, ServiceStatus, StreamStatus
    from ringcast_client._sync import (
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
    "AsOf": "_states",
    "AuditVerdict": "_records",
    "BatchResult": "_records",
    "BrokenRow": "_schemas",
    "BulkWrite": "_bulk_write",
    "ChangeKind": "_states",
    "ChangeWriter": "_change_writer",
    "CommittedRow": "_records",
    "ConfigServiceClient": "_client",
    "DEFAULT_FIRST_ROWS": "_sync",
    "DEFAULT_MAX_DELETE_SHARE": "_sync",
    "DEFAULT_SERVICE": "_client",
    "DEFAULT_TIMEOUT_S": "_client",
    "DeadLetterRecord": "_dead_letters",
    "DeleteResult": "_records",
    "DeletionInfo": "_records",
    "InvalidRowError": "_bulk_batches",
    "JetStreamStatus": "_status",
    "KeyInfo": "_records",
    "KeyedWrite": "_records",
    "MigrationInfo": "_records",
    "OnInvalid": "_records",
    "PutResult": "_records",
    "RejectedRow": "_records",
    "ReleaseApprovalInfo": "_release_records",
    "ReleaseCertificate": "_release_proofs",
    "ReleaseGate": "_releases",
    "ReleaseInfo": "_release_records",
    "ReleaseKeyInfo": "_release_records",
    "ReleaseLack": "_release_proofs",
    "ReleaseProof": "_release_proofs",
    "ReleaseRowInfo": "_release_records",
    "RowReleaseInfo": "_release_records",
    "ReplayOutcome": "_dead_letters",
    "ReplayResult": "_dead_letters",
    "ResealResult": "_reseal",
    "RevisionRecord": "_records",
    "RoleGrant": "_records",
    "RowDifference": "_states",
    "RowRecord": "_records",
    "RowWrite": "_records",
    "SchemaInfo": "_schemas",
    "SchemaReport": "_schemas",
    "ServiceStatus": "_status",
    "StagedRelease": "_releases",
    "StoreInfo": "_records",
    "StorePolicyInfo": "_records",
    "StreamStatus": "_status",
    "SyncPhase": "_sync",
    "SyncProgress": "_sync",
    "SyncRefusedError": "_sync",
    "SyncResult": "_sync",
    "WhoAmI": "_records",
    "check_address": "_input",
}


if not TYPE_CHECKING:  # a checker would take any name for one of the module

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(__all__))
