"""The process that holds many workers, and has one join, one leave and one crash.

For each it says ``join``, ``leave`` or ``crash`` with how long it took until every partition had one owner that had
loaded it, how many partitions changed hands, and for how long each of these was dark: from when its owner gave it up,
or was killed, to the first call of the next one's handler. Below 0 both had it meanwhile. The one that crashes is a
process of its own. Then others crash under the agent of a host, one after another: ``crash under an agent, 0`` and on.

``cpu_ms`` of a step is what this process took until the last event of it: its workers share one event loop.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import nats
import ringcast
from ringcast_testkit import AgentProcess
from ringcast_wire import Strategy, limits, names

from benchmarks.envelope.processes import Child
from benchmarks.envelope.reporting import say
from benchmarks.envelope.targets import KEY

_AT_ONCE = 20
"""Workers that start at the same time, unless the settings say so. Each wave moves partitions of all before it, which
has to come to rest: leases are refreshed by the same event loop."""
_QUIET_S = 0.75
"""After so long without an event, what everybody owns is taken for final."""
_MEAN_OF_ONE = 16
"""With so many partitions a worker, one without any is one that has not had its share yet."""
UNDER_AGENT = "crash under an agent"
_START_S = 60.0
_HOLDS_ALL_S = 120.0


class Fleet:
    """Workers of one key. Whoever owns what is told by their callbacks alone."""

    def __init__(self, servers: str, store: str, partitions: int, *, others: int = 0) -> None:
        self._servers = servers
        self._store = store
        self._partitions = partitions
        self._others = others
        """Workers of other processes."""
        self.levels = False
        """Whether the strategy gives each worker its equal share, after which nothing moves."""
        self._calls_at: dict[tuple[str, int], float] = {}
        """The first call of a worker's handler for a partition since it was assigned."""
        self._given_up_at: dict[int, float] = {}
        self._workers: dict[str, ringcast.Worker] = {}
        self._owned: dict[str, set[int]] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._event_at = 0.0
        self._event_cpu_s = 0.0

    def _note_event(self) -> None:
        self._event_at, self._event_cpu_s = time.monotonic(), time.process_time()

    async def start(self, worker_id: str) -> None:
        """Adds a worker; returns once it has its first assignment."""
        owned = self._owned[worker_id] = set()

        def on_assigned(_key: str, partitions: frozenset[int]) -> None:
            owned.update(partitions)
            self._note_event()
            for partition in partitions:
                self._calls_at.pop((worker_id, partition), None)
            load = asyncio.create_task(self._load(worker_id))
            self._loads.add(load)
            load.add_done_callback(self._loads.discard)

        def on_revoked(_key: str, partitions: frozenset[int]) -> None:
            owned.difference_update(partitions)
            self._note_event()
            self._given_up_at.update(dict.fromkeys(partitions, self._event_at))

        def handler(change: ringcast.Change) -> None:
            self._calls_at.setdefault((worker_id, change.partition), time.monotonic())

        worker = self._workers[worker_id] = ringcast.Worker(
            servers=self._servers,
            store=self._store,
            keys=[KEY],
            worker_id=worker_id,
            handler=handler,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )
        await worker.start()

    async def stop(self, worker_id: str) -> None:
        """Has a worker leave in order."""
        del self._owned[worker_id]
        await self._workers.pop(worker_id).stop()

    async def stop_all(self) -> None:
        """Ends everything."""
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))

    async def settled(self, shares: int = 1) -> dict[int, str]:
        """Waits until nothing has moved for a while; returns the owner of each partition.

        ``shares`` above 1: workers of other processes own partitions too, so that some have no owner here.

        Raises:
            TimeoutError: partitions stay without an owner, or with two.
        """
        others = self._others + shares - 1
        deadline = time.monotonic() + _HOLDS_ALL_S
        while True:
            owners = {partition: worker_id for worker_id, owned in self._owned.items() for partition in owned}
            held = sum(map(len, self._owned.values()))
            whole = held == len(owners) and (held < self._partitions if others else held == self._partitions)
            # A joiner begins without any, and that is no state of rest.
            mean = self._partitions // (len(self._owned) + others)
            least = mean if self.levels else min(mean // _MEAN_OF_ONE, 1)
            whole = whole and all(len(owned) >= least for owned in self._owned.values())
            if whole and not self._loads and time.monotonic() > self._event_at + _QUIET_S:
                return owners
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(owners)} of {self._partitions} partitions have an owner, {held} are owned")
            await asyncio.sleep(0.02)

    def forget(self, partitions: Iterable[int]) -> None:
        """Another process has these now: when it gives them up is when it ends."""
        for partition in partitions:
            self._given_up_at.pop(partition, None)

    async def timed(self, what: str, action: Awaitable[object], before: dict[int, str], ideal: float) -> dict[int, str]:
        """Does something to the fleet, says what came of it, and returns the owners afterwards."""
        self._note_event()
        began, began_cpu_s = self._event_at, self._event_cpu_s
        await action
        self._note_event()
        after = await self.settled()
        moved = [partition for partition, owner in before.items() if after.get(partition) != owner]
        first_calls = {partition: self._calls_at.get((after.get(partition, ""), partition)) for partition in moved}
        dark_ms = [
            (called - self._given_up_at.get(partition, began)) * 1e3
            for partition, called in first_calls.items()
            if called is not None
        ]
        say(
            what,
            took_ms=(self._event_at - began) * 1e3,
            cpu_ms=(self._event_cpu_s - began_cpu_s) * 1e3,
            moved=len(moved),
            ideal=ideal,
            dark_ms=dark_ms,
        )
        return after

    async def _load(self, worker_id: str) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None:
            await worker.wait_ready()
            self._note_event()


async def main(settings: dict[str, Any]) -> None:
    count, partitions = settings["workers"], settings["partitions"]
    fleet = Fleet(
        settings["servers"],
        settings["store"],
        partitions,
        others=settings.get("others", 0),
    )
    fleet.levels = settings["strategy"] == Strategy.STICKY
    prefix = settings.get("prefix", "w")
    workers = [f"{prefix}{number:03d}" for number in range(count)]
    # A worker has a heap of its own. One of all of them together would be looked through as often as that of each.
    gc.disable()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fleet.stop_all)
        owners: dict[int, str] = {}
        at_once = settings.get("at_once", _AT_ONCE)
        for start in range(0, count, at_once):
            await asyncio.gather(*(fleet.start(name) for name in workers[start : start + at_once]))
            owners = await fleet.settled()
        say("started", most=max(sum(owner == name for owner in owners.values()) for name in workers))
        if settings.get("holds"):
            await asyncio.Event().wait()
        await asyncio.sleep(settings.get("rest_s", 0))
        say("moving")
        middle = workers[count // 2]
        owners = await fleet.timed(
            "leave", fleet.stop(middle), owners, sum(owner == middle for owner in owners.values())
        )
        owners = await fleet.timed("join", fleet.start("w-new"), owners, partitions / count)
        if count == limits.MAX_WORKERS_PER_KEY:  # the one that is to crash needs a place
            await fleet.stop("w-new")
            owners = await fleet.settled()
        if settings.get("crash", True):
            owners = await crash(fleet, settings, owners)
        if rounds := settings.get("agent_rounds", 0):
            await crash_under_agent(fleet, settings, owners, rounds)
    say("done")


async def crash(fleet: Fleet, settings: dict[str, Any], before: dict[int, str]) -> dict[int, str]:
    """Another process joins, and is killed; with ``gently`` it ends in order, which spares the wait for its lease."""
    with _victim(settings, {"worker_id": "w-victim"}) as victim:
        end: Callable[[], object] = victim.process.terminate if settings["gently"] else victim.process.kill
        return await _end("crash", fleet, victim, end, before)


async def crash_under_agent(fleet: Fleet, settings: dict[str, Any], owners: dict[int, str], rounds: int) -> None:
    """One process after another joins, registered with the agent of its host, and is killed once that knows of it."""
    directory = Path(settings["directory"])
    socket = str(directory / "leases.sock")
    options = ("--id", "bench", "--lease-socket", socket)
    with AgentProcess(directory / "agent", nats_url=settings["servers"], options=options) as agent:
        for number in range(rounds):
            reports = agent.status()["leases"]["sessions_reported"]
            worker_id = f"w-hosted{number}"
            with _victim(settings, {"worker_id": worker_id, "agent": socket}) as victim:
                await asyncio.to_thread(victim.wait_for, "ready", _START_S)
                await asyncio.to_thread(agent.process.wait_until, partial(_sees_end, agent, worker_id))
                if settings["strategy"] == Strategy.STICKY:
                    await asyncio.to_thread(agent.process.wait_until, partial(_has_report, agent, reports))
                    await _names_agent(settings, worker_id)
                owners = await _end(f"{UNDER_AGENT}, {number}", fleet, victim, victim.process.kill, owners)


def _victim(settings: dict[str, Any], worker: dict[str, str]) -> Child:
    target = {"kind": "ringcast", "servers": settings["servers"], "store": settings["store"], "worker": worker}
    file = str(Path(settings["directory"]) / "victim.npy")
    return Child(worker["worker_id"], "benchmarks.envelope.subscriber", {"target": target, "file": file})


async def _end(
    what: str, fleet: Fleet, victim: Child, end: Callable[[], object], before: dict[int, str]
) -> dict[int, str]:
    """Ends a process once it has its share, and returns the owners once the others have it."""
    await asyncio.to_thread(victim.wait_for, "ready", _START_S)
    left = await fleet.settled(shares=2)
    theirs = {partition: victim.name for partition in before if partition not in left}
    fleet.forget(theirs)
    return await fleet.timed(what, asyncio.to_thread(end), {**left, **theirs}, len(theirs))


def _sees_end(agent: AgentProcess, worker_id: str) -> bool:
    workers = agent.status()["leases"]["workers"]
    return any(one["worker_id"] == worker_id and one["connected"] and one["end_seen"] for one in workers)


def _has_report(agent: AgentProcess, before: int) -> bool:
    return bool(agent.status()["leases"]["sessions_reported"] > before)


async def _names_agent(settings: dict[str, Any], worker_id: str) -> None:
    """Waits until the state of a worker says that the agent sees its end: until then nobody believes the agent."""
    connection = await nats.connect(settings["servers"])
    try:
        bucket = await connection.jetstream().key_value(names.owners_bucket(settings["store"]))
        watcher = await bucket.watch(names.state_key(KEY, worker_id))
        async with asyncio.timeout(_START_S):
            while True:
                entry = await watcher.updates(timeout=None)
                if entry is not None and entry.value and b'"agent":"bench"' in entry.value:
                    return
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
