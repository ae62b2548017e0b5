"""How long a store waits, and how much it keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ringcast_wire import InvalidInputError, shown

_RANGES = {
    "call_timeout_s": (0.05, 60.0),
    "check_interval_s": (0.05, 60.0),
    "silent_after_s": (0.1, 600.0),
    "snapshot_timeout_s": (0.1, 600.0),
    "max_queued_changes": (1, 65_536),
}


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Settings of a store.

    Raises:
        InvalidInputError: a value is out of its range.
    """

    call_timeout_s: float = 5.0
    """How long one call waits for an answer (0.05 to 60)."""
    check_interval_s: float = 1.0
    """How often a watch asks whether it missed anything (0.05 to 60)."""
    silent_after_s: float = 3.5
    """A watch without an answer for so long is broken, and starts again with a snapshot (0.1 to 600)."""
    snapshot_timeout_s: float = 30.0
    """How long a watch waits for a snapshot (0.1 to 600)."""
    max_queued_changes: int = 1024
    """Changes that wait for a slow reader of a watch; past it they are dropped for a new snapshot (1 to 65536)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            least, most = _RANGES[field.name]
            value = getattr(self, field.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
                raise InvalidInputError(
                    f"{field.name} {shown(value)} is out of range: {least:g} to {most:g} is allowed", field=field.name
                )
