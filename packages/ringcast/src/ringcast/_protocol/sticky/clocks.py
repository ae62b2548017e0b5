"""How long something has been as it is."""

from __future__ import annotations

from collections.abc import Set


class Clocks:
    """Since when something is as it is, for as long as it is; by any key."""

    def __init__(self) -> None:
        self._since: dict[object, float] = {}

    def since(self, key: object, now: float) -> float:
        return self._since.setdefault(key, now)

    def keep(self, keys: Set[object]) -> None:
        self._since = {key: at for key, at in self._since.items() if key in keys}
