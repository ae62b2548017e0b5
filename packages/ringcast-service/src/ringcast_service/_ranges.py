"""The values that a setting may have, stated beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Range(NamedTuple):
    """Numbers from ``least``, which is one of them unless ``is_open``, to ``most``, which is; None: without an end."""

    least: float
    most: float | None = None
    is_open: bool = False

    def contains(self, value: float) -> bool:
        """Whether a value is in it; what is no number is not."""
        return (value > self.least if self.is_open else value >= self.least) and (
            self.most is None or value <= self.most
        )

    @property
    def is_plain(self) -> bool:
        """Whether it only demands that a value is positive, or not negative."""
        return self.least == 0 and self.most is None

    def shown(self, form: Callable[[float], str]) -> str:
        """As in ``it must be …``; ``form`` writes its ends."""
        least, most = form(self.least), None if self.most is None else form(self.most)
        if self.is_open:
            return f"above {least}" if most is None else f"above {least}, and {most} at most"
        return f"{least} or more" if most is None else f"{least} to {most}"


def above(least: float, most: float | None = None) -> Range:
    """Numbers greater than ``least``."""
    return Range(least, most, is_open=True)


def at_least(least: float) -> Range:
    """``least`` and greater numbers."""
    return Range(least)


def between(least: float, most: float) -> Range:
    """Numbers from ``least`` to ``most``, both included."""
    return Range(least, most)
