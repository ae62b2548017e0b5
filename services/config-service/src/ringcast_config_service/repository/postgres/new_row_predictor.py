"""Whether the rows of a large write are all new, guessed from the writes before it.

In a first load they are, and to look for each of them costs the database half as much as to store it. So where
the predictor guesses that rows are new, they are copied without a look-up. The primary key refuses a row that exists,
and the write begins again with a look-up. A wrong guess therefore costs a transaction and never a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ringcast_config_service.repository.base import PlainWrites, RowWrite, WriteRequest
from ringcast_config_service.repository.writes import KeyRef

LEAST_ROWS: Final = 200
"""Groups of fewer rows say nothing, and nothing is guessed of them."""
_NEW_BEFORE: Final = 2
"""Groups in a row that were all new, from which the next is taken to be."""
_AFTER_A_MISS: Final = -8
"""Where a key begins to count again, so that guessing wrong stays rare."""


class NewRowPredictor:
    """What was seen of each key. ``missed`` counts the wrong guesses."""

    def __init__(self) -> None:
        self._streaks: dict[KeyRef, int] = {}
        self.missed = 0

    def expects(self, requests: Sequence[WriteRequest]) -> bool:
        """Whether every row of the group is likely to be new. Never where one is deleted: that takes a look."""
        return (
            _are_many(requests)
            and all(self._streaks.get(key, 0) >= _NEW_BEFORE for key in _keys(requests))
            and all(isinstance(request.rows, PlainWrites) or _are_puts(request.rows) for request in requests)
        )

    def learn(self, requests: Sequence[WriteRequest], all_new: bool) -> None:
        """Takes note of what a group turned out to be; ``all_new`` is false as well where anything was refused."""
        if _are_many(requests):
            for key in _keys(requests):
                if all_new:
                    self._streaks[key] = min(_NEW_BEFORE, self._streaks.get(key, 0) + 1)
                elif key in self._streaks:
                    self._streaks[key] = min(0, self._streaks[key])

    def miss(self, requests: Sequence[WriteRequest]) -> None:
        """Takes note of a wrong guess; :meth:`learn` is not told of this group."""
        self.missed += 1
        self._streaks.update(dict.fromkeys(_keys(requests), _AFTER_A_MISS))


def _are_puts(rows: Sequence[RowWrite]) -> bool:
    return all(row.value is not None for row in rows)


def _are_many(requests: Sequence[WriteRequest]) -> bool:
    return sum(len(request.rows) for request in requests) >= LEAST_ROWS


def _keys(requests: Sequence[WriteRequest]) -> set[KeyRef]:
    return {KeyRef(request.store.name, request.key) for request in requests}
