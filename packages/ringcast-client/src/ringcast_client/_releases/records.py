"""What clients learn of releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ringcast_wire import ReleaseGate, ReleaseOutcome, ReleaseState, Rollout
from ringcast_wire.grpc import RELEASE_OUTCOMES, RELEASE_STATES, pb

from ringcast_client._common.enums import Known
from ringcast_client._common.input import check_range

STATES: Final = Known("a state of a release", RELEASE_STATES)
OUTCOMES: Final = Known("an outcome of a row of a release", RELEASE_OUTCOMES)


@dataclass(frozen=True, slots=True)
class ReleaseKeyInfo:
    """How many rows of a key a release adds, changes and deletes."""

    key: str
    added: int
    changed: int
    deleted: int


@dataclass(frozen=True, slots=True)
class ReleaseApprovalInfo:
    """That a principal has approved a release."""

    principal: str
    approved_at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseInfo:
    """A release: rows of several keys that are staged together, and published together.

    ``published``: rows that have a revision of it. ``undone``: of these, rows that were written back. ``skipped``: rows
    that others have written, and that publishing or undoing has left as they are. ``keys`` are empty in a list.
    ``rows_kept``: whether it can still be undone. ``problem``: why publishing or undoing has halted, which is tried
    again. ``proven_at_ms``: when it was proven that every worker has applied it, 0 if that is not proven, and
    ``proven_by``: the instance of the config service that proved it; neither is known in a list. ``rollout``: its
    waves, and how far they are; ``None``: it is published all at once. ``digest``: of what is staged; empty where an
    older build of the service has staged it. ``approvals``: the first first, and ``approvals_needed``: how many the
    policy of the store wants now; neither is known in a list. ``pinned``: its rows, and those of all releases after
    it, are kept, however old they become.
    """

    store: str
    number: int
    state: ReleaseState
    rows: int
    bytes: int
    published: int
    undone: int
    skipped: int
    keys: tuple[ReleaseKeyInfo, ...]
    author: str
    reason: str
    staged_at_ms: int
    changed_by: str
    change_reason: str
    changed_at_ms: int
    rows_kept: bool
    problem: str
    proven_at_ms: int = 0
    proven_by: str = ""
    rollout: Rollout | None = None
    digest: str = ""
    approvals: tuple[ReleaseApprovalInfo, ...] = ()
    approvals_needed: int = 0
    pinned: bool = False

    @property
    def is_paused(self) -> bool:
        """It is being published in waves, and goes on only once it is resumed."""
        return self.state is ReleaseState.PUBLISHING and self.rollout is not None and self.rollout.paused


@dataclass(frozen=True, slots=True)
class ReleaseRowInfo:
    """A row of a release: what it is to become (``value`` is ``None`` for a delete), and what it is or was before.

    ``old_value``: as the row is now, while it waits; otherwise as it was when it was published; ``None``: there was no
    row. ``staged_version``: of the row that the change was made for, 0 for none. ``found_version``: of the row now.
    ``version`` and ``undo_version``: what it was published and written back with, 0 if it was not.
    """

    place: int
    key: str
    partition: int
    row_id: str
    value: str | None
    metadata: dict[str, str]
    old_value: str | None
    old_metadata: dict[str, str]
    staged_version: int
    found_version: int
    outcome: ReleaseOutcome
    version: int
    undo_version: int

    @property
    def conflict(self) -> bool:
        """Another writer has changed the row since it was staged, or since it was published."""
        if self.outcome is ReleaseOutcome.WAITING:
            return self.found_version != self.staged_version
        if self.outcome is ReleaseOutcome.PUBLISHED:
            return self.found_version != (0 if self.value is None else self.version)
        return self.outcome in {ReleaseOutcome.SKIPPED, ReleaseOutcome.KEPT}


@dataclass(frozen=True, slots=True)
class RowReleaseInfo:
    """A release that has a row, and what became of the row in it.

    ``version`` and ``undo_version``: what the row was published and written back with, 0 if it was not.
    ``proven_at_ms``: when the release was proven, 0 if it is not. ``wave``: in which the row is, 0 where the release
    has no waves; ``rollout``: how far these are. ``approvals`` that the release has, ``approvals_needed`` by the policy
    of the store now.
    """

    number: int
    state: ReleaseState
    outcome: ReleaseOutcome
    version: int
    undo_version: int
    proven_at_ms: int
    wave: int = 0
    rollout: Rollout | None = None
    approvals: int = 0
    approvals_needed: int = 0


def release_number(number: int) -> int:
    """A number that a release may have."""
    return check_range("number", number, 1, 2**63 - 1)


def release_info(release: pb.Release) -> ReleaseInfo:
    """From the message."""
    return ReleaseInfo(
        release.store,
        release.number,
        STATES[release.state],
        release.rows,
        release.bytes,
        release.published,
        release.undone,
        release.skipped,
        tuple(ReleaseKeyInfo(key.key, key.added, key.changed, key.deleted) for key in release.keys),
        release.author,
        release.reason,
        release.staged_at_ms,
        release.changed_by,
        release.change_reason,
        release.changed_at_ms,
        release.rows_kept,
        release.problem,
        release.proven_at_ms,
        release.proven_by,
        rollout_info(release.rollout) if release.HasField("rollout") else None,
        release.digest,
        tuple(ReleaseApprovalInfo(each.principal, each.approved_at_ms, each.reason) for each in release.approvals),
        release.approvals_needed,
        release.pinned,
    )


def rollout_info(found: pb.ReleaseRollout) -> Rollout:
    """From the message."""
    return Rollout(
        tuple(found.waves),
        tuple(found.partitions),
        found.wave,
        found.at_gate,
        found.paused,
        found.waits_for,
        found.failure,
        ReleaseGate(found.gate.bake_ms, found.gate.max_refused, found.gate.patience_ms, tuple(found.gate.promql)),
        found.canary,
    )
