"""A fetch whose partition was lost on the way is ended, and the services are told that nobody waits for its answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
from nats.aio.msg import Msg
from ringcast import Worker
from ringcast_client import ConfigServiceClient
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer
from ringcast_wire import names

PARTITIONS = 4


async def test_the_fetch_of_a_lost_partition_is_cancelled_at_the_service(tmp_path: Path) -> None:
    """Nobody answers: the service has ended, and something else listens in its place."""
    fetches: dict[str, str] = {}
    cancelled: list[str] = []
    news = asyncio.Event()

    async def listen(msg: Msg) -> None:
        what = msg.subject.rpartition(".")[2]
        if what == names.FETCH_CANCEL:
            cancelled.append(fetches.pop(msg.data.decode()))
        elif what.isdecimal():
            fetches[(msg.headers or {})[names.HEADER_FETCH_ID]] = what
        news.set()

    async def until(count: int, found: dict[str, str] | list[str]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < count:
                news.clear()
                await news.wait()

    def worker(name: str) -> Worker:
        return Worker(store="s", keys=["k"], servers=server.url, worker_id=name, fetch_timeout_s=PATIENCE_S)

    with NatsServer(tmp_path / "nats") as server:
        with ConfigServiceProcess(tmp_path, nats_url=server.url, database=f"sqlite:{tmp_path / 'd.db'}") as service:
            async with ConfigServiceClient(service.address) as client:
                await client.create_store("s", partition_count=PARTITIONS)
        listener = await nats.connect(server.url)
        try:
            await listener.subscribe("config.fetch.s.k.*", cb=listen)
            await listener.flush()
            async with worker("a") as first:
                await until(PARTITIONS, fetches)
                async with worker("b"):
                    await first.wait_until("k", lambda: len(first.owned("k")) < PARTITIONS, timeout_s=PATIENCE_S)
                    lost = {str(number) for number in range(PARTITIONS)} - {str(number) for number in first.owned("k")}
                    await until(len(lost), cancelled)
                    assert set(cancelled) == lost
                    assert set(fetches.values()) >= {str(number) for number in first.owned("k")}
        finally:
            await listener.close()
