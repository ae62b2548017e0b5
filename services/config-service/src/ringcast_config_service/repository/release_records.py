"""What a release is as it is stored, and what a system of record offers for releases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from ringcast_wire import (
    DEFAULT_GATE,
    KeyCertificate,
    ReleaseGate,
    ReleaseOutcome,
    ReleaseState,
    Rollout,
)

from ringcast_config_service.repository.base import (
    Authorship,
    OutboxRecord,
    RowWrite,
    StoreRecord,
)
from ringcast_config_service.repository.release_draw import NO_CANARY, Canary

PUBLISH: Final = "publish"
WAVE: Final = "wave"
LAY: Final = "lay"
UNDO: Final = "undo"
REMOVE: Final = "remove"
"""What is to be done with the rows of a release. ``LAY``: workers lay them over; older builds leave that alone."""


class ReleaseKey(NamedTuple):
    """How many rows of a key a release adds, changes and deletes."""

    name: str
    added: int
    changed: int
    deleted: int


class Approval(NamedTuple):
    """That a principal has approved a release."""

    principal: str
    approved_at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """A release as it is stored; the columns of ``release_columns``. What follows those is not read for a list.

    ``digest``: of what is staged (:mod:`~.repository.release_approvals`); ``None``: an older build has staged it.
    ``approvals_needed``: how many the policy of its store wants now.
    ``proven_at_ms``: 0 as long as it is not proven. ``proven_by``: the instance that proved it.
    """

    store: str
    number: int
    stage_id: str
    state: ReleaseState
    work: str
    kept: bool
    rows: int
    bytes: int
    batches: int
    reached: int
    published: int
    undone: int
    skipped: int
    author: str
    reason: str
    changed_by: str
    change_reason: str
    problem: str
    staged_at_ms: int
    changed_at_ms: int
    worked_at_ms: int
    rollout: Rollout | None = None
    digest: str | None = None
    keys: tuple[ReleaseKey, ...] = ()
    proven_at_ms: int = 0
    proven_by: str = ""
    approvals: tuple[Approval, ...] = ()
    approvals_needed: int = 0
    pinned: bool = False

    @property
    def place(self) -> str:
        """How sentences name it."""
        return f"release {self.number} of store {self.store!r}"

    @property
    def at_gate(self) -> bool:
        """A wave of it is published, or laid over, and it is to be seen whether the next one may follow."""
        return self.work in {WAVE, LAY} and self.rollout is not None and self.rollout.at_gate

    @property
    def is_laid_over(self) -> bool:
        """Whether workers with the label of its canary are to hold its rows as provisional ones."""
        return self.state is ReleaseState.PUBLISHING and self.rollout is not None and self.rollout.provisional

    @property
    def is_only_laid_over(self) -> bool:
        """The same, and nothing of it is published before the gate of this wave is passed."""
        return self.is_laid_over and self.rollout is not None and self.rollout.wave == 1

    def changes(self) -> tuple[Any, ...]:
        """The parameters of SET_RELEASE."""
        return (
            self.store,
            self.number,
            str(self.state),
            self.work,
            self.kept,
            self.rows,
            self.bytes,
            self.batches,
            self.reached,
            self.published,
            self.undone,
            self.skipped,
            self.changed_by,
            self.change_reason,
            self.problem,
            None if self.rollout is None else msgspec.json.encode(self.rollout).decode(),
            self.digest,
        )


class StagedRow(NamedTuple):
    """A checked row; its ``condition`` is the version that it was compared with, 0 where there was none."""

    key: str
    row: RowWrite


class StageBatch(NamedTuple):
    """One batch of rows of a release that is being staged."""

    stage_id: str
    sequence: int
    rows: Sequence[StagedRow]
    complete: bool


class ReleaseRow(NamedTuple):
    """A row of a release, what it was before (``None``: there was none), and what became of it."""

    place: int
    key: str
    partition: int
    row_id: str
    value: str | None
    metadata: dict[str, str] | None
    staged_version: int
    old_value: str | None
    old_metadata: dict[str, str] | None
    found_version: int
    outcome: ReleaseOutcome
    version: int
    undo_version: int


class StagedFound(NamedTuple):
    """A row of a release that is staged; ``base``: the version that it was compared with, 0 where there was none."""

    place: int
    partition: int
    row_id: str
    value: str | None
    metadata: dict[str, str] | None
    base: int


class StagedPage(NamedTuple):
    """Rows of a release that are to be laid over, and its state: only of one that is being published there are any."""

    state: ReleaseState
    rows: list[StagedFound]


class KeyRevisions(NamedTuple):
    """What a release has written to a key: of each partition the first and the last revision. ``history``: of now."""

    key: str
    history: str
    ranges: dict[int, tuple[int, int]]


class RowRelease(NamedTuple):
    """A release that has a row, and what became of the row. ``version`` and the rest: 0 where there is none.

    ``wave``: in which the row is. ``approvals`` that it has, ``approvals_needed`` by the policy of the store now.
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


class Certificate(NamedTuple):
    """What proves a release, of each key."""

    proven_at_ms: int
    instance: str
    keys: tuple[KeyCertificate, ...]


class Step(NamedTuple):
    """What a step did: ``done`` when there is nothing more to do; ``counts``: rows written of each key."""

    release: Release
    done: bool
    events: Sequence[OutboxRecord] = ()
    counts: Sequence[tuple[str, int]] = ()


class ReleaseRepository(Protocol):
    """Releases: staged rows that are published, and undone, step by step (:mod:`~.repository.releases` says how)."""

    async def stage(self, store: StoreRecord, batch: StageBatch, by: Authorship) -> Release:
        """Stores a batch of rows, unless it is stored; the first creates the release, the last completes it.

        Raises:
            InvalidInputError: the release is complete, or another principal's; or the batch is not the next one, or is
                stored with other rows, or a row comes twice.
            LimitExceededError: there are too many open releases, or the release has too many rows or bytes.
        """

    async def get(self, store: str, number: int) -> Release:
        """A release with its keys.

        Raises:
            InvalidInputError: there is none of that number.
        """

    async def newest(self, store: str, before: int, limit: int) -> list[Release]:
        """Releases below a number, the newest first, without their keys."""

    async def rows(
        self, store: str, number: int, after: int, limit: int, max_bytes: int, *, conflicts_only: bool
    ) -> list[ReleaseRow]:
        """Rows of a release behind a place: up to ``limit``, of up to ``max_bytes`` together, and always the first."""

    async def publish(
        self,
        store: str,
        number: int,
        staged_ms: int,
        by: Authorship,
        waves: Sequence[int] = (),
        gate: ReleaseGate = DEFAULT_GATE,
        canary: Canary = NO_CANARY,
        *,
        allowed: bool = False,
    ) -> Release:
        """Lets a release be published that was staged for ``staged_ms`` at most; :meth:`step` does it.

        ``waves``: percents of its partitions, rising to 100; empty: all at once. :meth:`pass_gate` leads from one wave
        to the next. ``gate``: what has to hold then. ``canary``: the first wave, for which ``waves`` has a 0 in front.
        ``allowed``: the external check has allowed what is staged.

        Raises:
            LimitExceededError: its canary is to lay its rows over while that of another release has not ended.
            UnavailableError: it has not been asked, and the store wants that.
            ConditionFailedError: a row was written since, or the release has too few approvals, or is in a state in
                which it can't be.
            KeyDeletedError: one of its keys is deleted.
        """

    async def key_partitions(self, store: str, number: int) -> dict[str, set[int]]:
        """The partitions of each key that a release has rows for."""

    async def staged_rows(
        self, store: str, number: int, key: str, partitions: Collection[int], after: int, limit: int, max_bytes: int
    ) -> list[StagedFound]:
        """Rows that a staged release has for partitions of a key, behind a place: up to ``limit``, of up to
        ``max_bytes`` together, and always the first.

        Raises:
            ConditionFailedError: the release is not staged.
        """

    async def provisional_rows(
        self, store: str, number: int, key: str, partitions: Collection[int], after: int, limit: int, max_bytes: int
    ) -> StagedPage:
        """The same of one whose rows are to be laid over; those that are published are not among them.

        Raises:
            ConditionFailedError: it is published without such rows.
        """

    async def approve(self, store: str, number: int, by: Authorship, digest: str = "") -> Release:
        """Notes that a principal approves a staged release; ``digest``: what it approves, empty: what is staged.

        Raises:
            ConditionFailedError: it is not staged, or something else is.
            PermissionDeniedError: the principal has staged it, or one of the two is not known.
            LimitExceededError: as many as may be have approved it.
        """

    async def revoke(self, store: str, number: int, by: Authorship) -> Release:
        """Takes the approval of a principal back.

        Raises:
            ConditionFailedError: the release is not staged any more.
        """

    async def pause(self, store: str, number: int, by: Authorship) -> Release:
        """Has no more rows published of a release with waves, until :meth:`resume`.

        Raises:
            ConditionFailedError: it is not being published in waves.
        """

    async def resume(self, store: str, number: int, by: Authorship) -> Release:
        """Lets a release go on that was paused.

        Raises:
            ConditionFailedError: it is not being published in waves.
        """

    async def stop(self, store: str, number: int, by: Authorship) -> Release:
        """Has no more rows published of a release with waves.

        Raises:
            ConditionFailedError: it is not being published in waves.
        """

    async def note_gate(self, store: str, number: int, wave: int, waits_for: str) -> bool:
        """Notes what a wave waits for at its gate, and that an instance works at it; ``False``: it is gone."""

    async def fail_gate(self, store: str, number: int, wave: int, why: str) -> Release:
        """Lets a release be undone; nothing if it is not at the gate of this wave."""

    async def pass_gate(
        self, store: str, number: int, wave: int, proven: Sequence[KeyCertificate] = (), instance: str = ""
    ) -> Release:
        """Lets the next wave begin, or ends the release; nothing if it is not at the gate of this wave.

        ``proven``: what ``instance`` has found of what is published. It is stored as by :meth:`set_proven` where it is
        about the whole release, and still holds.
        """

    async def undo(self, store: str, number: int, by: Authorship) -> Release:
        """Lets a release be undone; :meth:`step` does it.

        Raises:
            ConditionFailedError: it is in a state in which it can't be.
        """

    async def drop(self, store: str, number: int, by: Authorship) -> Release:
        """Lets a release be removed that is not published; :meth:`step` does it.

        Raises:
            ConditionFailedError: it is in a state in which it can't be.
        """

    async def pin(self, store: str, number: int, by: Authorship) -> Release:
        """Keeps the rows of a published release and of all after it; it takes the place of the one that was pinned.

        Raises:
            ConditionFailedError: it is not published, or some of these rows are removed.
        """

    async def unpin(self, store: str, number: int, by: Authorship) -> Release:
        """Takes that back; nothing if none is pinned.

        Raises:
            ConditionFailedError: another one is pinned.
        """

    async def revisions(self, store: str, number: int) -> list[KeyRevisions]:
        """What a published release has written, by key.

        Raises:
            ConditionFailedError: its rows are removed, or it has published none.
            KeyDeletedError: one of its keys is deleted.
        """

    async def version_of(self, store: str, number: int, key: str, row_id: str) -> int:
        """The version that a release has given to a row, 0 for none."""

    async def of_row(self, store: str, key: str, row_id: str, limit: int) -> list[RowRelease]:
        """The newest releases that have a row, as long as their rows are kept."""

    async def set_proven(
        self, store: str, number: int, keys: Sequence[KeyCertificate], instance: str
    ) -> tuple[Release, Certificate]:
        """Stores what proves a release, unless that is stored; returns what is.

        Raises:
            ConditionFailedError: it is not published, or a key has another history by now.
        """

    async def certificate(self, store: str, number: int) -> Certificate | None:
        """What proves a release, if it is proven."""

    async def step(self, store: str, number: int, generation: int) -> Step:
        """Does the next piece of what is to be done with a release, in one transaction.

        Any instance may, at any time, again too. ``generation``: as of ``WriteRequest``.

        Raises:
            RingcastError: the write was refused; nothing of this step is done.
        """

    async def expire(self, staged_ms: int, done_ms: int) -> Release | None:
        """Lets the rows of one release be removed that was staged, or done, so long ago, or is done and was followed by
        ``MAX_KEPT_RELEASES`` others; ``None`` if there is none."""

    async def due(self, idle_ms: int) -> list[tuple[str, int]]:
        """Store and number of up to 100 releases that have something to do, and had no step for so long."""

    async def counts(self) -> dict[str, int]:
        """How many releases of all stores are in each state that one is in; ``halted`` is another one here."""

    async def set_problem(self, store: str, number: int, problem: str) -> None:
        """Notes why a step failed."""
