"""The timer of a group, on the event loop that the agent has."""

from __future__ import annotations

import asyncio

import uvloop
from ringcast_heartbeat_agent.dispatch.timer import DeadlineTimer
from ringcast_testkit import PATIENCE_S


def test_a_deadline_that_has_come_may_be_armed_twice() -> None:
    """The loop calls at once then: its handle does not say when."""

    async def arm() -> None:
        ticked = asyncio.Event()
        timer = DeadlineTimer(ticked.set)
        now_ms = timer.now_ms()
        timer.arm(now_ms - 1_000)
        timer.arm(now_ms - 1_000)
        timer.arm(now_ms - 2_000)
        async with asyncio.timeout(PATIENCE_S):
            await ticked.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(arm())
