"""What a store holds, and what a watch tells of it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Entry(NamedTuple):
    """A value under a key."""

    key: str
    value: bytes
    revision: int
    """Rises with each write to the store: compare-and-set takes it. A lease that is refreshed leaves it as it is."""
    leased: bool = False
    """Whether it goes when a lease ends."""


class Snapshot(NamedTuple):
    """Everything below a prefix; what was known before and is missing here is gone."""

    entries: tuple[Entry, ...]
    """In the order of their keys."""
    revision: int
    """All that was written below the prefix up to here is in it."""
    asked_at_s: float
    """When the watch asked for it, by the clock of the event loop: what was written before is in it."""


class Change(NamedTuple):
    """One entry was written, deleted, or has ended with its lease."""

    key: str
    entry: Entry | None
    """What stands there now; ``None``: nothing."""
    revision: int
    """Of this change. The end of a lease may have the revision of an earlier change."""


class Progress(NamedTuple):
    """A sign of life: all changes up to here were delivered."""

    revision: int
    """Of the whole store, also where the prefix has not changed."""
    asked_at_s: float
    """When the watch asked, by the clock of the event loop: what was written before was delivered."""


WatchEvent: TypeAlias = Snapshot | Change | Progress
