"""Decides, from what the workers say they hold and what the service says is true, whether the promise was kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Held = Mapping[str, tuple[str, int, int]]
"""Row id → value, version, partition."""


@dataclass(frozen=True)
class Verdict:
    """Counts of rows that broke the promise; all zero when it was kept."""

    lost_rows: int  # live, and held by no worker
    misplaced_rows: int  # held by two workers, or by one that does not own the partition
    stale_rows: int  # another value or version than the live one, or deleted and held all the same

    @property
    def kept(self) -> bool:
        """Whether every live row is held once, in its place, with the right value."""
        return not (self.lost_rows or self.misplaced_rows or self.stale_rows)

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.lost_rows + other.lost_rows,
            self.misplaced_rows + other.misplaced_rows,
            self.stale_rows + other.stale_rows,
        )


def judge(truth: Held, held: Mapping[str, Held], owned: Mapping[str, frozenset[int]]) -> Verdict:
    """Compares one list.

    ``truth``: the live rows as the config service lists them; ``held``: worker → its rows; ``owned``: worker → its
    partitions.
    """
    holders: dict[str, list[str]] = {}
    stale = misplaced = 0
    for worker, rows in held.items():
        for row_id, (value, version, _) in rows.items():
            holders.setdefault(row_id, []).append(worker)
            true = truth.get(row_id)
            if true is None or (value, version) != true[:2]:
                stale += 1
            elif true[2] not in owned.get(worker, frozenset()):
                misplaced += 1
    misplaced += sum(len(workers) - 1 for workers in holders.values())
    return Verdict(lost_rows=len(truth.keys() - holders.keys()), misplaced_rows=misplaced, stale_rows=stale)
