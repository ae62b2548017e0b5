"""Keeping a lease: when to write it, and what a refusal means."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from ringcast_wire import Backoff, LeaseRecord, RandomSource, limits

_QUICK_TRIES: Final = 3
_QUICK_TRY_S: Final = 0.5
_QUICK_PAUSE_S: Final = 0.15


class Refusal(Enum):
    """Why a compare-and-set of the lease failed."""

    OURS = auto()  # an earlier write of ours landed after all
    GONE = auto()  # it has expired: take it again
    TAKEN = auto()  # another process has it


class LeaseKeeper:
    """Times the writes of one lease: every ``refresh_s``, sooner after a failure.

    The first three tries of a heartbeat, each with its pause, fit into 2 s: after them it is known that something is
    wrong while most of the lease is left. Later tries are given more time, for a network that is only slow.
    """

    def __init__(
        self,
        record: LeaseRecord,
        random: RandomSource,
        *,
        refresh_s: float = limits.LEASE_REFRESH_S,
        ttl_s: float = limits.LEASE_TTL_S,
    ) -> None:
        self.record = record
        self.revision = 0
        self._refresh_s = refresh_s
        self._ttl_s = ttl_s
        self._backoff = Backoff(random, first_s=_QUICK_PAUSE_S, most_s=refresh_s / 2)
        self._written_at: float | None = None
        self._gone = False
        self._due = 0.0

    @property
    def due(self) -> float:
        """When to write next."""
        return self._due

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._backoff.failures

    @property
    def patience_s(self) -> float:
        """How long to wait for the answer to the next write; one that comes later may still have landed."""
        return _QUICK_TRY_S if self.failures < _QUICK_TRIES else max(_QUICK_TRY_S, self._refresh_s / 2)

    @property
    def in_trouble(self) -> bool:
        """Whether the quick tries have all failed."""
        return self.failures >= _QUICK_TRIES

    def refresh_now(self, now: float) -> None:
        """Writes at once: the connection is back, or the lease was seen to be gone."""
        self._due = now

    def written(self, revision: int, asked_at: float) -> bool:
        """A write succeeded; it lives from when it was asked for at the latest.

        Returns whether the lease had ended, or may have, since the write before: however many tries lie between, what
        one of them found is not forgotten.
        """
        lost = self._gone or (self._written_at is not None and self.expired(asked_at))
        self.revision = revision
        self._written_at = asked_at
        self._gone = False
        self._backoff.reset()
        self._due = asked_at + self._refresh_s
        return lost

    def failed(self, now: float) -> None:
        """A write was not answered; it may or may not have landed."""
        self._due = now + self._backoff.next_s()

    def expired(self, now: float) -> bool:
        """Whether the lease may have ended by now."""
        return self._written_at is None or now - self._written_at >= self._ttl_s

    def refused(self, found: LeaseRecord | None) -> Refusal:
        """What the record that stands there (``None``: a marker, or nothing) says about a failed compare-and-set."""
        if found is None:
            self._gone = self._written_at is not None
            return Refusal.GONE
        return Refusal.OURS if found.incarnation == self.record.incarnation else Refusal.TAKEN
