"""Reports to the other workers of a store which leases this one has found ended. Nothing waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ringcast_wire import EndedLeases, EventLog, encode_record, names

from ringcast._bus.buckets import ConflictError
from ringcast._bus.bus import TRANSIENT
from ringcast._protocol.kv_mirror import KvMirror
from ringcast._protocol.lease_reading import LeaseReadings

_AGAIN_S: Final = 0.5
_ANSWER_S: Final = 5.0
"""How long a report waits for its confirmation before it is written again."""

Write = Callable[[str, bytes, int], Awaitable[None]]
"""Writes a record by compare-and-set; raises ``ConflictError`` once the mirror shows what stands there."""


class Reports:
    """Writes what the readings have found under this worker's name, and retries until the write succeeds."""

    def __init__(self, worker_id: str, readings: LeaseReadings, nodes: KvMirror, write: Write, log: EventLog) -> None:
        self._name = names.ended_key(worker_id)
        self._readings = readings
        self._nodes = nodes
        self._write = write
        self._log = log
        self._reported_finds = 0
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """There may be something to report."""
        self._wake.set()

    async def run(self) -> None:
        """Reports until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._reported_finds != self._readings.finds:
                if not await self._write_report():
                    await asyncio.sleep(_AGAIN_S)

    async def _write_report(self) -> bool:
        finds, found = self._readings.finds, self._readings.reports
        report = encode_record(EndedLeases(leases=found))
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._write(self._name, report, self._nodes.revision(self._name))
        except (ConflictError, *TRANSIENT) as error:
            self._log.debug("report.failed", leases=found, error=error)
            return False
        self._log.info("leases.ended", leases=found)
        self._reported_finds = finds
        return True
