"""What a report says of rows that the application refuses."""

from __future__ import annotations

from ringcast_wire.reports import MAX_DRY_REASON, clipped


def shown(value: object) -> str:
    """What is of the application, which may fail at that too."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # whatever the application raises
        return type(value).__name__


def printable(text: str) -> str:
    """As much of it as a message takes: no message takes half a surrogate pair."""
    return clipped(text[:MAX_DRY_REASON].encode(errors="backslashreplace").decode(), MAX_DRY_REASON)
