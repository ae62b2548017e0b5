"""The words of releases that both ends know."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from ringcast_wire._report_messages import WorkerKind, partitions_of


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


class CertifiedWorker(msgspec.Struct, frozen=True):
    """A worker that has applied a release in the partitions that it owned: ``spans`` is first, count, first, …"""

    worker_id: str
    incarnation: str
    kind: WorkerKind
    spans: tuple[int, ...]


class KeyCertificate(msgspec.Struct, frozen=True):
    """That the workers of a key have applied a release: ``docs/releases.md`` says what that means.

    ``spans`` are the partitions in which the release wrote, and ``revisions`` the last one that it gave to each of
    them. ``history``: that the revisions belong to.
    """

    key: str
    history: str
    spans: tuple[int, ...]
    revisions: tuple[int, ...]
    workers: tuple[CertifiedWorker, ...]

    def partitions(self) -> Iterator[tuple[int, int]]:
        """Each partition with the last revision that the release gave to it."""
        return zip(partitions_of(self.spans), self.revisions, strict=True)
