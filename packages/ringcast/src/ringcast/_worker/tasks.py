"""The tasks of a worker that has joined."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from ringcast._common.lasting import lasting


class WorkerTasks:
    """One group for all of them: the error of one ends the others. ``async with`` waits until all have ended."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: set[asyncio.Task[None]] = set()
        self._ending = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._group.__aexit__(kind, error, trace)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Starts a task, unless the tasks are ending already."""
        if self._ending:
            work.close()
            return None
        try:
            task = self._group.create_task(work)
        except RuntimeError:  # one of them has failed, so the group takes no more
            work.close()
            return None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def keep(self, what: str, run: Callable[[], Awaitable[None]]) -> None:
        """Starts a task that must not end before :meth:`end`. ``what`` it does is named in the error if it does."""
        self.spawn(lasting(what, run))

    def end(self) -> None:
        """Cancels all tasks, and starts none any more."""
        self._ending = True
        for task in list(self._running):
            task.cancel()
