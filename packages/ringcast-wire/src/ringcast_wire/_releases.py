"""The words of releases that both ends know."""

from __future__ import annotations

from enum import StrEnum


class ReleaseState(StrEnum):
    """How far a release is."""

    STAGING = "staging"
    """Its rows are coming."""
    STAGED = "staged"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    UNDOING = "undoing"
    UNDONE = "undone"
    DROPPED = "dropped"
    EXPIRED = "expired"
    """It was staged for too long."""


class ReleaseOutcome(StrEnum):
    """What became of one row of a release."""

    WAITING = "waiting"
    PUBLISHED = "published"
    SKIPPED = "skipped"
    """Not published: somebody had written the row since it was staged."""
    UNDONE = "undone"
    KEPT = "kept"
    """Published and not undone: somebody has written the row since."""
