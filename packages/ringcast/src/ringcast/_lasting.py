"""Tasks that last as long as their worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def lasting(what: str, run: Callable[[], Awaitable[None]]) -> None:
    """Runs until cancelled. ``what`` the task does is named in the error, should it end otherwise.

    Something in it may be cancelled by others; a task group takes a task that ends so for one that it cancelled itself,
    and says nothing.

    Raises:
        RuntimeError: it has ended, and nobody cancelled this task.
    """
    task = asyncio.current_task()
    try:
        await run()
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
    raise RuntimeError(f"the task that {what} has ended, and the worker can't go on without it")
