"""An embedded SQLite store of groups and keys: one durable writer, readers that never wait."""

from __future__ import annotations

from ringcast_sqlite import (
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreOpenError,
)

from ringcast_groupstore._errors import InputError, NotFoundError, QuotaExceededError, RevisionGapError, TemplateError
from ringcast_groupstore._namespace import Namespace, Transaction
from ringcast_groupstore._store import GroupStore
from ringcast_groupstore._types import Entry, Event, EventKind, Limits, Quota, Value
from ringcast_groupstore._view import NamespaceView, View
from ringcast_groupstore._watch import LiveWatch, LogWatch, Watch

__all__ = [
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
    "GroupStore",
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
