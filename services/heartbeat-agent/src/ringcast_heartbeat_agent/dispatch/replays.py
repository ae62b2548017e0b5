"""Rows of dead letters that a group hands over again, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ringcast import Change
from ringcast_wire import MAX_REPLAY_WHY_CHARS, ReplayAnswer, ReplayOutcome, ReplayRequest, version_for

_MOST: Final = 1_024
"""Rows of a group that are replayed at once."""


class _Replay(NamedTuple):
    request: ReplayRequest
    version: int
    say: Callable[[ReplayAnswer], None]


class GroupReplays:
    """The replays of one group. A message of the row that is as new as it was asked for, or newer, tells."""

    def __init__(self) -> None:
        self._of_row: dict[str, list[_Replay]] = {}
        self._count = 0

    def add(self, request: ReplayRequest, change: Change, say: Callable[[ReplayAnswer], None]) -> bool:
        """A row is to be handed over again; ``False``: there are too many, and the request was answered."""
        replay = _Replay(request, change.version, say)
        if self._count >= _MOST:
            tell(request, say, ReplayOutcome.KEPT, 0, f"the group replays {_MOST} rows already: try again later")
            return False
        self._of_row.setdefault(change.row_id, []).append(replay)
        self._count += 1
        return True

    def forget(self, request: ReplayRequest) -> None:
        """The request no longer waits for its outcome."""
        waiting = self._of_row.pop(request.row_id, [])
        left = [each for each in waiting if each.request is not request]
        self._count -= len(waiting) - len(left)
        if left:
            self._of_row[request.row_id] = left

    def of(self, change: Change) -> ReplayRequest | None:
        """What a change is handed over for, or ``None``."""
        if not self._of_row:
            return None
        found = [each for each in self._of_row.get(change.row_id, ()) if each.version <= change.version]
        return max((each.request for each in found), key=lambda request: request.replays, default=None)

    def tell(self, change: Change, outcome: ReplayOutcome, why: str = "") -> None:
        """Answers the requests that had the row of this change replayed."""
        if not self._of_row or change.row_id not in self._of_row:
            return
        waiting = self._of_row.pop(change.row_id)
        later = [each for each in waiting if each.version > change.version]
        if later:
            self._of_row[change.row_id] = later
        for each in waiting:
            if each.version <= change.version:
                self._count -= 1
                tell(each.request, each.say, outcome, change.version, why)

    def end(self, why: str) -> None:
        """The group ends."""
        waiting, self._of_row, self._count = self._of_row, {}, 0
        for some in waiting.values():
            for each in some:
                tell(each.request, each.say, ReplayOutcome.KEPT, 0, why)


def tell(
    request: ReplayRequest, say: Callable[[ReplayAnswer], None], outcome: ReplayOutcome, version: int, why: str
) -> None:
    """Says what came of a request."""
    say(ReplayAnswer(version_for(request.reads), request.id, outcome, version, why[:MAX_REPLAY_WHY_CHARS]))


def nothing() -> None:
    """There is nothing to forget."""
