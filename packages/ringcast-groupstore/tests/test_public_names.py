"""The names that others may rely on."""

from __future__ import annotations

import ringcast_groupstore


def test_the_public_names_are_frozen() -> None:
    assert ringcast_groupstore.__all__ == [
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
    assert all(hasattr(ringcast_groupstore, name) for name in ringcast_groupstore.__all__)
