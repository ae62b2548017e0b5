"""The system of record: one interface, one shared decision, two databases."""

from __future__ import annotations

from ringcast_config_service.repository.base import (
    Chain,
    Compaction,
    HistoryFilter,
    KeyStats,
    ListedRow,
    ListFilter,
    LockedError,
    OutboxRecord,
    OutboxSpan,
    OutboxState,
    PoolUse,
    RefusedRecord,
    Repository,
    Revision,
    RowWrite,
    StoreInfo,
    StoreRecord,
    WriteOutcome,
    WriteRequest,
    Written,
    new_history_id,
)
from ringcast_config_service.repository.connect import make_repository

__all__ = [
    "Chain",
    "Compaction",
    "HistoryFilter",
    "KeyStats",
    "ListFilter",
    "ListedRow",
    "LockedError",
    "OutboxRecord",
    "OutboxSpan",
    "OutboxState",
    "PoolUse",
    "RefusedRecord",
    "Repository",
    "Revision",
    "RowWrite",
    "StoreInfo",
    "StoreRecord",
    "WriteOutcome",
    "WriteRequest",
    "Written",
    "make_repository",
    "new_history_id",
]
