"""The client of the config service: create stores, write and read rows.

For tools and for applications that write. Workers don't need it: they hear and read over NATS.
"""

from __future__ import annotations

from ringcast._client.bulk_batches import InvalidRowError
from ringcast._client.bulk_write import BulkWrite
from ringcast._client.change_writer import ChangeWriter
from ringcast._client.client import DEFAULT_SERVICE, DEFAULT_TIMEOUT_S, ConfigServiceClient
from ringcast._client.dead_letters import DeadLetterRecord, ReplayOutcome, ReplayResult
from ringcast._client.input import check_address
from ringcast._client.records import (
    BatchResult,
    CommittedRow,
    DeleteResult,
    DeletionInfo,
    KeyedWrite,
    KeyInfo,
    OnInvalid,
    PutResult,
    RejectedRow,
    RevisionRecord,
    RowRecord,
    RowWrite,
    StoreInfo,
)
from ringcast._client.sync import (
    DEFAULT_FIRST_ROWS,
    DEFAULT_MAX_DELETE_SHARE,
    SyncPhase,
    SyncProgress,
    SyncRefusedError,
    SyncResult,
)

__all__ = [
    "BatchResult",
    "BulkWrite",
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
    "KeyInfo",
    "KeyedWrite",
    "OnInvalid",
    "PutResult",
    "RejectedRow",
    "ReplayOutcome",
    "ReplayResult",
    "RevisionRecord",
    "RowRecord",
    "RowWrite",
    "StoreInfo",
    "SyncPhase",
    "SyncProgress",
    "SyncRefusedError",
    "SyncResult",
    "check_address",
]
