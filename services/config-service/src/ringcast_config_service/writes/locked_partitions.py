"""Partitions whose heads another transaction has locked."""

from __future__ import annotations

from typing import Final

from ringcast_config_service.repository import WriteRequest

LOCKED_S: Final = 30.0
"""How long a partition that was found locked keeps to transactions of its own."""


class LockedPartitions:
    """Remembers for :data:`LOCKED_S` which partitions a transaction of one request found locked.

    Times are in seconds, of any clock.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], dict[int, float]] = {}
        """By store and key: for each partition the end of that time."""

    def __bool__(self) -> bool:
        return bool(self._until)

    def has_any_of(self, request: WriteRequest, now_s: float) -> bool:
        """Whether one of a request's partitions may still be locked."""
        until = self._until.get((request.store.name, request.key))
        return until is not None and any(until.get(partition, 0.0) > now_s for partition in request.partitions)

    def add(self, request: WriteRequest, now_s: float) -> None:
        """A transaction of this request alone found a lock."""
        until = self._until.setdefault((request.store.name, request.key), {})
        until.update(dict.fromkeys(request.partitions, now_s + LOCKED_S))

    def remove(self, request: WriteRequest) -> None:
        """A transaction with this request got all its locks."""
        place = request.store.name, request.key
        if until := self._until.get(place):
            for partition in request.partitions:
                until.pop(partition, None)
            if not until:
                del self._until[place]
