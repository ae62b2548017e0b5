"""The error of a compare-and-set that lost."""

from __future__ import annotations

from ringcast_wire import ConditionFailedError


def conflict(key: str, last: int, found: int) -> ConditionFailedError:
    """``last``: the revision that was expected; ``found``: the one that is there. 0 stands for no entry."""
    there = f"is at revision {found}" if found else "has no entry"
    expected = f"revision {last}" if last else "none"
    return ConditionFailedError(f"key {key!r} {there}, and {expected} was expected", field="key", found_version=found)
