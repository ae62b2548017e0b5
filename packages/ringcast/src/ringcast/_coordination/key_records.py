"""The records by which a worker takes part in its config keys: one node record and one slot claim for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ringcast_wire import EventLog, NodePhase, NodeRecord, SlotClaim, encode_record, names

from ringcast._bus.kv import Bucket, ConflictError
from ringcast._common.config import WorkerConfig
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.membership import Membership
from ringcast._protocol.planned import PlannedChange
from ringcast._protocol.slots import SlotChoice, Slots

TOUCH_S: Final = 6 * 3600.0
"""How often the records are written again: the bucket deletes what was not written for a day."""


class KeyRecords:
    """Writes and deletes this worker's records by compare-and-set, and keeps the mirror in step with the bucket.

    Every method that waits raises what a call over the bus raises. When it is cancelled, a write may have been done.
    """

    def __init__(
        self, bucket: Bucket, membership: Membership, config: WorkerConfig, incarnation: str, log: EventLog
    ) -> None:
        self._bucket = bucket
        self._membership = membership
        self._slots = Slots(membership)
        self._keys = config.keys
        self._worker_id = config.worker_id
        self._incarnation = incarnation
        self._log = log
        self._unannounced: set[str] = set()
        self._touched_at: dict[str, float] = {}

    def registered(self, key: str) -> bool:
        """Whether the node record of a key was written since the start."""
        return key in self._touched_at

    def announce(self) -> None:
        """The node records are to be written again, even if they stand there already."""
        self._unannounced.update(self._keys)

    async def publish(self, key: str, lease: str, planned: PlannedChange) -> tuple[SlotChoice, bool]:
        """Claims a slot and writes the node record, where the mirror does not show them already.

        Returns the slot, and whether the node record was written. The records are written again, with the same slot,
        when the worker has changed to another lease.

        Raises:
            LimitExceededError: the key has as many workers as it may.
            ConflictError: another worker was faster.
        """
        nodes, now = self._membership.nodes, asyncio.get_running_loop().time()
        choice = self._slots.choose(key, self._worker_id, planned.slot)
        stale = now - self._touched_at.get(key, now - 2 * TOUCH_S) > TOUCH_S
        claim, slot = SlotClaim(worker_id=self._worker_id, lease=lease), names.slot_key(key, choice.slot)
        if stale or nodes.get(slot, SlotClaim) != claim:
            await self.write(slot, encode_record(claim), choice.revision)
        phase = planned.phase or NodePhase.ACTIVE
        record = NodeRecord(slot=choice.slot, lease=lease, incarnation=self._incarnation, phase=phase)
        name = names.node_key(key, self._worker_id)
        if not (stale or key in self._unannounced or nodes.get(name, NodeRecord) != record):
            return choice, False
        await self.write(name, encode_record(record), nodes.revision(name))
        self._touched_at[key] = now
        self._unannounced.discard(key)
        self._log.info("key.registered", key=key, slot=choice.slot, phase=str(phase))
        return choice, True

    async def drop_slots(self, key: str, slots: Sequence[int]) -> None:
        """Deletes claims of slots that this worker does not need."""
        for slot in slots:
            await self.drop(names.slot_key(key, slot))

    async def leave(self, key: str) -> None:
        """Deletes the records of a key, unless another process with this worker id has written them."""
        name = names.node_key(key, self._worker_id)
        record = self._membership.nodes.get(name, NodeRecord)
        if record is not None and record.incarnation != self._incarnation:
            return  # the claims are the other process's too
        await self.drop_slots(key, self._slots.of(key, self._worker_id))
        await self.drop(name)  # last: another worker claims the slot once this record is gone

    async def write(self, name: str, value: bytes, last: int) -> None:
        """Writes a record.

        Raises:
            ConflictError: its revision is not ``last``; the mirror has the record of the bucket then.
        """
        try:
            revision = await self._bucket.put(name, value, last=last)
        except ConflictError:
            self._membership.nodes.correct(name, await self._bucket.get(name))
            raise
        self._membership.nodes.put(name, Entry(revision, value))

    async def drop(self, name: str) -> None:
        """Deletes a record, if it still is what the mirror shows."""
        entry = self._membership.nodes.entries.get(name)
        if entry is None or entry.value is None:
            return
        try:
            await self._bucket.delete(name, last=entry.revision)
        except ConflictError:
            self._log.debug("record.not_ours", record=name)
