"""What the values of changes say: which change it is."""

from __future__ import annotations

_DIGITS = 12


def value_of(number: int, size: int) -> str:
    """The value that change ``number`` writes: the number, filled up to ``size`` bytes."""
    return f"{number:0{_DIGITS}d}".ljust(size, ".")


def number_of(value: str) -> int:
    """The number of the change that wrote a value."""
    return int(value[:_DIGITS])
