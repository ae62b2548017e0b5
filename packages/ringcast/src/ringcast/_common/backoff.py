"""Waiting longer after each failure, with jitter."""

from __future__ import annotations

from collections.abc import Callable

Random = Callable[[], float]
"""Gives a number in [0, 1)."""


class Backoff:
    """Delays that double from ``first_s`` to ``most_s``, each less up to half at random so that clients spread out."""

    __slots__ = ("_failures", "_first_s", "_most_s", "_random")

    def __init__(self, random: Random, *, first_s: float = 1.0, most_s: float = 30.0) -> None:
        self._random = random
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def next_s(self) -> float:
        """Counts a failure and says how long to wait now, in seconds."""
        full = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return full * (0.5 + self._random() / 2)

    def reset(self) -> None:
        """Counts a success."""
        self._failures = 0
