"""Those who wait until something is true of a config key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiters:
    """Conditions that are looked at again whenever something has changed."""

    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds; cancelling leaves nothing behind."""
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

    def close(self, error: BaseException | None) -> None:
        """Nothing changes any more; whoever waits gets the error, or is cancelled."""
        for _, future in self._waiters:
            if not future.done() and error is not None:
                future.set_exception(error)
            else:
                future.cancel()
