"""The seals of all groups of an agent: the connection over which they are read and written, and their keepers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from ringcast import UnavailableError
from ringcast.hosting import GroupSeals, HostBus, SealEntry
from ringcast_wire import EventLog, GroupSeal

from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch.positions import Place
from ringcast_heartbeat_agent.dispatch.seal_keeper import Lease, SealCounts, Sealed, SealKeeper
from ringcast_heartbeat_agent.dispatch.seal_pace import SealPace

log = EventLog(logging.getLogger(__name__))

_CONNECT_S: Final = 10.0
_WRITES_AT_ONCE: Final = 64
_MOST_ENDED: Final = 1_000
"""So many groups that have ended may still have something to give up; of more the first ones end without."""


class _StoreSeals:
    """The seals of one store, over the connection that there is by then."""

    def __init__(self, service: SealService, store: str) -> None:
        self._service = service
        self._store = store
        self._opened: tuple[HostBus, GroupSeals] | None = None

    async def exists(self) -> bool:
        """Whether the store has a bucket for them."""
        return await self._seals().exists()

    async def read(self, keys: list[str]) -> dict[str, SealEntry]:
        """What stands under each key."""
        return await self._seals().read(keys)

    async def write(self, key: str, seal: GroupSeal, *, last: int) -> int:
        """Writes by compare-and-set."""
        async with self._service.turns:
            return await self._seals().write(key, seal, last=last)

    async def living(self, leases: set[str]) -> dict[str, str]:
        """The incarnations of the processes that have these leases."""
        return await self._seals().living(leases)

    def _seals(self) -> GroupSeals:
        bus = self._service.bus
        if bus is None:
            why = self._service.why_no_bus or "it is being made"
            raise UnavailableError(f"the agent has no connection to NATS for the seals of groups: {why}")
        if self._opened is None or self._opened[0] is not bus:
            self._opened = bus, bus.seals(self._store)
        return self._opened[1]


class SealService:
    """Makes the keepers of groups. It connects when the first group is there."""

    def __init__(self, config: Config, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self.bus: HostBus | None = None
        self.why_no_bus = ""
        """Why the connection has ended, or could not be made."""
        self.counts = SealCounts()
        self.turns = asyncio.Semaphore(_WRITES_AT_ONCE)
        """Bounds the writes of all groups that are under way."""
        self._pace = SealPace()
        self._config = config
        self._spawn = spawn
        self._keepers: dict[Place, SealKeeper] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._needed = asyncio.Event()
        self._warned: dict[str, str] = {}

    def keeper(self, place: Place, group: Sealed, lease: Lease) -> SealKeeper:
        """What keeps the seals of a group that begins."""
        before = self._keepers.get(place)
        ended = [each for each in self._keepers.values() if each.is_closing]
        for each in ended[: max(0, len(ended) - _MOST_ENDED)]:
            each.hurry()
        store = _StoreSeals(self, place[0])
        keeper = self._keepers[place] = SealKeeper(place, store, group, lease, self.counts, self._pace)
        task = self._spawn(keeper.run(before))
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, place, keeper))
        self._needed.set()
        return keeper

    def warn(self, store: str, why: str) -> None:
        """Says that the groups of a store are not durable, or are again: once for each reason."""
        if self._warned.get(store, "") == why:
            return
        if why:
            self._warned[store] = why
            log.warning("groups.not_durable", store=store, why=why)
        else:
            del self._warned[store]
            log.info("groups.durable", store=store)

    @property
    def waiting(self) -> int:
        """Partitions that groups are still to get from other hosts."""
        return sum(each.awaited for each in list(self._keepers.values()))

    @property
    def not_durable(self) -> int:
        """Groups whose seals can't be kept."""
        return sum(bool(each.why_not) and not each.is_closing for each in list(self._keepers.values()))

    async def run(self) -> None:
        """Keeps the connection until cancelled."""
        await self._needed.wait()
        config = self._config
        while True:
            try:
                async with HostBus.open(
                    config.agent_id,
                    servers=config.nats,
                    login=config.nats_login,
                    jetstream_api=config.jetstream_api,
                    connect_timeout_s=_CONNECT_S,
                    logger=logging.getLogger(__name__),
                    purpose="groups",
                ) as self.bus:
                    self.why_no_bus = ""
                    await self.bus.bus.closed
            except Exception as error:  # noqa: BLE001  # whatever it is: groups wait for it
                if (why := str(error)) != self.why_no_bus:
                    log.warning("groups.connection_failed", error=why)
                    self.why_no_bus = why
            self.bus = None
            await asyncio.sleep(1.0)

    async def given_up(self) -> None:
        """Waits until all groups, which must have ended, have given up what they held, however long NATS takes.

        The process lives on: others would wait for what it had not given up.
        """
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def flush(self) -> None:
        """Waits until all groups have given up what they held, or have tried to once more: they have ended."""
        for keeper in self._keepers.values():
            keeper.hurry()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        """Ends all keepers, whatever they still have to write."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, place: Place, keeper: SealKeeper, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._keepers.get(place) is keeper:
            del self._keepers[place]
