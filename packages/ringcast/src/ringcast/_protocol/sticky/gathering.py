"""When the leader writes what it has gathered: each table that it writes goes to all workers of the key."""

from __future__ import annotations

from collections.abc import Set

from ringcast._protocol.sticky.clocks import Clocks


class Gathering:
    """Partitions that workers were asked to do something for. The ones that are done wait a little for the rest.

    ``most_s``: for so long at most. ``are_dark``: nobody serves those that are done, so none waits for longer than it
    took itself: where workers answer in milliseconds, one that does not is waited for no longer than these.
    """

    def __init__(self, most_s: float, *, are_dark: bool) -> None:
        self._most_s = most_s
        self._are_dark = are_dark
        self._asked, self._done = Clocks(), Clocks()

    def due(self, asked: Set[tuple[int, int]], done: Set[tuple[int, int]], now: float) -> float | None:
        """When those that are done are to go on; ``None``: none is. Call it at every look.

        ``asked`` are all of them, ``done`` among them, each a partition with its token.
        """
        self._asked.keep(asked)
        self._done.keep(done)
        for each in asked:
            self._asked.since(each, now)
        dues = [self._due(each, now) for each in done]
        if len(done) == len(asked):
            return now if done else None
        return min(dues, default=None)

    def _due(self, each: tuple[int, int], now: float) -> float:
        done_at = self._done.since(each, now)
        took_s = done_at - self._asked.since(each, now)
        return done_at + (min(took_s, self._most_s) if self._are_dark else self._most_s)
