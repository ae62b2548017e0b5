"""Entries of a bucket that should be gone, because whoever lives would have written them again."""

from __future__ import annotations

from typing import Final

_LOOK_AGAIN: Final = 0.25
"""The share of the time within which entries are written again that lies between two looks at the least."""
_REMEMBERED: Final = 1_000
"""How many of the entries that have ended are remembered."""


class Refreshes:
    """When each entry was written last. An entry that was not written for ``within_s`` has ended.

    A server drops an expired entry in silence, and a cluster that changes its leader then may have servers that keep
    it: a snapshot from one of these holds the entry still. So entries are compared by the times at
    which the server stored them, and the newest of a snapshot says which of the others are too old. Where nobody can
    write, none is newer, and nobody is taken for dead; but an entry that is known to have ended does not rise again in
    a snapshot unless it was written anew. The clocks of the servers may differ by some seconds: by less than what lies
    between ``within_s`` and the time between two refreshes.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._stored_s: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def clear(self) -> None:
        """A new snapshot begins."""
        self._stored_s, self._due = {}, {}

    def written(self, key: str, stored_s: float, now: float) -> None:
        """An entry came, which the server stored at ``stored_s`` of its clock."""
        self._stored_s[key] = stored_s
        self._due[key] = now + self._within_s

    def gone(self, key: str) -> None:
        """An entry has ended."""
        stored_s = self._stored_s.pop(key, None)
        self._due.pop(key, None)
        if stored_s is not None:
            self._ended.pop(key, None)  # so that it counts as the latest
            self._ended[key] = stored_s
            if len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]

    def take_ended(self, now: float) -> list[str]:
        """At the end of a snapshot: the entries that should be gone, which are forgotten."""
        newest_s = max(self._stored_s.values(), default=0.0)
        ages_s = {key: newest_s - stored_s for key, stored_s in self._stored_s.items()}
        ended = [
            key
            for key, age_s in ages_s.items()
            if age_s > self._within_s or self._ended.get(key) == self._stored_s[key]
        ]
        for key in ended:
            self.gone(key)
        for key in self._due:
            self._due[key] = now + max(self._within_s - ages_s[key], _LOOK_AGAIN * self._within_s)
        return ended

    @property
    def overdue_at(self) -> float | None:
        """When a new snapshot is to be taken, if no entry comes before that."""
        return min(self._due.values(), default=None)
