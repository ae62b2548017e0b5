"""Virtual time: a heap of events, and processes with clocks of their own that crash and pause."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

MOST_STEPS = 300_000
"""More than any run takes by far: one that reaches it turns in circles."""

_NUDGE_S = 1e-9
"""A timer fires this much late, so that rounding never makes it early: it would be set again for ever."""


class Scheduler:
    """Runs callbacks in order of their times; of two at the same time the one that was asked for first."""

    def __init__(self, trace: list[str] | None = None) -> None:
        self.now = 0.0
        self.fired = 0
        self.trace = trace
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    def at(self, time: float, fn: Callable[..., None], *args: Any) -> None:
        """Calls ``fn`` at a time, or now if it has passed."""
        self._order += 1
        heapq.heappush(self._heap, (time if time > self.now else self.now, self._order, fn, args))

    def after(self, delay_s: float, fn: Callable[..., None], *args: Any) -> None:
        """Calls ``fn`` in so many seconds."""
        self.at(self.now + delay_s, fn, *args)

    def run_until(self, end: float) -> None:
        """Runs everything that is due up to a time."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= end:
            self.now, _, fn, args = pop(heap)
            self.fired += 1
            if self.fired > MOST_STEPS:
                raise CirclesError(f"{self.fired} steps by {self.now:.6f} s: {_named(fn, args)}")
            if self.trace is not None:
                self.trace.append(f"{self.now:.6f} {_named(fn, args)}")
            fn(*args)
        self.now = end


def _named(fn: Callable[..., None], args: tuple[Any, ...]) -> str:
    """A callback and its arguments as the trace shows them: the same in every run, so nothing that has an address."""
    return " ".join(text for text in (_text(fn), *map(_text, args)) if text)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(text for text in map(_text, value) if text)
    if isinstance(value, str | int | float | bytes):
        return repr(value)[:80]
    if isinstance(value, frozenset | list | dict):
        return " ".join(sorted(_text(item) for item in value))
    if isinstance(value, Process):
        return value.name
    owner = getattr(value, "__self__", None)
    whose = f"{owner.name}." if isinstance(owner, Process) else ""
    return whose + str(getattr(value, "__qualname__", ""))


class CirclesError(AssertionError):
    """Something goes on and on while hardly any time passes."""


class Process:
    """A process with a clock of its own. What reaches it while it is paused waits; a dead one hears nothing."""

    def __init__(self, scheduler: Scheduler, name: str, random: Random) -> None:
        self.scheduler = scheduler
        self.name = name
        self.random = random
        self.alive = True
        self.paused = False
        self.offset = random.uniform(0.0, 2000.0)
        self.rate = random.choice((1.0, 1.0, random.uniform(0.995, 1.005)))
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def clock(self) -> float:
        """Its own monotonic time, in seconds: another zero and another speed than anybody else's."""
        return self.offset + self.scheduler.now * self.rate

    def run(self, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Calls ``fn`` as this process, as soon as it is able to."""
        if self.alive:
            if self.paused:
                self._backlog.append((fn, args))
            else:
                fn(*args)

    def soon(self, fn: Callable[..., None], *args: Any) -> None:
        """Calls ``fn`` after what happens now."""
        self.scheduler.at(self.scheduler.now, self.run, fn, args)

    def after(self, delay_s: float, fn: Callable[..., None], *args: Any) -> None:
        """Calls ``fn`` in so many seconds of its clock."""
        self.scheduler.at(self.scheduler.now + delay_s / self.rate + _NUDGE_S, self.run, fn, args)

    def at(self, local: float, fn: Callable[..., None], *args: Any) -> None:
        """Calls ``fn`` at a time of its clock."""
        self.scheduler.at((local - self.offset) / self.rate + _NUDGE_S, self.run, fn, args)

    def pause(self) -> None:
        """Stops it, as SIGSTOP does."""
        self.paused = True

    def resume(self) -> None:
        """Lets it go on; what came meanwhile comes now."""
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for fn, args in backlog:
            self.scheduler.at(self.scheduler.now, self.run, fn, args)

    def crash(self) -> None:
        """Ends it at once, as SIGKILL does."""
        self.alive = False
