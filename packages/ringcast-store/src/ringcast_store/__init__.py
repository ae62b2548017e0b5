"""An embedded SQLite store of groups and keys: one durable writer, readers that never wait."""

from __future__ import annotations

from ringcast_store._database import Database, Snapshot
from ringcast_store._errors import (
    InputError,
    NotFoundError,
    QuotaExceededError,
    RevisionGapError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreOpenError,
    TemplateError,
)
from ringcast_store._namespace import Namespace, NamespaceView
from ringcast_store._store import Store
from ringcast_store._transaction import Transaction
from ringcast_store._types import Entry, Event, EventKind, Limits, Quota, Value
from ringcast_store._view import View
from ringcast_store._watch import LiveWatch, LogWatch, Watch

__all__ = [
    "Database",
    "Entry",
    "Event",
    "EventKind",
    "InputError",
    "Limits",
    "LiveWatch",
    "LogWatch",
    "Namespace",
    "NamespaceView",
    "NotFoundError",
    "Quota",
    "QuotaExceededError",
    "RevisionGapError",
    "Snapshot",
    "Store",
    "StoreBusyError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreOpenError",
    "TemplateError",
    "Transaction",
    "Value",
    "View",
    "Watch",
]
