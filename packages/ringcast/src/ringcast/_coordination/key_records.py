"""The records by which a worker takes part in its config keys: one node record and one slot claim for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ringcast_wire import NEWEST_WIRE_VERSION, EventLog, NodePhase, NodeRecord, SlotClaim, encode_record, names

from ringcast._bus.buckets import Bucket, ConflictError
from ringcast._common.config import WorkerConfig
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.membership import Membership
from ringcast._protocol.planned import PlannedChange
from ringcast._protocol.slots import SlotChoice, Slots

TOUCH_S: Final = 6 * 3600.0
"""How often the records are written again: the bucket deletes what was not written for a day."""
CACHED: Final = "cached"
"""The capability of a worker with a cache on its disk, of which its next process may hand rows over unregistered."""


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
        self._capabilities = (CACHED,) if config.cache_dir else ()
        self._left: dict[str, int] = {}
        """Revisions of the markers of keys that were left while calls may have run."""
        self._unconfirmed: dict[str, bytes] = {}
        """What was written without an answer: the bucket may have it, or will, where the mirror has not."""

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
        record = NodeRecord(
            slot=choice.slot,
            lease=lease,
            incarnation=self._incarnation,
            capabilities=self._capabilities,
            phase=phase,
            wire=NEWEST_WIRE_VERSION,
        )
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

    async def leave(self, key: str, *, may_call: bool) -> None:
        """Deletes the records of a key, unless another process with this worker id has written them.

        ``may_call``: calls of the key may still run; a later ``leave`` without says that they have ended. The marker of
        a worker with a cache says so in any case: its next process may hand over what that has, and is not registered.
        """
        name = names.node_key(key, self._worker_id)
        record = self._membership.nodes.get(name, NodeRecord)
        if record is not None and record.incarnation != self._incarnation:
            return  # the claims are the other process's too
        await self.drop_slots(key, self._slots.of(key, self._worker_id))
        for claim in [each for each in self._unconfirmed if each != name and each.partition(".")[0] == key]:
            await self.drop(claim)
        may_call = may_call or bool(self._capabilities)
        if record is not None or name in self._unconfirmed:
            at = await self.drop(name, may_call=may_call)  # last: another claims the slot once this record is gone
            if at is not None and may_call:
                self._left[name] = at
        elif not may_call and (at := self._left.pop(name, 0)):
            await self._delete(name, at, may_call=False)

    async def write(self, name: str, value: bytes, last: int) -> None:
        """Writes a record.

        Raises:
            ConflictError: its revision is not ``last``; the mirror has the record of the bucket then.
        """
        self._unconfirmed[name] = value
        try:
            revision = await self._bucket.put(name, value, last=last)
        except ConflictError:
            self._membership.nodes.correct(name, await self._bucket.get(name))
            self._unconfirmed.pop(name, None)
            raise
        self._unconfirmed.pop(name, None)
        self._membership.nodes.put(name, Entry(revision, value))

    async def drop(self, name: str, *, may_call: bool = False) -> int | None:
        """Deletes a record, if it still is what the mirror shows, or what was written without an answer; returns the
        revision of the marker.

        Where such a write has not come yet, the marker keeps it out.
        """
        entry = self._membership.nodes.entries.get(name)
        if name not in self._unconfirmed and (entry is None or entry.value is None):
            return None
        return await self._delete(name, self._membership.nodes.revision(name), may_call=may_call)

    async def _delete(self, name: str, revision: int, *, may_call: bool) -> int | None:
        try:
            at = await self._bucket.delete(name, last=revision, may_call=may_call)
        except ConflictError:
            found = await self._bucket.get(name) if name in self._unconfirmed else None
            if found is None or found.revision == revision or found.value != self._unconfirmed.pop(name):
                self._log.debug("record.not_ours", record=name)
                return None
            return await self._delete(name, found.revision, may_call=may_call)
        self._unconfirmed.pop(name, None)
        return at
