"""What the client of NATS does about the habits of the library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from ringcast_meta.nats_client import LastingClient
from ringcast_testkit import NatsServer, until


class _CancelsWithTheAnswer(LastingClient):
    """A task is cancelled in the turn of the event loop in which its answer comes."""

    def __init__(self) -> None:
        super().__init__()
        self.task: asyncio.Task[Any] | None = None

    async def _request_sub_callback(self, msg: Msg) -> None:
        await super()._request_sub_callback(msg)
        if self.task is not None:
            self.task.cancel()

    async def _process_pong(self) -> None:
        await super()._process_pong()
        if self.task is not None:
            self.task.cancel()


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda client: client.request("asked", timeout=60), id="answered"),
        pytest.param(lambda client: client.request("nobody", timeout=60), id="nobody_there"),
        pytest.param(lambda client: client.flush(60), id="flushed"),
    ],
)
async def test_a_cancellation_that_comes_with_the_answer_is_raised(
    nats_server: NatsServer, work: Callable[[LastingClient], Any]
) -> None:
    """Or a task that asks again and again goes on for ever, and so does who waits for its end."""
    other = await nats.connect(nats_server.url)
    client = _CancelsWithTheAnswer()
    await client.connect(nats_server.url)
    try:

        async def answer(msg: Msg) -> None:
            await msg.respond(b"here")

        await other.subscribe("asked", cb=answer)
        await other.flush()

        async def is_answered() -> bool:
            with suppress(NoRespondersError):
                await client.request("asked", timeout=60)  # makes the subscription that takes answers
                return True
            return False

        await until(is_answered)
        client.task = asyncio.create_task(work(client))
        await asyncio.wait([client.task])
        assert client.task.cancelled()
    finally:
        client.task = None
        await client.close()
        await other.close()
