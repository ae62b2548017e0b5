"""Which lease the records of a worker under an agent name: the host's while the agent answers, else its own."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 2.0
"""How long a lost agent is waited for before the records are written again: a restarted one goes on with its lease."""
LINGER_S: Final = 2.0
"""How long the worker's own lease is kept after the records name the host's again: watches may be late."""
SURE_S: Final = 5.0
"""A lost agent's lease lives at least so long: the agent refreshes it every 2.5 s."""


class LeaseChoice:
    """Two leases at most, and which of them goes into the records. The worker's own is held before it is named there,
    and until the records that named it have long been others."""

    def __init__(self, own: str) -> None:
        self.id = own
        """What the records are to name."""
        self.host: str | None = None
        """The host's lease, while the agent answers."""
        self.own_held = False
        self._own = own
        self._lost_at: float | None = None
        self._given_up = False
        self._recorded = ""
        self._recorded_at = 0.0

    def answered(self, lease: str, now: float) -> bool:
        """The agent has registered this worker, or answers again.

        Returns whether others may have taken over meanwhile, so that everything has to be verified.
        """
        doubtful = self._given_up or self._unsure(now)
        self.host = self.id = lease
        self._lost_at = None
        self._given_up = False
        return doubtful

    def lost(self, now: float, *, given_up: bool = False) -> None:
        """The agent is gone, or answers no more. ``given_up``: it has deleted the records."""
        if self.host is not None:
            self._lost_at = now
        self.host = None
        self._given_up = self._given_up or given_up

    def own_taken(self, now: float) -> bool:
        """The worker's own lease is held now. Returns as :meth:`answered`."""
        doubtful = self._given_up or self._unsure(now)
        self.own_held = True
        self._given_up = False
        if doubtful:
            self._lost_at = now - PATIENCE_S
        return doubtful

    def own_given(self) -> None:
        """It is held no more."""
        self.own_held = False

    def recorded(self, lease: str, now: float) -> None:
        """All records name this lease."""
        if lease != self._recorded:
            self._recorded, self._recorded_at = lease, now

    def poll(self, now: float) -> bool:
        """Goes over to the worker's own lease when the agent has been gone for long enough; returns whether it did."""
        due = self._lost_at is not None and now >= self._lost_at + PATIENCE_S
        if self.host is None and self.own_held and self.id != self._own and due:
            self.id = self._own
            return True
        return False

    def wants_own(self, now: float) -> bool:
        """Whether the worker's own lease is to be taken, or kept."""
        if self.host is None:
            return True
        return self.own_held and (self._recorded != self.id or now < self._recorded_at + LINGER_S)

    def covered(self, now: float) -> bool:
        """Without an answering agent: whether the lease that the records name lives all the same."""
        return self._lost_at is not None and not self._unsure(now)

    def _unsure(self, now: float) -> bool:
        return self._lost_at is not None and not self.own_held and now - self._lost_at > SURE_S
