"""What an instance can do now, checked every second: read, write, and reach the bus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ringcast_wire import EventLog, RingcastError, event_within
from ringcast_wire.grpc import SERVICE_NAME

from ringcast_config_service.grpc.health import Health
from ringcast_config_service.repository import DatabaseConnection
from ringcast_config_service.telemetry import Measures

log = EventLog(logging.getLogger(__name__))

READS: Final = "reads"
WRITES: Final = "writes"
BUS: Final = "bus"
PARTS: Final = (READS, WRITES, BUS)

_CHECK_S: Final = 1.0
_READ_TIMEOUT_S: Final = 3.0
_WRITE_TIMEOUT_S: Final = 10.0
"""On SQLite a check waits behind the write that is under way."""


class Readiness:
    """Keeps health and metrics true.

    Health knows ``ringcast.config.v1.ConfigService/reads``, ``…/writes`` and ``…/bus``. The service by its own name and
    the empty name that load balancers use, stands for what the gRPC port is for: reads and writes. The bus is no
    part of it: while NATS is away writes are accepted, and their events wait in the outbox.
    """

    def __init__(
        self, repository: DatabaseConnection, connected: Callable[[], bool], health: Health, measures: Measures
    ) -> None:
        self._repository = repository
        self._connected = connected
        self._health = health
        self._measures = measures
        self._bus_changed = asyncio.Event()
        self._can: dict[str, bool] = {}
        self._stopped = False
        self._draining = False
        self._publish()

    def bus_changed(self) -> None:
        """The connection to NATS has come or gone."""
        self._bus_changed.set()

    async def check(self) -> None:
        """Finds out what can be done now, for the first time."""
        await asyncio.gather(self._check_reads(), self._check_writes())
        self._check_bus()

    def drain(self, draining: bool) -> None:
        """Whether calls are refused since the instance drains: then none of the names is served."""
        self._draining = draining
        self._publish()

    def stop(self) -> None:
        """From now on nothing is served."""
        self._stopped = True
        self._publish()

    async def run(self) -> None:
        """Checks each part every second, independently: one that does not answer holds up no other."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._check_reads))
            tasks.create_task(self._repeat(self._check_writes))
            tasks.create_task(self._follow_bus())

    async def _repeat(self, check: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            await check()

    async def _follow_bus(self) -> None:
        while True:
            await event_within(self._bus_changed, _CHECK_S)
            self._bus_changed.clear()
            self._check_bus()

    async def _check_reads(self) -> None:
        why = await _why_not(self._repository.ping(), _READ_TIMEOUT_S)
        self._measures.database_connected = not why
        self._set(READS, why)

    async def _check_writes(self) -> None:
        self._set(WRITES, await _why_not(self._repository.check_writable(), _WRITE_TIMEOUT_S))

    def _check_bus(self) -> None:
        self._set(BUS, "" if self._connected() else "NATS can't be reached")

    def _set(self, part: str, why_not: str) -> None:
        if self._can.get(part) is (not why_not) or self._stopped:
            return
        if part in self._can or why_not:
            level = logging.ERROR if why_not else logging.INFO
            log.log(level, "health.changed", part=part, serving=not why_not, reason=why_not)
        self._can[part] = not why_not
        self._publish()

    def _publish(self) -> None:
        off = self._stopped or self._draining
        can = {part: self._can.get(part, False) and not off for part in PARTS}
        for part, serving in can.items():
            self._health.set(f"{SERVICE_NAME}/{part}", serving)
            self._measures.serving[part] = serving
        for name in ("", SERVICE_NAME):
            self._health.set(name, can[READS] and can[WRITES])


async def _why_not(check: Awaitable[None], timeout_s: float) -> str:
    """Why the database can't do it now, or nothing."""
    try:
        async with asyncio.timeout(timeout_s):
            await check
    except TimeoutError:
        return "the database does not answer"
    except RingcastError as error:
        return str(error)
    return ""
