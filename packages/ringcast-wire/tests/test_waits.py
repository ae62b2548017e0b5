"""An event, or a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ringcast_wire import event_before, event_within


async def within(event: asyncio.Event, timeout_s: float | None) -> bool:
    return await event_within(event, timeout_s)


async def before(event: asyncio.Event, timeout_s: float | None) -> bool:
    return await event_before(event, None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s)


@pytest.mark.parametrize("wait", [within, before])
async def test_what_comes_first_ends_the_wait(wait: Callable[[asyncio.Event, float | None], Awaitable[bool]]) -> None:
    event = asyncio.Event()
    assert not await wait(event, 0.001)
    assert not await wait(event, -1.0)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait(event, None)
    assert await wait(event, -1.0)  # it is set already
    assert event.is_set()


@pytest.mark.parametrize("wait", [within, before])
async def test_a_wait_can_be_cancelled(wait: Callable[[asyncio.Event, float | None], Awaitable[bool]]) -> None:
    waiting = asyncio.ensure_future(wait(asyncio.Event(), 3600.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
