"""Waiting for an event, or until a time."""

from __future__ import annotations

import asyncio


async def event_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Waits until the event is set, for ``timeout_s`` at most (``None``: without an end); returns whether it is set.

    An event that is set already makes no wait, whatever the time is. The event stays as it is.
    """
    return await _wait(event, asyncio.timeout(timeout_s))


async def event_before(event: asyncio.Event, deadline_s: float | None) -> bool:
    """As :func:`event_within`, until a time of the running loop."""
    return await _wait(event, asyncio.timeout_at(deadline_s))


async def _wait(event: asyncio.Event, limit: asyncio.Timeout) -> bool:
    try:
        async with limit:
            await event.wait()
    except TimeoutError:
        return False
    return True
