"""Tasks that last as long as their worker, and the error that ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ringcast_wire import RingcastError


async def lasting(what: str, run: Callable[[], Awaitable[None]]) -> None:
    """Runs until cancelled. ``what`` the task does is named in the error, should it end otherwise.

    Something in it may be cancelled by others; a task group takes a task that ends so for one that it cancelled itself,
    and says nothing.

    Raises:
        RuntimeError: it has ended although this task was not cancelled.
    """
    task = asyncio.current_task()
    try:
        await run()
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
    raise RuntimeError(f"the task that {what} has ended, and the worker can't go on without it")


def first_error(error: BaseException) -> BaseException:
    """The error that a person should see, of several that came at once: one of ours if there is one."""
    errors: list[BaseException] = []
    stack: list[BaseException] = [error]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(reversed(error.exceptions))
        else:
            errors.append(error)
    return next((error for error in errors if isinstance(error, RingcastError)), errors[0])
