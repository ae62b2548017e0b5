"""Which of several addresses connects first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

import grpc
import grpc.aio

from ringcast_client._common.addresses import ATTEMPT_S, next_after_s


class Entrant(Protocol):
    """What has a channel, which connects when it is needed."""

    channel: grpc.aio.Channel


E = TypeVar("E", bound=Entrant)


async def first_connected(endpoints: Sequence[E]) -> E | None:
    """The first of them that is connected; ``None``: all have failed, or the last one has had 5 s.

    They are tried in their order: the next one as soon as one fails, or after :func:`next_after_s` while those before
    it go on. Attempts that have not ended are left to the caller, as they are when this is cancelled.
    """
    loop = asyncio.get_running_loop()
    to_try = deque(endpoints)
    trying: dict[asyncio.Task[bool], E] = {}
    until_s = loop.time()
    try:
        while to_try or trying:
            if to_try:
                endpoint = to_try.popleft()
                trying[asyncio.create_task(_connected(endpoint.channel))] = endpoint
                until_s = loop.time() + (next_after_s(len(endpoints)) if to_try else ATTEMPT_S)
            done, _ = await asyncio.wait(
                trying, timeout=max(0.0, until_s - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            if not done and not to_try:
                return None
            for task in [each for each in trying if each in done]:
                endpoint = trying.pop(task)
                if task.result():
                    return endpoint
        return None
    finally:
        for task in trying:
            task.cancel()
        if trying:
            await asyncio.wait(trying)


async def _connected(channel: grpc.aio.Channel) -> bool:
    """Whether an attempt to connect succeeds; false also where the channel is closed meanwhile."""
    try:
        while True:
            state = channel.get_state(try_to_connect=True)
            if state not in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
                return state is grpc.ChannelConnectivity.READY
            await channel.wait_for_state_change(state)
    except grpc.aio.UsageError:
        return False
