"""Which history the rows of a config key are of, and when those of another may take their place.

Revisions can be compared within one history only. A database that was restored, or failed over to a replica that
lagged, goes on in a new one: the worker then takes each partition whole, as changes from what it has. An empty or wrong
database looks the same, so a worker that would lose more than a share of its rows by it stops and says so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

FEW_ROWS: Final = 10
"""Fewer deletions than this are never too many, unless nothing is left of the whole key."""
MAX_PAST_HISTORIES: Final = 16
_DEVIATIONS: Final = 4.0
"""Standard deviations of a sample's share (binomial): more come by chance once in 30,000 comparisons."""


@dataclass(slots=True, frozen=True)
class Refusal:
    """What was refused: ``history`` lacks ``gone`` of ``rows``, all that this worker has.

    ``live``: how many it has in our partitions, ``heads``: the revisions of those, added up.
    """

    history: str
    gone: int
    rows: int
    live: int | None
    heads: int = 0


class KeyHistory:
    """The history of one config key. ``current`` is empty until one is known, or while the key does not exist."""

    def __init__(self, max_delete_share: float) -> None:
        self.current = ""
        self.refusal: Refusal | None = None
        self._max_delete_share = max_delete_share
        self.suspects: set[str] = set()
        """Others that events have named, until the service says which is the current one."""
        self._past: deque[str] = deque(maxlen=MAX_PAST_HISTORIES)
        self._live: int | None = None
        self._heads = 0
        self._gone = 0
        self._rows = 0
        self._rows_before = 0

    def is_past(self, history: str) -> bool:
        """Whether a history is known to be over."""
        return history in self._past

    def is_settled(self, history: str) -> bool:
        """Whether the service need not be asked about a history: it is over, or has been refused."""
        return history in self._past or (self.refusal is not None and self.refusal.history == history)

    def begin(self, history: str) -> None:
        """The key is read, or written, for the first time."""
        self.current = history

    def suspect(self, history: str) -> None:
        """An event has named another history; past a number of them no further one is remembered."""
        if len(self.suspects) < MAX_PAST_HISTORIES:
            self.suspects.add(history)

    def settle(self, suspects: Iterable[str]) -> None:
        """The service was asked after events had named these: those that it does not have are over."""
        self.suspects.difference_update(suspects)
        for history in suspects:
            self._end(history)

    def _end(self, history: str) -> None:
        if history not in ("", self.current, *self._past):
            self._past.append(history)

    def change(self, history: str, rows: int, live: int | None, heads: int = 0, *, is_empty: bool = False) -> bool:
        """Changes to another history, or begins the current one again because its revisions went back.

        Refuses where too many of our ``rows`` are missing; ``live``: how many the service has in our partitions,
        ``heads``: their revisions, added up, ``is_empty``: whether it has no row in any partition. What was refused is
        checked again once something was written there, as many rows as there may be afterwards.
        """
        refused = self.refusal
        if refused is not None and (refused.history, refused.live, refused.heads) == (history, live, heads):
            return False
        gone = 0 if live is None else rows - live
        if gone > self._max_delete_share * rows and (is_empty or gone >= FEW_ROWS):
            self.refusal = Refusal(history, gone, rows, live, heads)
            return False
        before, self.current, self.refusal = self.current, history, None
        if history in self._past:
            self._past.remove(history)
        self._end(before)
        self._live, self._heads, self._gone, self._rows = live, heads, 0, 0
        self._rows_before = rows
        return True

    def may_delete(self, gone: int, rows: int) -> bool:
        """Whether ``gone`` of the ``rows`` of the next partition may go. Counts over all since the change.

        A history with as many rows as before may have none of those that are held. The partitions so far are a sample
        of the key's rows, so chance is allowed for: too many is what a key that keeps to the share hardly ever shows.
        """
        if self.refusal is not None:
            return False
        self._gone += gone
        self._rows += rows
        share = self._max_delete_share
        chance = _DEVIATIONS * math.sqrt(share * (1.0 - share) * self._rows)
        if self._gone >= FEW_ROWS and self._gone > min(share * self._rows + chance, share * self._rows_before):
            self.refusal = Refusal(self.current, self._gone, self._rows, self._live, self._heads)
            return False
        return True
