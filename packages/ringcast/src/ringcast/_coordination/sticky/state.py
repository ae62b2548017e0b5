"""The state that a worker says of itself in the bucket of owners."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from ringcast_wire import Backoff, EventLog, event_before
from ringcast_wire.owner_records import State, encode_state

from ringcast._bus.bus import TRANSIENT
from ringcast._coordination.sticky.records import OwnerRecords
from ringcast._coordination.sticky.times import Clock, loop_time
from ringcast._protocol.sticky.leader import TOUCH_S


class StateWriter:
    """Writes the state of one key, one write at a time.

    ``record`` returns what it is to say, and ``None`` where what stands there is to stay.
    """

    def __init__(
        self, name: str, record: Callable[[], State | None], records: OwnerRecords, clock: Clock, log: EventLog
    ) -> None:
        self._name = name
        self._record = record
        self._records = records
        self._clock = clock
        self._log = log
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._written_at = clock()
        self._own_revision = 0

    def wake(self) -> None:
        """The record may be another."""
        self._wake.set()

    @property
    def was_deleted(self) -> bool:
        """Whether a marker stands in place of what this process has said: an operator says that its worker is gone."""
        records, name = self._records, self._name
        return 0 < self._own_revision < records.revision(name) and records.value(name) is None

    async def run(self) -> None:
        """Has the bucket say what the record says, until cancelled."""
        backoff = Backoff(random.random, first_s=0.05, most_s=2.0)
        while True:
            self._wake.clear()
            try:
                is_there = not self._records.complete or await self.write()
            except TRANSIENT as error:
                self._log.debug("owners.write_failed", record=self._name, error=error)
                is_there = False
            if is_there:
                backoff.reset()
                await event_before(self._wake, loop_time(self._written_at + TOUCH_S, self._clock))
            else:
                await asyncio.sleep(backoff.next_s())

    async def finish(self) -> None:
        """Returns once the bucket says what the record says. Raises what is transient."""
        backoff = Backoff(random.random, first_s=0.05, most_s=2.0)
        while True:
            if await self.write():
                return
            await asyncio.sleep(backoff.next_s())

    async def write(self) -> bool:
        """Writes the state if the bucket has another; returns whether it is there. Raises what is transient."""
        async with self._writing:
            record, there = self._record(), self._records.value(self._name)
            if record is None:
                self._written_at = self._clock()
                return True
            value = encode_state(record)
            is_due = self._clock() >= self._written_at + TOUCH_S
            has_nothing_to_say = there is None and not (record.session or record.ended)
            if has_nothing_to_say or (there == value and not is_due):
                self._written_at = self._clock() if has_nothing_to_say else self._written_at
                # Of a write whose answer was lost the watch tells.
                self._own_revision = self._own_revision if has_nothing_to_say else self._records.revision(self._name)
                return True
            last, was_deleted = self._records.revision(self._name), self.was_deleted
            if not await self._records.write(self._name, value, last=last):
                return False
            if was_deleted:
                self._log.warning("migration.declared_gone")
            self._written_at, self._own_revision = self._clock(), self._records.revision(self._name)
            return True
