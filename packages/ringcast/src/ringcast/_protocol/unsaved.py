"""What of a partition the disk does not have."""

from __future__ import annotations

from typing import Final

MAX_UNSAVED_ROWS: Final = 65_536
"""Changed rows of a partition that are remembered for the disk; past it the partition is written whole."""


class Unsaved:
    """Rows that differ from the cached copy on disk: ``row_ids``, or all of them (``whole``)."""

    __slots__ = ("row_ids", "whole")

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.row_ids: set[str] = set()

    def note(self, row_id: str) -> None:
        """The row has changed. Past ``MAX_UNSAVED_ROWS`` the whole partition is written."""
        if not self.whole:
            self.row_ids.add(row_id)
            if len(self.row_ids) > MAX_UNSAVED_ROWS:
                self.whole, self.row_ids = True, set()
