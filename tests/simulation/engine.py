"""Virtual time: a heap of events, processes that crash and pause, and generators for what a process does in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from random import Random
from typing import Any

Steps = Generator[Any, Any, Any]
"""What a process does in order. It yields what it waits for: a number of seconds, a :class:`Future`, or a
:class:`Signal` with a local deadline (or ``None``); the last gives whether the signal came."""

MOST_STEPS = 300_000
"""More than any run takes by far: one that reaches it turns in circles."""

AT_ONCE_S = 0.01
MOST_AT_ONCE = 500
"""More steps than any task has reason to take within ``AT_ONCE_S``: one that takes more never lets the others work."""

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
    whose = owner.name + "." if isinstance(owner, Process) else f"{owner.title}." if isinstance(owner, Task) else ""
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
        self._tasks: list[Task] = []

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

    def spawn(self, steps: Steps) -> Task:
        """Starts a task, which ends with the process at the latest."""
        task = Task(self, steps)
        self._tasks = [other for other in self._tasks if not other.done]
        self._tasks.append(task)
        self.soon(task.step, 0, None)
        return task

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
        self.end_tasks()

    def end_tasks(self) -> None:
        """Ends all its tasks."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()


class Task:
    """A generator that is being run."""

    __slots__ = ("_process", "_since", "_steps", "_taken", "_wait", "done", "title")

    def __init__(self, process: Process, steps: Steps) -> None:
        self._process = process
        self._steps = steps
        self.title = f"{process.name}.{getattr(steps, '__qualname__')}"  # noqa: B009  # generators have it, their type does not say so
        self._wait = 0
        self._since = 0.0
        self._taken = 0
        self.done = False

    def step(self, wait: int, value: Any) -> None:
        """Goes on, if it is still waiting for this."""
        if self.done or wait != self._wait:
            return
        self._wait += 1
        self._count()
        try:
            want = self._steps.send(value)
        except StopIteration:
            self.done = True
            return
        if self.done:  # it has ended the process that it belongs to
            return
        if isinstance(want, float):
            self._process.after(want, self.step, self._wait, None)
        elif isinstance(want, Future):
            want.wait(self, self._wait)
        else:
            signal, deadline = want
            signal.wait(self, self._wait)
            if deadline is not None:
                self._process.at(deadline, self.step, self._wait, False)

    def _count(self) -> None:
        now = self._process.scheduler.now
        if now - self._since > AT_ONCE_S:
            self._since, self._taken = now, 0
        self._taken += 1
        if self._taken > MOST_AT_ONCE:
            raise CirclesError(f"{self.title} has taken {self._taken} steps since {self._since:.6f} s")

    def soon(self, wait: int, value: Any) -> None:
        """Goes on after what happens now."""
        self._process.soon(self.step, wait, value)

    def cancel(self) -> None:
        """Ends it where it is."""
        self.done = True


class Signal:
    """Something that tasks may wait for and others set, like ``asyncio.Event``."""

    __slots__ = ("_waiters", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiters: dict[Task, int] = {}

    def set(self) -> None:
        """Wakes who waits, or who comes to wait."""
        self.is_set = True
        waiters, self._waiters = self._waiters, {}
        for task, wait in waiters.items():
            task.soon(wait, True)

    def clear(self) -> None:
        """Forgets that it was set."""
        self.is_set = False

    def wait(self, task: Task, wait: int) -> None:
        """For :class:`Task`."""
        if self.is_set:
            task.soon(wait, True)
        else:
            self._waiters[task] = wait


class Future:
    """An answer that comes once; later ones are ignored."""

    __slots__ = ("_waiter", "done", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self._waiter: tuple[Task, int] | None = None

    def settle(self, value: Any) -> None:
        """Gives the answer, which may be an exception."""
        if not self.done:
            self.done = True
            self.value = value
            if self._waiter is not None:
                task, wait = self._waiter
                task.step(wait, None)

    def wait(self, task: Task, wait: int) -> None:
        """For :class:`Task`."""
        if self.done:
            task.soon(wait, None)
        else:
            self._waiter = (task, wait)
