"""The names that others may rely on."""

from __future__ import annotations

import ringcast_store


def test_the_public_names_are_frozen() -> None:
    assert ringcast_store.__all__ == [
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
    assert all(hasattr(ringcast_store, name) for name in ringcast_store.__all__)
