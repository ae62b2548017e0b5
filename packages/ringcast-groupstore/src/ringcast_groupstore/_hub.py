"""Listeners of one store object: what each wants to hear, and how the events of a commit come to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ringcast_groupstore._events import logger
from ringcast_groupstore._types import Event

Callback = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which events a listener gets, and what it sees of the group's name."""

    prefix: str
    """Of its namespace, with the colon; it is taken off."""
    group: str | None
    """As it stands in the file; ``None``: every group that begins with the prefix."""

    def of(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events that are meant for the listener."""
        if self.group is not None:
            events = [event for event in events if event.group == self.group]
        elif self.prefix:
            events = [event for event in events if event.group.startswith(self.prefix)]
        if self.prefix:
            return [replace(event, group=event.group[len(self.prefix) :]) for event in events]
        return events


class Listener(Protocol):
    """What gets every commit; a watch is one."""

    def offer(self, events: Sequence[Event]) -> None:
        """Gets the events of one commit; must not wait."""

    def close(self) -> None:
        """The store is closed: no more events come."""


class Hub:
    """The listeners of one store object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced, never changed in place: a delivery goes through the tuple that it found.
        self._watches: tuple[Listener, ...] = ()
        self._callbacks: tuple[tuple[object, Callback, Choice], ...] = ()

    @property
    def active(self) -> bool:
        """Whether there is any listener."""
        return bool(self._watches or self._callbacks)

    def add(self, watch: Listener) -> None:
        """Delivers every later commit to it."""
        with self._lock:
            self._watches += (watch,)

    def drop(self, watch: Listener) -> None:
        """Delivers nothing more to it."""
        with self._lock:
            self._watches = tuple(other for other in self._watches if other is not watch)

    def on_change(self, callback: Callback, choice: Choice) -> Callable[[], None]:
        """Adds a callback; returns what removes it, which may be called again and from the callback itself."""
        mark = object()
        with self._lock:
            self._callbacks += ((mark, callback, choice),)

        def remove() -> None:
            with self._lock:
                self._callbacks = tuple(entry for entry in self._callbacks if entry[0] is not mark)

        return remove

    def publish(self, events: Sequence[Event]) -> None:
        """Hands the events of a commit to every watch. Under the write lock: they arrive in the order of commits."""
        for watch in self._watches:
            watch.offer(events)

    def call_back(self, events: Sequence[Event]) -> None:
        """Calls the callbacks, without any lock: they may do what they like with the store.

        The write stands, so an error of one is logged, and reaches neither the writer nor the next callback.
        """
        for _, callback, choice in self._callbacks:
            for event in choice.of(events):
                try:
                    callback(event)
                except Exception as error:  # noqa: BLE001  # whatever the application raises
                    logger.error("change_callback.failed", revision=event.revision, error=error, exc_info=True)

    def close(self) -> None:
        """Ends every watch."""
        for watch in self._watches:
            watch.close()
