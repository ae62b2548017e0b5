"""Waits until something is true of a config key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ringcast_wire import UnavailableError


class Waiters:
    """Conditions that are evaluated again whenever something has changed."""

    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._ended: Exception | None = None

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds; cancelling leaves nothing behind.

        Raises:
            Exception: what :meth:`fail` or :meth:`close` was given meanwhile, or :meth:`close` before.
        """
        if self._ended is not None:
            raise self._ended
        if condition():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (condition, future)
        self._waiters.append(waiter)
        try:
            await future
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def wake(self) -> None:
        """Something has changed."""
        for condition, future in self._waiters:
            if not future.done() and condition():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """All waits that are under way end with the error."""
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(error)

    def close(self, error: BaseException | None) -> None:
        """Nothing changes any more: all waits, now or later, end with the error, or with ``UnavailableError``."""
        self._ended = error if isinstance(error, Exception) else UnavailableError("the worker has ended")
        self.fail(self._ended)
