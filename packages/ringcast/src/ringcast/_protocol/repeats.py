"""Deliveries of an event by further consumers than the one that is to deliver it.

Another process with the worker's id, which was halted, may have changed the filters of one of them since. A delivery
that nobody acknowledges counts at its consumer until it comes again, and events of other partitions wait behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from ringcast._common.place import same_consumer


class RepeatedDeliveries:
    """Those of one partition, by the revision of their event: the newest of each consumer."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        self._tokens: dict[int, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def add(self, rev: int, token: str) -> None:
        """Keeps one."""
        others = [each for each in self._tokens.get(rev, ()) if not same_consumer(each, token)]
        self._tokens[rev] = [*others, token]

    def of(self, matches: Callable[[int], bool]) -> list[str]:
        """Those of the revisions that match."""
        return [token for rev, tokens in self._tokens.items() if matches(rev) for token in tokens]

    def pop(self, matches: Callable[[int], bool]) -> list[str]:
        """Forgets those of the revisions that match, and returns them."""
        return [token for rev in filter(matches, list(self._tokens)) for token in self._tokens.pop(rev)]
