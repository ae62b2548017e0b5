"""What a group store refuses, beside what SQLite reports."""

from __future__ import annotations

from ringcast_sqlite import StoreError


class InputError(StoreError, ValueError):
    """A name, value, time or count is not what it may be; the message names the field, the value and the limit."""


class NotFoundError(StoreError, LookupError):
    """The group has no such key, or it has expired."""


class QuotaExceededError(StoreError):
    """The write would give a namespace more keys or groups than its quota allows. Nothing was written."""


class RevisionGapError(StoreError):
    """The change log does not have what came after ``since``. Read the whole again, then resume from ``newest``."""

    def __init__(self, since: int, oldest: int, newest: int) -> None:
        super().__init__(f"no changes since revision {since} are at hand: those since {oldest} to {newest} are")
        self.since = since
        self.oldest = oldest
        self.newest = newest


class TemplateError(StoreError):
    """A template can't be parsed or rendered."""
