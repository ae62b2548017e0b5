"""What the shell does about the habits of the NATS client."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from ringcast._connection import heeding


async def _asks(answer: asyncio.Future[str]) -> str:
    """As the NATS client waits for an answer."""
    return await asyncio.wait_for(answer, timeout=60.0)


@pytest.mark.parametrize("error", [None, LookupError("no such consumer")])
async def test_a_cancellation_that_comes_with_the_answer_is_heeded(error: Exception | None) -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    went_on = False

    async def watch() -> None:
        nonlocal went_on
        with suppress(LookupError):
            await heeding(_asks(answer))
        went_on = True

    task = asyncio.create_task(watch())
    await asyncio.sleep(0)
    if error is None:
        answer.set_result("here")
    else:
        answer.set_exception(error)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert not went_on
