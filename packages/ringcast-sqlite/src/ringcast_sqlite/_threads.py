"""Threads that do the waiting for an event loop, with a bound on how many calls wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ringcast_sqlite._errors import StoreBusyError, StoreClosedError, translated

T = TypeVar("T")


class Threads:
    """``count`` threads for calls on the file ``path``, of which ``max_waiting`` may wait or run at once."""

    def __init__(self, path: Path, name: str, count: int, max_waiting: int) -> None:
        self._path = path
        self._max_waiting = max_waiting
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=f"ringcast-sqlite-{name}")
        self._places = threading.BoundedSemaphore(max_waiting)

    async def run(self, call: Callable[[], T]) -> T:
        """Runs ``call`` on one of the threads and returns its result. Cancelling the wait does not stop the call.

        Raises:
            StoreBusyError: ``max_waiting`` calls wait or run already.
            StoreClosedError: they were shut.
            StoreError: what SQLite says about the file.
        """
        if not self._places.acquire(blocking=False):
            raise StoreBusyError(f"database {self._path} is busy: {self._max_waiting} calls wait already")
        try:
            future = self._executor.submit(self._translated, call)
        except RuntimeError:  # it was shut
            self._places.release()
            raise StoreClosedError(f"database {self._path} is closed") from None
        # Not when the caller stops waiting: a call that was cancelled still holds its thread.
        future.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(future)

    def shut(self) -> None:
        """Waits until all calls are done."""
        self._executor.shutdown(wait=True)

    def _translated(self, call: Callable[[], T]) -> T:
        with translated(self._path):
            return call()
