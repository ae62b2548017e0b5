"""Waiting for what no event tells of, without a guess how long it takes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ringcast_testkit._process import PATIENCE_S, place_of

if TYPE_CHECKING:
    from ringcast import Worker

_LEAST_S: Final = 0.02
_MOST_S: Final = 0.25


def pause_s(look_s: float) -> float:
    """How long to wait after a look that took ``look_s``: looking takes a quarter of the time, not all of a core.

    What asks a server, or all workers for their rows, would else be most of what a test computes.
    """
    return min(max(_LEAST_S, 3 * look_s), _MOST_S)


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for it; one that has ended already is left alone."""
    if task.cancel():
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object]) -> None:
    """Waits until ``condition()``, or what it is awaited to, is true: for what time or another process brings about.

    Raises:
        TimeoutError: it has not come within ``PATIENCE_S``; the message says which condition, and its last value.
    """
    found: object = None
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            while True:
                began_s = time.monotonic()
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return
                await asyncio.sleep(pause_s(time.monotonic() - began_s))
    except TimeoutError:
        if not limit.expired():  # one of the condition's own
            raise
        raise TimeoutError(f"{place_of(condition)} is {found!r} after {PATIENCE_S:g} s") from None


async def until_done(call: Callable[[], Awaitable[object]], *refusals: type[Exception]) -> None:
    """Makes a call again and again until it raises none of these errors.

    Raises:
        TimeoutError: it still does after ``PATIENCE_S``.
    """

    async def is_done() -> bool:
        try:
            await call()
        except refusals:
            return False
        return True

    await until(is_done)


async def until_workers(workers: Sequence[Worker], key: str, condition: Callable[[], bool]) -> None:
    """Waits for a condition on several workers together, looked at whenever one of them changes, and now and then.

    Raises:
        TimeoutError: it has not come within ``PATIENCE_S``.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            began_s = time.monotonic()
            if condition():
                return
            pause = pause_s(time.monotonic() - began_s)
            waits = [asyncio.ensure_future(worker.wait_until(key, condition)) for worker in workers]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=pause)
            finally:
                for wait in waits:
                    wait.cancel()
