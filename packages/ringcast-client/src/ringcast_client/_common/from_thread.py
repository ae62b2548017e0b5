"""Iterates over something that may block (a file, a pipe) without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def from_thread(items: Iterable[T], *, ahead: int = 2) -> AsyncGenerator[T, None]:
    """Yields what ``items`` yields, iterating in a daemon thread that is at most ``ahead`` items ahead.

    An exception of the iterable is raised here. Leaving early does not wait for the thread: it ends with the item that
    it is busy with, so a read that never returns can't hold up the end of the program.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[T | None, BaseException | None]] = asyncio.Queue()
    room = threading.Semaphore(ahead)
    stopped = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        # An interrupt cancels the task that waits here at any step of this, also between a look at its future and the
        # result for it (asyncio.run).
        with suppress(asyncio.InvalidStateError):
            queue.put_nowait((item, error))

    def hand_over(item: T | None, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: no task waits any more
            loop.call_soon_threadsafe(put, item, error)

    def work() -> None:
        try:
            for item in items:
                room.acquire()
                if stopped.is_set():
                    return
                hand_over(item, None)
        except BaseException as error:  # noqa: BLE001  # raised in the loop instead
            hand_over(None, error)
        else:
            hand_over(None, _END)

    threading.Thread(target=work, name="ringcast-input", daemon=True).start()
    try:
        while True:
            item, error = await queue.get()
            if error is _END:
                return
            if error is not None:
                raise error
            room.release()
            yield item  # type: ignore[misc]  # without an error it is an item
    finally:
        stopped.set()
        room.release()


_END = StopAsyncIteration()
