"""The names that others may rely on."""

from __future__ import annotations

import ringcast_sqlite


def test_the_public_names_are_frozen() -> None:
    assert ringcast_sqlite.__all__ == [
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
    assert all(hasattr(ringcast_sqlite, name) for name in ringcast_sqlite.__all__)
