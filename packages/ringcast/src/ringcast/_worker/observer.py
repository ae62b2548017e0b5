"""What the fetches and the comparisons of a config key report to its session."""

from __future__ import annotations

from typing import Protocol

from ringcast_wire import RingcastError


class KeyObserver(Protocol):
    """The session of a config key, as its requests to the service see it."""

    def pump(self) -> None:
        """An answer has come, or none: carries out what follows from it."""

    def deleted(self, error: RingcastError, /) -> None:
        """The service says that the store, or this key of it, is deleted."""
