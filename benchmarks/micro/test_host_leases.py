"""A worker that is killed, until another owns its partitions and has their rows; and one that stands still for 8 s.

Under the agent of the host, and beside it with a lease of its own, which has to end first. Goals: p50 at most 1 s under
an agent, and no partition moves for the pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import ringcast
from pytest_benchmark.fixture import BenchmarkFixture
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_testkit import AgentProcess, ConfigServiceProcess, History, NatsServer, WorkerProcess

PARTITIONS = 64
ROWS = 1_000
PAUSE_S = 8.0


class Pair:
    """A peer in this process, which takes over from the victim, a process of its own. All waits keep the peer going."""

    def __init__(self, server: NatsServer, socket: Path | None) -> None:
        self.moves = 0
        self._settings: dict[str, Any] = {"agent": str(socket)} if socket is not None else {}
        self._servers = server.url
        self._history = History()
        self._runner = asyncio.Runner()
        self.peer = ringcast.Worker(
            servers=server.url,
            store="bench",
            keys=["list"],
            worker_id="peer",
            on_assigned=self._moved,
            on_revoked=self._moved,
            **self._settings,
        )

    def start(self, address: str) -> None:
        """Makes the store, and starts the peer."""
        self._runner.run(self._start(address))

    def stop(self) -> None:
        """Ends the peer."""
        self._runner.run(self.peer.stop())
        self._runner.close()

    def victim(self) -> WorkerProcess:
        """A victim that has its share."""
        victim = WorkerProcess(
            "victim",
            servers=self._servers,
            store="bench",
            keys=("list",),
            history=self._history,
            **self._settings,
        )
        self._runner.run(self._share(victim))
        return victim

    def kill(self, victim: WorkerProcess) -> None:
        """Returns once the peer owns everything again, and has it."""
        self._runner.run(self._kill(victim))

    def pause(self, victim: WorkerProcess, pause_s: float) -> int:
        """Stops a victim for so long; returns how many partitions' moves the peer was told of."""
        return self._runner.run(self._pause(victim, pause_s))

    async def _start(self, address: str) -> None:
        async with ConfigServiceClient(address) as client:
            await client.create_store("bench", partition_count=PARTITIONS)
            async for _ in client.bulk_write("bench", "list", (RowWrite(f"row{n}", "value") for n in range(ROWS))):
                pass
        await self.peer.start()
        await self.peer.wait_ready()

    async def _share(self, victim: WorkerProcess) -> None:
        await asyncio.to_thread(victim.start)
        await asyncio.to_thread(victim.wait_ready)
        await self.peer.wait_until("list", lambda: len(self.peer.owned("list")) < PARTITIONS)

    async def _kill(self, victim: WorkerProcess) -> None:
        await asyncio.to_thread(victim.kill)
        await self.peer.wait_until("list", lambda: len(self.peer.owned("list")) == PARTITIONS)
        await self.peer.wait_ready()
        assert self.peer.row_count("list") == ROWS

    async def _pause(self, victim: WorkerProcess, pause_s: float) -> int:
        before = self.moves
        await asyncio.to_thread(victim.pause)
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(victim.resume)
        await asyncio.to_thread(victim.dump)
        return self.moves - before

    def _moved(self, _key: str, partitions: frozenset[int]) -> None:
        self.moves += len(partitions)


@pytest.fixture(params=["under_an_agent", "own_lease"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, nats_server: NatsServer, config_service: ConfigServiceProcess
) -> Iterator[Pair]:
    """A pair under an agent, or with leases of their own."""
    socket = tmp_path / "leases.sock" if request.param == "under_an_agent" else None
    with ExitStack() as stack:
        if socket is not None:
            options = ("--lease-socket", str(socket))
            stack.enter_context(AgentProcess(tmp_path / "agent", nats_url=nats_server.url, options=options))
        pair = Pair(nats_server, socket)
        pair.start(config_service.address)
        try:
            yield pair
        finally:
            pair.stop()


def test_killed_worker(benchmark: BenchmarkFixture, pair: Pair, request: pytest.FixtureRequest) -> None:
    benchmark.group = "a killed worker's partitions"
    rounds = 11 if "under_an_agent" in request.node.name else 3
    benchmark.pedantic(pair.kill, setup=lambda: ((pair.victim(),), {}), rounds=rounds)


def test_paused_worker(benchmark: BenchmarkFixture, pair: Pair, request: pytest.FixtureRequest) -> None:
    """With a lease of its own a worker that stands still for 8 s may or may not lose it."""
    benchmark.group = "a worker that stands still"
    victim = pair.victim()
    moved: list[int] = []
    try:
        pause_s = 0.5 if benchmark.disabled else PAUSE_S
        benchmark.pedantic(lambda: moved.append(pair.pause(victim, pause_s)), rounds=3)
    finally:
        victim.kill()
    benchmark.extra_info["partitions moved"] = sum(moved)
    if "under_an_agent" in request.node.name:
        assert sum(moved) == 0
