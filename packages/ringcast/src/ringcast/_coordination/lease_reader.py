"""Reads the leases that are due from their bucket, several with one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ringcast_wire import EventLog, event_before, field_text, names

from ringcast._bus.buckets import Buckets, Reader
from ringcast._bus.bus import TRANSIENT
from ringcast._protocol.lease_reading import Lease, LeaseReadings

_WHAT: Final = "leases"
_FAILURES: Final = 3
"""After so many failures in a row a warning is logged: the end of a lease would not be noticed."""


class LeaseReader:
    """Reads what is due until it is cancelled; ``changed`` is called when another lease lives, or one has ended.

    ``own`` returns the lease that the worker's records name. ``on_unreadable`` is called with the reason after each
    failed read, and with an empty one once leases can be read again.
    """

    def __init__(
        self,
        buckets: Buckets,
        readings: LeaseReadings,
        own: Callable[[], str],
        changed: Callable[[], None],
        log: EventLog,
        on_unreadable: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._on_unreadable = on_unreadable
        self._buckets = buckets
        self._readings = readings
        self._own = own
        self._changed = changed
        self._log = log
        self._bucket = buckets.bucket(names.LEASES_BUCKET)
        self._wake = asyncio.Event()
        self.failures = 0
        """Readings that failed one after another."""

    def wake(self) -> None:
        """Another lease may be due."""
        self._wake.set()

    async def run(self) -> None:
        """Reads until cancelled."""
        loop = asyncio.get_running_loop()
        async with self._bucket.reading(_WHAT) as reader:
            while True:
                await self._until_due()
                due = self._readings.ask(self._own(), loop.time())
                try:
                    found = await _read(reader, due)
                except TRANSIENT as error:
                    self._failed(error)
                    continue
                if self.failures >= _FAILURES:
                    self._on_unreadable("")
                self.failures = 0
                if self._readings.answer(due, found, loop.time()):
                    self._changed()

    async def read_once(self, leases: Sequence[str]) -> dict[str, Lease]:
        """What one server has of these leases, while :meth:`run` does not run.

        Raises:
            UnavailableError: the bucket can't be read, or the answer is not whole.
            BusError, TimeoutError: there is no connection, or no answer.
        """
        async with self._bucket.reading(_WHAT) as reader:
            return await _read(reader, leases)

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while (due := self._readings.due) is None or loop.time() < due:
            self._wake.clear()
            await event_before(self._wake, due)

    def _failed(self, error: BaseException) -> None:
        if self._buckets.is_connected:
            self.failures += 1
        if self.failures > _FAILURES:
            self._readings.put_off(asyncio.get_running_loop().time())
        text = field_text(error)
        if self.failures >= _FAILURES:
            self._on_unreadable(text)
        if self.failures == _FAILURES:
            self._log.warning("leases.unreadable", error=text)
        else:
            self._log.debug("leases.read_failed", error=text)


async def _read(reader: Reader, leases: Sequence[str]) -> dict[str, Lease]:
    """What there is of these leases at one moment."""
    found = await reader.read(leases)
    return {
        name: Lease(entry.sequence, entry.data, entry.stored_s)
        for name, entry in found.items()
        if entry.data is not None
    }
