"""Distinguishes a stop of the worker from a cancellation that comes out of the application's own code.

A handler that awaits something which another task has cancelled raises ``CancelledError``, and so does one whose task
is cancelled by the application itself. Neither may end what hands changes over: only a stop of the worker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")

ENDS_THE_PROCESS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What a call of the application may raise and is no failure of the call."""


class Stopping:
    """Whether the tasks that call the application are being ended: they are cancelled only after :meth:`begin`."""

    def __init__(self) -> None:
        self.begun = False
        self._went_on: WeakSet[asyncio.Task[object]] = WeakSet()

    def begin(self) -> None:
        """From now on a cancellation is meant; so are those of before that a task has taken back."""
        self.begun = True
        for task in list(self._went_on):
            task.cancel()

    def take_back(self) -> bool:
        """Says whether a task that has just got a ``CancelledError`` goes on; then the cancellation is undone."""
        if self.begun:
            return False
        task = asyncio.current_task()
        assert task is not None
        self._went_on.add(task)
        while task.cancelling():
            task.uncancel()
        return True

    def goes_on(self, *, ours: bool) -> bool:
        """After a ``CancelledError`` out of the application: whether it is a failure, not a wish to end the task.

        In a task of this worker's (``ours``) only a stop is such a wish; in the caller's own, any cancellation of it.
        """
        return self.take_back() if ours else not is_cancelled()

    async def through(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Waits for what ``wait`` gives, once more after each cancellation that is not the worker's."""
        while True:
            try:
                return await wait()
            except asyncio.CancelledError:
                if not self.take_back():
                    raise


def is_cancelled() -> bool:
    """Whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
