"""The client of the config service: create stores, write and read rows.

For tools and for applications that write. Workers don't need it: they receive changes and read over NATS.
"""

from __future__ import annotations

from ringcast_client._bulk_batches import InvalidRowError
from ringcast_client._bulk_write import BulkWrite
from ringcast_client._change_writer import ChangeWriter
from ringcast_client._client import DEFAULT_SERVICE, DEFAULT_TIMEOUT_S, ConfigServiceClient
from ringcast_client._dead_letters import DeadLetterRecord, ReplayOutcome, ReplayResult
from ringcast_client._input import check_address
from ringcast_client._records import (
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
from ringcast_client._sync import (
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
