"""What fails for a config key, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple


class _Trouble(NamedTuple):
    reason: str
    since: float


class Vitals:
    """Of one key. What is read may be read from any thread. ``changed`` is called when a trouble has come or gone."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.withdrawn = False
        """Whether the worker has left the workers of the key, since it can't get its events: others take over."""
        self.assigned = False
        """Whether an assignment was made, or the key was given up."""
        self.joining = False
        """Whether the worker waits for its share of the partitions, which others own until then."""
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._troubles: dict[str, _Trouble] = {}

    def fails(self, what: str, reason: str) -> None:
        """``what`` (such as the registration) fails, and is tried again."""
        known = self._troubles.get(what)
        self._troubles[what] = _Trouble(reason, self._loop.time() if known is None else known.since)
        self._changed()

    def works(self, what: str) -> None:
        """It has succeeded."""
        if self._troubles.pop(what, None) is not None:
            self._changed()

    def joins(self) -> None:
        """The worker is registered, and waits for its share."""
        self.joining = True
        self._changed()

    @property
    def known(self) -> bool:
        """Whether it is known what is owned: what was assigned, or nothing until several changes are made together."""
        return self.assigned or self.joining

    @property
    def failing_because(self) -> str:
        """What fails and why, or nothing."""
        return "; ".join(f"{what}: {trouble.reason}" for what, trouble in sorted(self._troubles.items()))

    @property
    def failing_for_s(self) -> float:
        """For how long something has failed; 0 while nothing does."""
        troubles = list(self._troubles.values())
        return self._loop.time() - min(trouble.since for trouble in troubles) if troubles else 0.0
