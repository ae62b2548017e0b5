"""Consumers with filters that are away, and the changes that are kept for their return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.routing import ROWS, Routing
from ringcast_heartbeat_agent.dispatch.shares import Filters


class _Away(NamedTuple):
    patterns: Sequence[str]
    filters: Filters
    until: float


class Absent:
    """Keeps the changes for consumers that are away which no other consumer wants, one change a row."""

    def __init__(self, linger_s: float, most: int, routing: Routing = ROWS) -> None:
        self._routing = routing
        self._linger_s = linger_s
        self._most = most
        self._away: dict[str, _Away] = {}
        self._kept: dict[str, Change] = {}

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def away(self) -> dict[str, Sequence[str]]:
        """The filters of the consumers that are away, by name."""
        return {name: away.patterns for name, away in self._away.items()}

    def changes(self) -> Iterable[Change]:
        """What is kept."""
        return self._kept.values()

    @property
    def due(self) -> float | None:
        """When the first of them is given up."""
        return min((away.until for away in self._away.values()), default=None)

    def gone(self, name: str, patterns: Sequence[str], now: float) -> None:
        """A consumer has gone, and may come back."""
        if patterns and name not in self._away and len(self._away) < self._most:
            self._away[name] = _Away(patterns, Filters(patterns), now + self._linger_s)

    def keep(self, change: Change) -> bool:
        """Keeps a change if a consumer that is away wants it; returns whether."""
        key = self._routing.key(change.row_id)
        if not any(away.filters.accept(key) for away in self._away.values()):
            return False
        self._kept[change.row_id] = change
        return True

    def discard(self, row_id: str) -> None:
        """There is a newer change of a row."""
        self._kept.pop(row_id, None)

    def forget(self, partitions: Collection[int]) -> None:
        """These partitions are another host's."""
        self._kept = {row_id: change for row_id, change in self._kept.items() if change.partition not in partitions}

    def back(self, name: str, patterns: Sequence[str]) -> list[Change]:
        """A consumer has come: takes out what it wants."""
        self._away.pop(name, None)
        if not self._kept:
            return []
        filters = Filters(patterns)
        wanted = [change for change in self._kept.values() if filters.accept(self._routing.key(change.row_id))]
        for change in wanted:
            del self._kept[change.row_id]
        self._forget_unwanted()
        return wanted

    def expire(self, now: float) -> None:
        """Gives up those whose time is over."""
        over = [name for name, away in self._away.items() if away.until <= now]
        for name in over:
            del self._away[name]
        if over:
            self._forget_unwanted()

    def clear(self) -> None:
        """Forgets everything."""
        self._away.clear()
        self._kept.clear()

    def _forget_unwanted(self) -> None:
        kept, self._kept = self._kept, {}
        for change in kept.values():
            self.keep(change)
