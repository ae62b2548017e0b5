"""What the store takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

Value = str | bytes
"""What a key holds. Text comes back as ``str`` and bytes as ``bytes``: the two are never mixed up."""


class Entry(NamedTuple):
    """One key as it stands."""

    group: str
    key: str
    value: Value
    expires_at_ms: int | None
    """Milliseconds since 1970 from which it is gone; ``None``: never."""
    revision: int
    """Revision of its last write, for ``compare_and_set``."""


class EventKind(StrEnum):
    """What happened."""

    SET = "set"
    DELETE = "delete"
    DELETE_GROUP = "delete_group"
    GAP = "gap"
    """No change, but a marker: some came before the next event, and this reader did not get them."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change, after its commit. Expiry is none: a key's ``expires_at_ms`` said it when the key was set."""

    kind: EventKind
    group: str
    """Empty for a gap."""
    key: str
    """Empty for a group's deletion and for a gap."""
    value: Value | None
    """What was set; ``None`` for a deletion, and when read from the change log after a later write of the same key."""
    revision: int
    """The store-wide number of the change: 1, 2, 3 … without gaps. For a gap, of the last change that is missing."""
    at_ms: int
    """When it was written, in milliseconds since 1970."""
    expires_at_ms: int | None = None
    missed: int = 0
    """For a gap: how many events this reader did not get."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store takes at most. What is larger is refused with an error that says so, and nothing is written."""

    max_group_bytes: int = 512
    """As UTF-8, with a namespace and its colon."""
    max_key_bytes: int = 512
    max_value_bytes: int = 4 * 1024 * 1024
    max_changes: int = 1_000_000
    """In one transaction."""
    max_file_bytes: int = 16 * 1024**3
    """Of the database file, the write-ahead log beside it not counted."""

    def __post_init__(self) -> None:
        for name, floor, ceiling in _RANGES:
            value = getattr(self, name)
            if not floor <= value <= ceiling:
                raise ValueError(f"{name} {value} is out of range: {floor} to {ceiling}")


_RANGES = (
    ("max_group_bytes", 1, 64 * 1024),
    ("max_key_bytes", 1, 64 * 1024),
    ("max_value_bytes", 1, 512 * 1024 * 1024),  # SQLite's own limit is 1e9
    ("max_changes", 1, 100_000_000),
    ("max_file_bytes", 64 * 1024, 2**44),
)


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a namespace may hold; ``None``: no limit. Writing to a key that is there already uses nothing up."""

    max_keys: int | None = None
    max_groups: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_keys", "max_groups"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} {value} is out of range: 1 or more, or None for no limit")
