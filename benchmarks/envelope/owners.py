"""The process that holds many workers of a key of exclusive ownership, as far as their leader can tell.

Each has a connection and the coordinator of a worker, so it refreshes its session, follows the table and gives its
partitions up as one does. But it has no rows and calls no handler: what it is to prepare is ready at once, and its last
calls return at once. Two hundred whole workers do not fit a machine of two cores.

It says ``started`` once each has its equal share (one that ``holds`` them: at once), ``moving`` when it has rested, and
``join`` when one has left, another has joined, and each has its share again.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from contextlib import AsyncExitStack, suppress
from typing import Any

from ringcast import WorkerConfig
from ringcast._bus.bus import connected
from ringcast._bus.kv import NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._coordination.sticky.coordinator import StickyCoordinator
from ringcast._coordination.sticky.times import StickyTimes
from ringcast_wire import EventLog, LeaseRecord, StoreSettings

from benchmarks.envelope.reporting import say
from benchmarks.envelope.targets import KEY

_LOG = EventLog(logging.getLogger("bench"))
_SETTLES_S = 900.0
"""Two hundred workers take four minutes and more to get their shares on two cores."""
_QUIET_S = 0.75
"""After so long without a move, what everybody owns is taken for final."""


class Owner:
    """One worker of a key, without rows."""

    def __init__(self, fleet: Fleet, worker_id: str) -> None:
        self.owned: set[int] = set()
        self._fleet = fleet
        self._worker_id = worker_id
        self._stack = AsyncExitStack()
        self._coordinator: StickyCoordinator
        self._task: asyncio.Task[None]

    async def start(self, servers: str, store: str, settings: StoreSettings) -> None:
        """Takes part from now on."""
        config = WorkerConfig(store=store, keys=(KEY,), servers=(servers,), worker_id=self._worker_id)
        bus = await self._stack.enter_async_context(connected(NatsBus.prepared, config, _LOG))
        self._coordinator = StickyCoordinator(
            NatsBuckets(bus),
            config,
            settings.partition_count,
            record=LeaseRecord(incarnation=self._worker_id, host="bench", pid=1, started_at_ms=1),
            participant=self,
            log=_LOG,
            times=StickyTimes.of(settings),
            revisions=lambda _key: dict.fromkeys(self.owned, 0),
        )
        self._task = asyncio.create_task(self._coordinator.run())

    async def leave(self) -> None:
        """Goes in good order, as a worker does."""
        await self._coordinator.give_notice()
        await self.end()

    async def end(self) -> None:
        """Starts no call any more, says so, and ends."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._coordinator.leave()
        await self._stack.aclose()

    # ---- the participant

    def prepare(self, key: str, partition: int, token: int) -> None:
        asyncio.get_running_loop().call_soon(self._coordinator.ready, key, partition, token)

    def activate(self, key: str, partition: int, token: int) -> None:
        self.owned.add(partition)
        self._fleet.moved()

    def stop(self, key: str, partition: int, token: int) -> None:
        self.owned.discard(partition)
        self._fleet.moved()
        asyncio.get_running_loop().call_soon(self._coordinator.end_last_call, key, partition)

    def forget(self, key: str, partition: int, token: int) -> None:
        """There are no rows."""

    def acted(self, key: str) -> None:
        """Each was done at once."""

    def extended(self, key: str, until: float) -> None:
        """No call waits."""

    def session_changed(self, key: str, runs: bool) -> None:
        if not runs:
            self._fleet.moved()
            self.owned.clear()

    def settled(self, key: str, partitions: frozenset[int]) -> None:
        """What it owns is told by what it is to do."""


class Fleet:
    """The workers of this process, beside ``others`` of other processes."""

    def __init__(self, settings: dict[str, Any], store: StoreSettings) -> None:
        self._settings = settings
        self._store = store
        self._owners: dict[str, Owner] = {}
        self._moved_at = time.monotonic()

    def moved(self) -> None:
        """A partition has got, or lost, its owner."""
        self._moved_at = time.monotonic()

    async def start(self, *names: str) -> None:
        """Adds workers, all at once."""
        for name in names:
            self._owners[name] = Owner(self, name)
        servers, store = self._settings["servers"], self._settings["store"]
        await asyncio.gather(*(self._owners[name].start(servers, store, self._store) for name in names))

    async def leave(self, name: str) -> None:
        """Has a worker leave in order."""
        await self._owners.pop(name).leave()

    async def settled(self) -> None:
        """Waits until each has its equal share, and nothing has moved for a while.

        Raises:
            TimeoutError: that takes too long.
        """
        workers = len(self._owners) + self._settings["others"]
        least, rest = divmod(self._store.partition_count, workers)
        due = time.monotonic() + _SETTLES_S
        while True:
            shares = [len(owner.owned) for owner in self._owners.values()]
            is_level = all(least <= share <= least + (rest > 0) for share in shares)
            if is_level and time.monotonic() > self._moved_at + _QUIET_S:
                return
            if time.monotonic() > due:
                raise TimeoutError(f"{workers} workers own {min(shares)} to {max(shares)} partitions each")
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Ends everything."""
        await asyncio.gather(*(owner.end() for owner in self._owners.values()))


async def main(settings: dict[str, Any]) -> None:
    store = StoreSettings(**settings["of_store"])
    fleet = Fleet(settings, store)
    names = [f"{settings['prefix']}{number:03d}" for number in range(settings["workers"])]
    # A worker has a heap of its own. One of all of them together would be looked through as often as that of each.
    gc.disable()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fleet.stop)
        await fleet.start(*names)
        if settings["holds"]:
            say("started")  # the last process waits for all
            await asyncio.Event().wait()
        await fleet.settled()
        say("started")
        await asyncio.sleep(settings["rest_s"])
        say("moving")
        await fleet.leave(names[len(names) // 2])
        await fleet.settled()
        await fleet.start("new")
        await fleet.settled()
        say("join")


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
