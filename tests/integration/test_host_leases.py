"""Workers under the agent of their host, as real processes: deaths, pauses and agents that go cost what they should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from ringcast import Worker
from ringcast.admin import ConfigServiceClient, RowWrite
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, History, NatsServer, WorkerProcess
from ringcast_wire import NodeRecord, decode_record, names

PARTITIONS = 32
ROWS = 200


class Host:
    """A store with rows, and an agent whose socket workers use."""

    def __init__(self, directory: Path, server: NatsServer, client: ConfigServiceClient) -> None:
        self.socket = directory / "leases.sock"
        self.nats = server
        self.client = client
        self.history = History()
        self.rows = {f"row{number}": "1" for number in range(ROWS)}
        options = ("--lease-socket", str(self.socket), "--agent-id", "host-1")
        self.agent = AgentProcess(directory / "agent", nats_url=server.url, options=options)
        self.workers: list[WorkerProcess] = []

    def process(self, worker_id: str, **settings: Any) -> WorkerProcess:
        """A worker of this host, in a process of its own; started."""
        worker = WorkerProcess(
            worker_id,
            servers=self.nats.url,
            store="s",
            keys=("k",),
            history=self.history,
            agent=str(self.socket),
            **settings,
        )
        self.workers.append(worker)
        worker.start()
        return worker

    def worker(self, worker_id: str, **settings: Any) -> Worker:
        """A worker in this process, with a lease of its own unless it is told of an agent."""
        return Worker(servers=self.nats.url, store="s", keys=["k"], worker_id=worker_id, **settings)

    async def put(self, row_id: str, value: str) -> tuple[int, int]:
        """Writes a row; returns its partition and version."""
        self.rows[row_id] = value
        result = await self.client.put("s", "k", row_id, value)
        return result.partition, result.version

    async def registered(self, *worker_ids: str) -> None:
        """Waits until exactly these workers are registered."""

        def there() -> bool:
            found = self.agent.status()["leases"]["workers"]
            return sorted(one["worker_id"] for one in found if one["connected"]) == sorted(worker_ids)

        await asyncio.to_thread(self.agent.process.wait_until, there)

    def lease(self) -> str:
        """The agent's lease."""
        return str(self.agent.status()["leases"]["lease"])


async def until(workers: list[Worker], condition: Callable[[], bool]) -> None:
    """Waits for a condition, looked at whenever a worker changes, and now and then."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            waits = [asyncio.ensure_future(worker.wait_until("k", condition)) for worker in workers]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
            finally:
                for wait in waits:
                    wait.cancel()


def owns_all(worker: Worker) -> bool:
    return len(worker.owned("k")) == PARTITIONS


@pytest.fixture
async def host(tmp_path: Path, nats_server: NatsServer, config_service: ConfigServiceProcess) -> AsyncIterator[Host]:
    """A store with rows, and an agent that runs."""
    async with ConfigServiceClient(config_service.address) as client:
        await client.create_store("s", partition_count=PARTITIONS)
        host = Host(tmp_path, nats_server, client)
        async for _ in client.bulk_write("s", "k", [RowWrite(row_id, value) for row_id, value in host.rows.items()]):
            pass
        try:
            with host.agent:
                yield host
        finally:
            for worker in host.workers:
                worker.kill()


@pytest.fixture
async def buckets(host: Host) -> AsyncIterator[tuple[Any, Any]]:
    """The buckets of leases and of records."""
    client = await nats.connect(host.nats.url)
    js = client.jetstream()
    yield await js.key_value(names.LEASES_BUCKET), await js.key_value(names.nodes_bucket("s"))
    await client.close()


async def test_a_worker_under_an_agent_has_no_lease_of_its_own(host: Host, buckets: tuple[Any, Any]) -> None:
    leases, nodes = buckets
    async with host.worker("w", agent=host.socket) as worker:
        await worker.wait_ready(timeout_s=PATIENCE_S)
        assert worker.health().by_agent
        assert worker.health().lease_held
        assert await leases.keys() == [host.lease()]
        record = decode_record((await nodes.get(names.node_key("k", "w"))).value, NodeRecord)
        assert record.lease == host.lease()
        (told,) = host.agent.status()["leases"]["workers"]
        assert (told["worker_id"], told["store"], told["keys"], told["connected"]) == ("w", "s", ["k"], True)
    await host.registered()
    assert await leases.keys() == [host.lease()]


async def test_a_killed_worker_is_noticed_by_its_closed_socket(host: Host, buckets: tuple[Any, Any]) -> None:
    """Its records are deleted, and its lease, which is the host's, goes on."""
    async with host.worker("peer") as peer:
        victim = host.process("victim")
        await asyncio.to_thread(victim.wait_ready)
        await until([peer], lambda: not owns_all(peer))
        record = await buckets[1].get(names.node_key("k", "victim"))
        victim.kill()
        await until([peer], lambda: owns_all(peer))
        await peer.wait_ready(timeout_s=PATIENCE_S)
        history = [entry async for entry in _history(buckets[1], names.node_key("k", "victim"))]
        assert history[-1].operation == "DEL"
        assert history[-1].revision > record.revision
        assert host.agent.status()["leases"]["held"]


async def _history(bucket: Any, key: str) -> AsyncIterator[Any]:
    for entry in await bucket.history(key):
        yield entry
