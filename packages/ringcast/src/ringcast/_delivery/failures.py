"""What the handler did not take, for those who ask where a row is: the newest failure of each row, up to a number."""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from ringcast_wire.reports import RowFailure

from ringcast._common.change import Change

MAX_FAILURES: Final = 1_024
"""Rows of one key whose failure is remembered; the oldest is forgotten."""


class Failure(NamedTuple):
    """A change that the handler did not take. ``at_s``: when, by the monotonic clock."""

    partition: int
    row_id: str
    version: int
    what: RowFailure
    error: str
    at_s: float


class Failures:
    """Of one config key. Nothing is decided by it."""

    def __init__(self) -> None:
        self._by_row: dict[tuple[int, str], Failure] = {}
        self._forgotten: dict[int, int] = {}
        """By partition the highest version of which a failure was forgotten."""
        self.last: Failure | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing failed, and nothing is forgotten."""
        return not (self._by_row or self._forgotten)

    def note(self, change: Change, what: RowFailure, error: str) -> None:
        """Remembers what has become of a change."""
        place = (change.partition, change.row_id)
        self._by_row.pop(place, None)
        self.last = Failure(*place, change.version, what, error, time.monotonic())
        self._by_row[place] = self.last
        if len(self._by_row) > MAX_FAILURES:
            oldest = self._by_row.pop(next(iter(self._by_row)))
            known = self._forgotten.get(oldest.partition, 0)
            self._forgotten[oldest.partition] = max(known, oldest.version)

    def settle(self, change: Change) -> None:
        """The handler has taken a change of the row after all."""
        if self._by_row:
            self._by_row.pop((change.partition, change.row_id), None)

    def lose(self, partitions: AbstractSet[int]) -> None:
        """Forgets the rows of partitions that another worker has now."""
        if self._by_row:
            self._by_row = {place: each for place, each in self._by_row.items() if place[0] not in partitions}
        for partition in partitions & self._forgotten.keys():
            del self._forgotten[partition]

    def within(self, ranges: Mapping[int, tuple[int, int]]) -> list[Failure]:
        """The failures of these revisions, by partition; the newest of each row, and those that are remembered."""
        return [
            each
            for each in self._by_row.values()
            if each.partition in ranges and ranges[each.partition][0] <= each.version <= ranges[each.partition][1]
        ]

    def forgotten(self, ranges: Mapping[int, tuple[int, int]]) -> int:
        """In how many of these partitions a failure of these revisions may have been forgotten."""
        return sum(number in ranges and last >= ranges[number][0] for number, last in self._forgotten.items())

    def of(self, partition: int, row_id: str) -> Failure | None:
        """The newest failure of a row; a later version may have been taken since."""
        return self._by_row.get((partition, row_id))
