"""The registrations of a worker in mode FULL, where nothing is shared out: so that others know whom to ask."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from ringcast_wire import NEWEST_WIRE_VERSION, Backoff, EventLog, NodeRecord, encode_record, event_before, names

from ringcast._bus.buckets import Buckets, ConflictError
from ringcast._bus.bus import TRANSIENT
from ringcast._common.config import WorkerConfig
from ringcast._coordination.key_records import TOUCH_S
from ringcast._coordination.lease import LeaseSource

_TRIES: Final = 3


class FullRecords:
    """Keeps a record for each key, which names the worker's lease. Nothing that the worker does waits for that."""

    def __init__(
        self, buckets: Buckets, config: WorkerConfig, lease: LeaseSource, incarnation: str, log: EventLog
    ) -> None:
        self._bucket = buckets.bucket(names.nodes_bucket(config.store))
        self._names = {key: names.node_key(key, config.worker_id) for key in config.keys}
        self._lease = lease
        self._incarnation = incarnation
        self._log = log
        self._revisions: dict[str, int] = {}
        self._tried: dict[str, bytes] = {}
        """What was written last, perhaps without an answer."""
        self._wake = asyncio.Event()
        lease.on_change(self._wake.set)
        buckets.on_back(self._wake.set)

    async def run(self) -> None:
        """Registers, and again after each reconnect and now and then, until cancelled."""
        backoff = Backoff(random.random, first_s=0.5)
        while True:
            self._wake.clear()
            pause_s = TOUCH_S
            for key, name in self._names.items():
                try:
                    await self._write(name)
                except (ConflictError, *TRANSIENT) as error:
                    self._log.debug("registration.retried", key=key, error=error)
                    pause_s = backoff.next_s()
                    break
                self._log.info("key.registered", key=key, slot=0, phase="active")
            else:
                backoff.reset()
            await event_before(self._wake, asyncio.get_running_loop().time() + pause_s)

    async def leave(self) -> None:
        """Deletes the records, those too of which no answer has said that they are written."""
        for name in self._tried:
            try:
                await self._delete(name)
            except ConflictError:
                self._log.debug("record.not_ours", record=name)

    async def _delete(self, name: str) -> None:
        """Deletes a record, or keeps out one whose write is on its way.

        Raises:
            ConflictError: the record is another process's.
        """
        try:
            await self._bucket.delete(name, last=self._revisions.get(name, 0))
        except ConflictError:
            entry = await self._bucket.get(name)
            if entry is None or entry.value != self._tried[name]:
                raise
            await self._bucket.delete(name, last=entry.revision)

    async def _write(self, name: str) -> None:
        """Writes a record in the place of any other: who has the lease of this worker's id is this worker.

        Raises:
            ConflictError: others go on changing it.
        """
        lease = self._lease.id
        record = NodeRecord(slot=0, lease=lease, incarnation=self._incarnation, wire=NEWEST_WIRE_VERSION)
        value = self._tried[name] = encode_record(record)
        for _ in range(_TRIES):
            try:
                last = self._revisions.get(name, 0)
                self._revisions[name] = await self._bucket.put(name, value, last=last)
            except ConflictError:
                entry = await self._bucket.get(name)
                self._revisions[name] = 0 if entry is None else entry.revision
            else:
                return
        raise ConflictError(name)
