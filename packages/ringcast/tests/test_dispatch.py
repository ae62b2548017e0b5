"""A consumer of dispatch with an agent that does what each test needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from ringcast.dispatch import Consumer, Delivery
from ringcast_testkit import until
from ringcast_wire.dispatch import DispatchServicer, add_DispatchServicer_to_server, pb


class Agent(DispatchServicer):
    """Registers a consumer in a session of each connection's own, delivers what it is given, and can end the stream."""

    def __init__(self) -> None:
        self.resumed = False
        self.connections = 0
        self.deliveries: asyncio.Queue[pb.Deliveries | None] = asyncio.Queue()

    async def Consume(self, requests: AsyncIterator[pb.ConsumeRequest], context: Any) -> None:
        await context.read()
        self.connections += 1
        resumed = self.resumed and self.connections > 1
        await context.write(
            pb.ConsumeResponse(
                registered=pb.Registered(
                    session=f"s{self.connections}", resumed=resumed, agent="a", capacity=10, evict_after_s=60
                )
            )
        )
        reading = asyncio.create_task(self._read(context))
        try:
            while (deliveries := await self.deliveries.get()) is not None:
                await context.write(pb.ConsumeResponse(deliveries=deliveries))
        finally:
            reading.cancel()

    async def _read(self, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            if request.HasField("leave"):
                self.deliveries.put_nowait(None)


def delivery(offset: int, version: int) -> pb.Delivery:
    return pb.Delivery(offset=offset, attempt=1, row_id=f"r{offset}", value="v", version=version)


@pytest.mark.parametrize("resumed", [False, True])
async def test_what_waits_for_its_turn_is_dropped_once_its_session_is_over(resumed: bool) -> None:
    """Another consumer may have a newer version by now. It waits for the handler of the one before."""
    agent = Agent()
    agent.resumed = resumed
    server = grpc.aio.server()
    add_DispatchServicer_to_server(agent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    handled: list[tuple[str, int]] = []
    begun, proceed, last = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(change: Delivery) -> None:
        handled.append((change.row_id, change.version))
        if change.offset == 1:
            begun.set()
            await proceed.wait()
        if change.offset == 3:
            last.set()

    try:
        async with Consumer(f"127.0.0.1:{port}", store="s", key="k", group="g", name="n", token="t") as consumer:
            running = asyncio.create_task(consumer.run(handler, parallel=1))
            agent.deliveries.put_nowait(pb.Deliveries(deliveries=[delivery(1, 1), delivery(2, 1)]))
            async with asyncio.timeout(20):
                await begun.wait()
                agent.deliveries.put_nowait(None)
                agent.deliveries.put_nowait(pb.Deliveries(deliveries=[delivery(3, 5)]))
                await until(lambda: 3 in consumer._open)
                proceed.set()
                await last.wait()
            running.cancel()
            await asyncio.wait({running})
    finally:
        await server.stop(None)

    assert agent.connections == 2
    assert handled == ([("r1", 1), ("r2", 1), ("r3", 5)] if resumed else [("r1", 1), ("r3", 5)])
