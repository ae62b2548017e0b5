"""Waiting longer after each failure, with jitter."""

from __future__ import annotations

from collections.abc import Callable

RandomSource = Callable[[], float]
"""Gives a number in [0, 1)."""


class Backoff:
    """Delays that double from ``first_s`` to ``most_s``, each shortened at random so that clients spread out.

    ``least``: the share of a delay that is waited in any case, 0 where those who collided must not collide again.
    """

    __slots__ = ("_failures", "_first_s", "_least", "_most_s", "_random")

    def __init__(self, random: RandomSource, *, first_s: float = 1.0, most_s: float = 30.0, least: float = 0.5) -> None:
        self._random = random
        self._first_s = first_s
        self._most_s = most_s
        self._least = least
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def next_s(self) -> float:
        """Counts a failure and says how long to wait now, in seconds."""
        full = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return full * (self._least + self._random() * (1.0 - self._least))

    def reset(self) -> None:
        """Counts a success."""
        self._failures = 0
