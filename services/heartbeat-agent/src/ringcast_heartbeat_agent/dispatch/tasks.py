"""The tasks of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class GroupTasks:
    """Tasks that end with their group. ``spawn``: begins a task of the agent."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self._spawn = spawn
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins a task."""
        task = self._spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancels those that are not done."""
        for task in self._tasks:
            task.cancel()
