"""Streams of changes: watches with a bounded buffer, and watches that read the change log."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from ringcast_groupstore import _log
from ringcast_groupstore._engine import Engine
from ringcast_groupstore._errors import InputError, RevisionGapError
from ringcast_groupstore._hub import Choice, Hub
from ringcast_groupstore._types import Event, EventKind

MAX_CAPACITY = 1_000_000
_PAGE_EVENTS = 256


class Watch(ABC):
    """A stream of events; iterate over it, or call :meth:`next`. Close it, or use it as a context manager.

    Iteration ends once it is closed or the store is. Any thread may read and close it.
    """

    def __init__(self, hub: Hub, choice: Choice) -> None:
        self._hub = hub
        self._choice = choice
        self._closed = False
        self._dropped = 0
        self._on_ready: Callable[[], None] | None = None

    @property
    def dropped(self) -> int:
        """How many changes this reader did not get. Each run of them is followed by an event of kind ``GAP``."""
        return self._dropped

    @property
    def closed(self) -> bool:
        """Whether no more events come."""
        return self._closed

    @abstractmethod
    def next(self, timeout_s: float | None = None) -> Event | None:
        """The next event; ``None`` after ``timeout_s`` seconds without one, or once closed with nothing left."""

    def close(self) -> None:
        """Ends it; what is in its buffer can still be read. Calling it again is harmless."""
        self._hub.drop(self)
        self._closed = True
        self._wake()

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next()) is not None:
            yield event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def offer(self, events: Sequence[Event]) -> None:
        """Gets every commit of this store object, in order; must not wait."""

    @abstractmethod
    def _wake(self) -> None:
        """Makes a waiting reader poll again."""


class LiveWatch(Watch):
    """Gets each change of this store object as it is committed, with its value, into a buffer of ``capacity`` events.

    When the buffer is full, further events are dropped and counted; a writer never waits. In their place comes a
    ``GAP`` event that says how many.
    """

    def __init__(self, hub: Hub, choice: Choice, capacity: int) -> None:
        if not 1 <= capacity <= MAX_CAPACITY:
            raise InputError(f"capacity {capacity} is out of range: 1 to {MAX_CAPACITY}")
        super().__init__(hub, choice)
        self._ready = threading.Condition()
        self._capacity = capacity
        self._buffer: deque[Event] = deque()
        self._lost: Event | None = None

    def next(self, timeout_s: float | None = None) -> Event | None:
        """See :meth:`Watch.next`."""
        with self._ready:
            self._ready.wait_for(lambda: self._buffer or self._lost or self._closed, timeout_s)
            if self._buffer:
                return self._buffer.popleft()
            lost, self._lost = self._lost, None
            return lost

    def offer(self, events: Sequence[Event]) -> None:
        chosen = self._choice.of(events)
        if not chosen:
            return
        with self._ready:
            for event in chosen:
                if len(self._buffer) >= self._capacity:
                    self._dropped += 1
                    missed = 1 if self._lost is None else self._lost.missed + 1
                    self._lost = gap(event.revision, event.at_ms, missed)
                    continue
                if self._lost is not None:
                    self._buffer.append(self._lost)
                    self._lost = None
                self._buffer.append(event)
        self._wake()

    def _wake(self) -> None:
        with self._ready:
            self._ready.notify_all()
        if self._on_ready is not None:
            self._on_ready()


class LogWatch(Watch):
    """Reads the change log from a revision on, and goes on with what follows, of every process that uses the file.

    Changes of this store object are seen at once, those of other processes within ``poll_s`` seconds. Nothing is
    buffered: a reader that falls behind finds its changes in the log. When the log has dropped them, a ``GAP`` event
    says how many there were.
    """

    def __init__(self, engine: Engine, choice: Choice, since: int, poll_s: float) -> None:
        if not 0.001 <= poll_s <= 3600:
            raise InputError(f"poll_s {poll_s} is out of range: 0.001 to 3600")
        super().__init__(engine.hub, choice)
        self._engine = engine
        self._at = since
        self._poll_s = poll_s
        self._page: deque[Event] = deque()
        self._reading = threading.Lock()
        self._news = threading.Event()

    def next(self, timeout_s: float | None = None) -> Event | None:
        """See :meth:`Watch.next`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._news.clear()
            with self._reading:
                event = self._take()
            left = self._poll_s if deadline is None else min(self._poll_s, deadline - time.monotonic())
            if event is not None or self._closed or left <= 0:
                return event
            self._news.wait(left)

    @property
    def revision(self) -> int:
        """Up to where it has read: what to resume from once everything that it gave was handled."""
        with self._reading:
            return self._page[0].revision - 1 if self._page else self._at

    def offer(self, events: Sequence[Event]) -> None:
        self._wake()

    def _take(self) -> Event | None:
        while not self._page and not self._closed:
            try:
                events = read_changes(self._engine, self._at, _PAGE_EVENTS)
            except RevisionGapError as error:
                return self._skip(error)
            if not events:
                return None
            self._at = events[-1].revision
            self._page.extend(self._choice.of(events))
        return self._page.popleft() if self._page else None

    def _skip(self, error: RevisionGapError) -> Event:
        missed = max(0, error.oldest - self._at)
        self._at = error.oldest
        self._dropped += missed
        return gap(error.oldest, self._engine.clock(), missed)

    def _wake(self) -> None:
        self._news.set()
        if self._on_ready is not None:
            self._on_ready()


def gap(revision: int, at_ms: int, missed: int) -> Event:
    """The marker that stands for ``missed`` changes, the last of which had ``revision``."""
    return Event(EventKind.GAP, "", "", None, revision, at_ms, missed=missed)


def read_changes(engine: Engine, since: int, limit: int) -> list[Event]:
    """At most ``limit`` changes after revision ``since``; see :meth:`ringcast_groupstore.GroupStore.changes`."""
    return engine.readers.run_on_snapshot(lambda cursor: _log.read(cursor, since, limit))


def watch(engine: Engine, choice: Choice, since: int | None, capacity: int, poll_s: float) -> Watch:
    """A watch that is delivered to; see :meth:`ringcast_groupstore.GroupStore.watch`."""
    engine.check_open()
    made: Watch
    if since is None:
        made = LiveWatch(engine.hub, choice, capacity)
    else:
        made = LogWatch(engine, choice, since, poll_s)
        engine.readers.run(lambda cursor: _log.check_since(cursor, since))
    engine.hub.add(made)
    return made
