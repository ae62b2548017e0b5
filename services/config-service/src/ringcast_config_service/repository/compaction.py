"""Removing what is past its retention: in small pieces, by age, by the instance that leads maintenance.

The clock is the database's. Each piece is a short transaction that first checks, under a lock, that no other instance
has taken the lead since (:mod:`~ringcast_config_service.repository.lead`). Pieces are found by indexes on the time of
the write, so a pass costs by what has become old since the last one, not by what there is.

Of the history, a revision goes when the next one of its row is past the retention. So the newest revision of each row
that is older than the retention stays, as long as the row is live or has newer ones: what undoing those needs. A
deletion goes by its own age, and where a row has nothing older than the retention, it was not there then.

A store may have a retention of its own for the history, by the policy ``history_retention_ms``. From the first pass
that finds the policy its revisions are left out of the pass for all others, and have a pass and a horizon of their own:
also once the policy is lifted, since the pass for all others is past the revisions that the store has kept for longer.
The same holds for a store from the first pass on that finds a pinned release: nothing goes that was there when that was
staged, or later, so that the store can be read as it was when it was published.
Its tombstones have a pass of their own as long as it has the policy ``tombstone_retention_ms``: those passes begin with
the oldest each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ringcast_config_service.repository import mapping
from ringcast_config_service.repository.base import Compaction
from ringcast_config_service.repository.lead import Lead

DUTY: Final = "compaction"
HORIZON: Final = "history-horizon"
"""Both with ``/`` and the name of a store, where it has a retention of its own: as the fragment ``horizon`` says."""
TOMBSTONES: Final = "tombstones"
"""With ``/`` and the name of a store: a mark that its tombstones are left out of the pass for all others."""
ALL_OTHERS: Final = ""
"""In place of a store: all that have no retention of their own."""
PIECE_ROWS: Final = 1_000
"""Tombstones in a transaction: it locks the heads of their partitions."""
PIECE_REVISIONS: Final = 5_000
"""Revisions in a transaction, which needs no locks; more if a single write has more."""
_LATE_COMMIT_MS: Final = 180_000
"""A write is stamped when its transaction begins, and seen when that ends: so much is looked at again by each pass."""


class Progress(NamedTuple):
    """How far the last pass got, and the time; both by the database's clock."""

    done_ms: int
    now_ms: int


class Moment(NamedTuple):
    """Where a piece of tombstones begins."""

    at_ms: int
    version: int


class StoreRetention(NamedTuple):
    """A store with a retention of its own, or one that had it for the history; then ``ms`` is ``None``.

    ``kept_from_ms``: since when nothing of its history goes, whatever the retention; ``None``: no release is pinned.
    """

    store: str
    ms: int | None
    kept_from_ms: int | None = None


class Retentions(NamedTuple):
    """The stores with retentions of their own, for what."""

    tombstones: list[StoreRetention]
    history: list[StoreRetention]


class Marks(NamedTuple):
    """What is to be noted, so that the pass for all others leaves out what it has to: duties to copy, and to drop."""

    copies: list[tuple[str, str]]
    """Each with the one that it begins as."""
    drops: list[str]


class Steps(Protocol):
    """What a database does for a pass. What changes something is a transaction, and raises ``LostLeadError``.

    ``store``: the one that it is about, or :data:`ALL_OTHERS`.
    """

    async def progress(self, store: str) -> Progress:
        """Where the pass begins."""

    async def retentions(self, lead: Lead) -> Retentions:
        """Stores with retentions of their own. From then on they are none of all others."""

    async def done(self, lead: Lead, store: str, done_ms: int) -> None:
        """Notes how far history is done."""

    async def drop_tombstones(self, lead: Lead, store: str, first: Moment, before_ms: int) -> tuple[int, Moment | None]:
        """Removes a piece, oldest first; how many, and where the next piece begins, ``None`` if there is none."""

    async def drop_history(self, lead: Lead, store: str, after_ms: int, before_ms: int) -> tuple[int, int | None]:
        """The same for what the revisions of a piece have made needless."""


async def compact(steps: Steps, lead: Lead, tombstones_ms: int, history_ms: int) -> Compaction:
    """One pass: what is older than these. Where one broke off, the next removes what it has left."""
    tombstones = revisions = 0
    own = await steps.retentions(lead)
    for store, own_ms, _ in (*own.tombstones, StoreRetention(ALL_OTHERS, None)):
        tombstones += await _compact_tombstones(steps, lead, store, tombstones_ms if own_ms is None else own_ms)
    for store, own_ms, kept_from_ms in (*own.history, StoreRetention(ALL_OTHERS, None)):
        kept_ms = history_ms if own_ms is None else own_ms
        revisions += await _compact_history(steps, lead, store, kept_ms, kept_from_ms)
    return Compaction(tombstones, revisions)


async def _compact_tombstones(steps: Steps, lead: Lead, store: str, tombstones_ms: int) -> int:
    _, now_ms = await steps.progress(ALL_OTHERS)
    tombstones = 0
    first: Moment | None = Moment(0, 0)
    while first is not None:
        dropped, first = await steps.drop_tombstones(lead, store, first, now_ms - tombstones_ms)
        tombstones += dropped
    return tombstones


async def _compact_history(steps: Steps, lead: Lead, store: str, history_ms: int, kept_from_ms: int | None) -> int:
    done_ms, now_ms = await steps.progress(store)
    revisions = 0
    before_ms = now_ms - history_ms
    if kept_from_ms is not None:
        before_ms = min(before_ms, kept_from_ms - _LATE_COMMIT_MS)
    after: int | None = max(0, done_ms - _LATE_COMMIT_MS)
    while after is not None:
        dropped, after = await steps.drop_history(lead, store, after, before_ms)
        revisions += dropped
    await steps.done(lead, store, before_ms)
    return revisions


def duty_of(duty: str, store: str) -> str:
    """The name of a duty for a store."""
    return f"{duty}/{store}" if store else duty


def own_retentions(found: Iterable[Sequence[Any]]) -> tuple[Retentions, Marks]:
    """From records of the statement ``OWN_RETENTIONS``: those that there are, and what is to be noted of them."""
    own, marks = Retentions([], []), Marks([], [])
    for store, text, has_horizon, is_left_out, kept_from_ms in found:
        policy = mapping.to_policy(text)
        history_ms, tombstones_ms = policy.history_retention_ms, policy.tombstone_retention_ms
        has_own = history_ms is not None or kept_from_ms is not None
        if has_own or has_horizon:
            own.history.append(StoreRetention(store, history_ms, kept_from_ms))
        if has_own and not has_horizon:
            marks.copies.extend((duty_of(duty, store), duty) for duty in (DUTY, HORIZON))
        if tombstones_ms is not None:
            own.tombstones.append(StoreRetention(store, tombstones_ms))
        if (tombstones_ms is not None) != bool(is_left_out):
            name = duty_of(TOMBSTONES, store)
            if is_left_out:
                marks.drops.append(name)
            else:
                marks.copies.append((name, DUTY))
    return own, marks


def next_piece(end_ms: int | None, after_ms: int, before_ms: int) -> tuple[int, int | None]:
    """Where a piece ends, and where the next begins. ``end_ms``: the time of the first revision beyond it."""
    if end_ms is None:
        return before_ms, None
    upto = max(end_ms, after_ms + 1)  # of one time, all belong to one piece
    return upto, upto if upto < before_ms else None


def needless(old: Iterable[Sequence[Any]]) -> list[tuple[int, int, int]]:
    """What goes by revisions (key id, partition, revision, prev, deleted) that are past the retention."""
    found: list[tuple[int, int, int]] = []
    for key_id, partition, revision, prev, deleted in old:
        if prev:
            found.append((key_id, partition, prev))
        if deleted:
            found.append((key_id, partition, revision))
    return sorted(set(found))
