"""An event loop of asyncio in virtual time: the real code of a process runs in it, and never waits.

After trio's ``MockClock`` with autojump and turmoil's hosts: there is one heap of what is due for all processes, and
each loop has the clock of its process, which may be paused or killed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, Final, TypeVar

from typing_extensions import TypeVarTuple, Unpack

from tests.simulation.engine import CirclesError, Process

AT_ONCE_S: Final = 0.01
MOST_TURNS_AT_ONCE: Final = 2_000
"""More turns than any process has reason to take within ``AT_ONCE_S``: one that takes more turns in circles."""

_MOST_CANCELLATIONS: Final = 20
_MOST_LAST_TURNS: Final = 1_000

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class SimTask(asyncio.Task[Any]):
    """A task whose hash is its number in its loop: the order in a set of tasks is the same in every run.

    A number that went on from one run to the next would not do: the order in a set depends on the numbers themselves.
    """

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: SimLoop, **kwargs: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, by the clock of one process, and in turns that the scheduler gives it. It has no sockets."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.errors: list[str] = []
        """What no task has taken care of, as asyncio tells it."""
        self.tasks: dict[int, SimTask] = {}
        self.numbers = count()
        self._queue: deque[asyncio.Handle] = deque()
        self._due = False
        self._since = 0.0
        self._turns = 0
        self._ended = False
        super().__init__()

    def time(self) -> float:
        """The monotonic clock of the process, in seconds."""
        return self.process.clock()

    # ---- callbacks

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Calls back in the next turn."""
        handle = asyncio.Handle(callback, args, self, context)
        self._queue.append(handle)
        self._turn_soon()
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Calls back in so many seconds of the process's clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Calls back at a time of the process's clock."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.process.at(when, self._expired, handle)
        return handle

    def _expired(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._queue.append(handle)
            self._turn_soon()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is passed over when it is due

    def _turn_soon(self) -> None:
        if not self._due and not self._ended:
            self._due = True
            self.process.soon(self._turn)

    def _turn(self) -> None:
        """Turns as ``_run_once`` of asyncio takes them, until nothing is left to do at this time."""
        while self._queue and self.process.alive:
            self._count()
            self._run(len(self._queue))
        self._due = False

    def _run(self, number: int) -> None:
        trace = self.process.scheduler.trace
        asyncio.events._set_running_loop(self)
        try:
            for _ in range(number):
                handle = self._queue.popleft()
                if not handle._cancelled:
                    if trace is not None:
                        trace.append(f"  {self.process.name} {_named(handle)}")
                    handle._run()
        finally:
            asyncio.events._set_running_loop(None)

    def _count(self) -> None:
        now = self.process.scheduler.now
        if now - self._since > AT_ONCE_S:
            self._since, self._turns = now, 0
        self._turns += 1
        if self._turns > MOST_TURNS_AT_ONCE:
            busy = ", ".join(sorted({_named(handle) for handle in self._queue}))
            raise CirclesError(f"{self.process.name} has taken {self._turns} turns since {self._since:.6f} s: {busy}")

    def run_in_executor(self, executor: object, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> asyncio.Future[_T]:
        """Calls at once what is for another thread: there is none."""
        done: asyncio.Future[_T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # it is for whoever waits
            done.set_exception(error)
        return done

    # ---- tasks

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> SimTask:
        """A task of this loop."""
        task = SimTask(coro, loop=self, name=name, context=context)
        self.tasks[hash(task)] = task
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(hash(task), None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keeps what nobody has taken care of, unless the process is gone."""
        if not self._ended:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def end(self) -> None:
        """The process is gone: nothing of it runs any more, and what its tasks do on their way out reaches nobody."""
        self._ended = True
        if asyncio.events._get_running_loop() is self:  # one of its own tasks has ended it
            self.process.scheduler.at(self.process.scheduler.now, self.end)
            return
        for _ in range(_MOST_CANCELLATIONS):
            for task in list(self.tasks.values()):
                task.cancel()
            for _ in range(_MOST_LAST_TURNS):
                if not self._queue:
                    break
                self._run(len(self._queue))
            if not self.tasks:
                self.close()
                return
        left = ", ".join(map(_title, self.tasks.values()))
        raise CirclesError(f"{self.process.name} has tasks that can't be cancelled: {left}")


def _named(handle: asyncio.Handle) -> str:
    """What a callback is, the same in every run."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return _title(task)
    return str(getattr(callback, "__qualname__", type(callback).__name__))


def _title(task: asyncio.Task[Any]) -> str:
    return str(getattr(task.get_coro(), "__qualname__", ""))
