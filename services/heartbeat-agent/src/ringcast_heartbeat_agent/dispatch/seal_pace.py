"""How many seals a host may write: a bucket of tokens, which the groups of the host share."""

from __future__ import annotations

from typing import Final

SEALS_PER_S: Final = 2_000
"""So many seals that say how far groups have come an agent writes a second. Claims and hand-overs do not count."""


class SealPace:
    """Lets ``per_s`` seals a second through, and as many at once after a second without any."""

    def __init__(self, per_s: float = SEALS_PER_S) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at = 0.0

    def take(self, now: float) -> int:
        """How many seals a group may write now: half of what is left, so that every group gets some of it."""
        self._left = min(self._per_s, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        taken = int((self._left + 1) / 2)
        self._left -= taken
        return taken

    def give_back(self, seals: int) -> None:
        """So many of them were not written."""
        self._left += seals
