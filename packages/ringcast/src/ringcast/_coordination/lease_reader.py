"""Reads the leases that are due from their bucket, several with one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from ringcast_wire import EventLog, UnavailableError, event_before, field_text, names

from ringcast._bus.bus import TRANSIENT, Bus, Message
from ringcast._bus.kv import Bucket
from ringcast._bus.multi_get import ANSWER_S, MultiGetAnswer, ask_for
from ringcast._protocol.lease_reading import Lease, LeaseReadings

_FAILURES: Final = 3
"""After so many failures in a row a warning is logged: the end of a lease would not be noticed."""


class LeaseReader:
    """Reads what is due until it is cancelled; ``changed`` is called when another lease lives, or one has ended.

    ``own`` returns the lease that the worker's records name. ``on_unreadable`` is called with the reason after each
    failed read, and with an empty one once leases can be read again.
    """

    def __init__(
        self,
        bus: Bus,
        readings: LeaseReadings,
        own: Callable[[], str],
        changed: Callable[[], None],
        log: EventLog,
        on_unreadable: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._on_unreadable = on_unreadable
        self._bus = bus
        self._readings = readings
        self._own = own
        self._changed = changed
        self._log = log
        self._bucket = Bucket(bus, names.LEASES_BUCKET)
        self._subject = bus.api(f"DIRECT.GET.{self._bucket.stream}")
        self._wake = asyncio.Event()
        self._inbox = ""
        self._number = 0
        self._answer: MultiGetAnswer | None = None
        self.failures = 0
        """Readings that failed one after another."""

    def wake(self) -> None:
        """Another lease may be due."""
        self._wake.set()

    async def run(self) -> None:
        """Reads until cancelled."""
        loop = asyncio.get_running_loop()
        async with self._answers():
            while True:
                await self._until_due()
                due = self._readings.ask(self._own(), loop.time())
                try:
                    found = await self._read(due)
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
        async with self._answers():
            return await self._read(leases)

    @asynccontextmanager
    async def _answers(self) -> AsyncIterator[None]:
        self._inbox = self._bus.new_inbox()
        async with self._bus.subscribed(f"{self._inbox}.*", self._on_message):
            yield

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while (due := self._readings.due) is None or loop.time() < due:
            self._wake.clear()
            await event_before(self._wake, due)

    async def _read(self, leases: Sequence[str]) -> dict[str, Lease]:
        """What one server has of these leases at one moment.

        Raises:
            UnavailableError: the bucket can't be read, or the answer is not whole.
            BusError, TimeoutError: there is no connection, or no answer.
        """
        if not self._bus.is_connected:
            raise UnavailableError("there is no connection to NATS")
        self._number += 1
        answer = self._answer = MultiGetAnswer(self._bucket.prefix, "leases")
        try:
            async with self._bus.refusals.fail_fast(self._subject), asyncio.timeout(ANSWER_S):
                reply = f"{self._inbox}.{self._number}"
                await ask_for(self._bus, self._bucket.stream, self._bucket.prefix, leases, reply)
                await answer.done
        finally:
            self._answer = None
        return {
            name: Lease(found.sequence, found.data, found.stored_s)
            for name, found in answer.found.items()
            if found.data is not None
        }

    async def _on_message(self, msg: Message) -> None:
        answer = self._answer
        if answer is not None and msg.subject.endswith(f".{self._number}"):
            answer.take(msg)

    def _failed(self, error: BaseException) -> None:
        if self._bus.is_connected:
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
