"""The names that others may rely on."""

from __future__ import annotations

import ringcast_client
from ringcast_client import blocking, fetches


def test_the_public_names_are_frozen() -> None:
    assert ringcast_client.__all__ == [
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
    assert all(hasattr(ringcast_client, name) for name in ringcast_client.__all__)
    assert set(ringcast_client.__all__) <= set(dir(ringcast_client))


def test_the_public_names_of_its_modules_are_frozen() -> None:
    assert blocking.__all__ == [
        "AnsweredBatch",
        "BlockingBulkWrite",
        "BlockingFetchClient",
        "BlockingStoreCalls",
        "CallRetries",
        "ServiceConnection",
        "retried",
    ]
    assert fetches.__all__ == [
        "BlockingFetchClient",
        "FetchClient",
        "FetchRequest",
        "FetchRetries",
        "batch_request",
        "heads_request",
        "partition_request",
    ]
