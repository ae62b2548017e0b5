"""What the parts of a config key report to its session."""

from __future__ import annotations

from typing import Protocol

from ringcast_wire import RingcastError


class KeyObserver(Protocol):
    """The session of a config key, as its parts see it."""

    def pump(self) -> None:
        """The machine has taken something in, such as an answer: carries out what follows from it."""

    def check_store(self) -> None:
        """The service's answers are of another store than this one, as far as can be told."""

    def deleted(self, error: RingcastError, /) -> None:
        """The service says that the store, or this key of it, is deleted."""
