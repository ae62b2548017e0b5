"""What an agent says in the bucket of owners: which processes of its host it has seen end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable

from ringcast_wire import Backoff, EventLog, names
from ringcast_wire.ended_sessions import Span, encode_gone

from ringcast._bus.buckets import Buckets, ConflictError
from ringcast._bus.bus import TRANSIENT
from ringcast._protocol.sticky.witness import Witness


class HostWitness:
    """The sessions of one store's workers on one host. What has ended is written as soon as the bucket takes it."""

    def __init__(self, buckets: Buckets, store: str, agent_id: str, log: EventLog) -> None:
        self._bucket = buckets.bucket(names.owners_bucket(store))
        self._agent_id = agent_id
        self._log = log.bind(store=store)
        self._witness = Witness()
        self._revisions: dict[str, int] = {}
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        self.written = 0
        """Records that were written."""

    def reported(self, process: Hashable, worker_id: str, key: str, first: int, last: int) -> None:
        """A process says which sessions of a key it has had: all of its own, from the first to the last."""
        self._witness.reported(process, worker_id, key, Span(first, last))

    def forget(self, process: Hashable) -> None:
        """The process is not looked after any more, and may live."""
        self._witness.forget(process)

    def ended(self, process: Hashable) -> None:
        """The kernel says that the process has ended."""
        self._due |= dict.fromkeys(self._witness.ended(process))
        self._wake.set()

    async def run(self) -> None:
        """Writes what is due until cancelled."""
        backoff = Backoff(random.random, first_s=0.05, most_s=2.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                key = next(iter(self._due))
                del self._due[key]  # what ends meanwhile makes it due again
                try:
                    if not await self._write(key):
                        self._due[key] = None
                    backoff.reset()
                except TRANSIENT as error:
                    self._due[key] = None
                    self._log.debug("owners.write_failed", key=key, error=error)
                    await asyncio.sleep(backoff.next_s())

    async def _write(self, key: str) -> bool:
        """Has the record of a key say what is known now; returns whether it does.

        No other process writes it, but an agent before this one. Raises what is transient.
        """
        name = names.gone_key(key, self._agent_id)
        gone = self._witness.record(key)
        try:
            self._revisions[key] = await self._bucket.put(name, encode_gone(gone), last=self._revisions.get(key, 0))
        except ConflictError:
            entry = await self._bucket.get(name)
            self._revisions[key] = entry.revision if entry is not None else 0
            return False
        self.written += 1
        self._log.info("owners.gone", key=key, workers=len(gone))
        return True
