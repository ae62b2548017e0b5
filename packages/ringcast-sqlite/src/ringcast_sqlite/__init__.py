"""SQLite for asyncio: one durable writer on a thread of its own, readers that never wait, clear errors."""

from __future__ import annotations

from ringcast_sqlite._connection import BUSY_TIMEOUT_S, Work, connect, transaction
from ringcast_sqlite._database import Database, Snapshot
from ringcast_sqlite._errors import (
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreOpenError,
    translate,
    translated,
)
from ringcast_sqlite._files import COMPANIONS, quarantine, quarantined, remove_database, sync_to_disk, try_lock
from ringcast_sqlite._threads import Threads

__all__ = [
    "BUSY_TIMEOUT_S",
    "COMPANIONS",
    "Database",
    "Snapshot",
    "StoreBusyError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreOpenError",
    "Threads",
    "Work",
    "connect",
    "quarantine",
    "quarantined",
    "remove_database",
    "sync_to_disk",
    "transaction",
    "translate",
    "translated",
    "try_lock",
]
