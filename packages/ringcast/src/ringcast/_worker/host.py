"""What the session of a config key needs of the worker that it belongs to."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from ringcast_wire import RingcastError


class KeyHost(Protocol):
    """A worker, as the sessions of its config keys see it."""

    def spawn(self, work: Coroutine[Any, Any, None], /) -> object:
        """Starts a task that the worker owns."""

    def want(self, key: str, subjects: frozenset[str], /) -> None:
        """Wants the events of exactly these subjects of a key from now on."""

    def suspect_consumer(self, subject: str, /) -> None:
        """Events of this subject were not delivered: the filters of its consumer are checked."""

    def check_store(self) -> None:
        """The store may have been created again: its settings are compared."""

    def pressure_changed(self) -> None:
        """A key has room for more events now, or none any more."""

    def recovered(self, key: str, /) -> None:
        """The events of a key that was left to others can be had again."""

    def deleted(self, key: str, error: RingcastError, /) -> None:
        """The service says that the store, or this key of it, is deleted."""
