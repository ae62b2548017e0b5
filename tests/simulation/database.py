"""The system of record: what the repositories keep, with the service's own plan of a write."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ringcast_config_service.repository import OutboxRecord, StoreRecord, WriteRequest, Written
from ringcast_config_service.repository.mapping import wants_whole
from ringcast_config_service.repository.writes import (
    CurrentState,
    Head,
    KeyRef,
    PartitionRef,
    PlannedRow,
    plan_writes,
    touched_partitions,
    touched_rows,
)
from ringcast_core import row_partitions
from ringcast_wire import PartitionRows, Row, UnavailableError, UnknownKeyError

Committed = Callable[[str, int, list[PlannedRow]], None]
"""Is told of each partition that a transaction wrote: key, partition, every revision in order."""


@dataclass(slots=True)
class _Partition:
    head: Head = field(default_factory=Head)
    floor: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    buried_ms: dict[str, int] = field(default_factory=dict)
    """When each tombstone was written."""


class Database:
    """One store's rows, heads and outbox. A transaction takes no time, so that all of them are serialisable."""

    def __init__(self, store: StoreRecord, committed: Committed) -> None:
        self.up = True
        self.store = store
        self.keys: dict[KeyRef, int] = {}
        self.unreadable: set[str] = set()
        """Rows that can't be read by their names."""
        self.outbox: dict[int, OutboxRecord] = {}
        self.locked: dict[int, object] = {}
        """Outbox records that a relay holds (``FOR UPDATE SKIP LOCKED``), and which relay."""
        self._committed = committed
        self._partitions: dict[PartitionRef, _Partition] = {}
        self._records = 0
        self.history = "h0"
        self.back_up()

    def back_up(self) -> None:
        """Keeps a copy of everything."""
        self._backup = copy.deepcopy((self.keys, self.outbox, self._partitions))

    def restore(self, *, noticed: bool) -> dict[tuple[str, int], int]:
        """Is again as it was when it was backed up; returns the heads of its partitions.

        ``noticed``: a new history begins.
        """
        self.keys, self.outbox, self._partitions = self._backup
        if noticed:
            self._begin_history()
        return {(ref.key.name, ref.partition): held.head.revision for ref, held in self._partitions.items()}

    def _begin_history(self) -> None:
        self.history = f"h{int(self.history[1:]) + 1}"

    def check(self) -> None:
        """Raises ``UnavailableError`` while the database is away."""
        if not self.up:
            raise UnavailableError("the database does not answer")

    # ---- writes (as in SqliteRepository._write)

    def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        """Commits a group of requests."""
        self.check()
        plan = plan_writes(requests, self._state(requests), now_ms)
        for key in plan.new_keys:
            self.keys[key] = len(self.keys) + 1
        for ref, head in plan.heads.items():
            self._partitions.setdefault(ref, _Partition()).head = head
        for planned in plan.rows.values():
            self._store(planned, now_ms)
        events = [OutboxRecord(self._records + number, *event) for number, event in enumerate(plan.events, 1)]
        self._records += len(events)
        self.outbox.update((event.id, event) for event in events)
        written: dict[tuple[str, int], list[PlannedRow]] = {}
        for row in plan.history:
            written.setdefault((row.key.name, row.partition), []).append(row)
        for (key_name, partition), rows in written.items():
            self._committed(key_name, partition, rows)
        return Written(plan.outcomes, events)

    def _state(self, requests: Sequence[WriteRequest]) -> CurrentState:
        state = CurrentState({self.store.name}, dict(self.keys), {self.store.name: len(self.keys)})
        for ref in touched_partitions(requests):
            state.histories[ref.key] = self.history
            if (held := self._partitions.get(ref)) is not None:
                state.heads[ref] = held.head
        for row, partition in touched_rows(requests).items():
            held = self._partitions.get(PartitionRef(row.key, partition))
            if held is not None and row.row_id in held.rows and not held.rows[row.row_id].deleted:
                state.live[row] = held.sizes[row.row_id]
        return state

    def _store(self, planned: PlannedRow, now_ms: int) -> None:
        held = self._partitions[PartitionRef(planned.key, planned.partition)]
        row_id = planned.row_id
        held.rows[row_id] = Row(row_id, planned.value or "", planned.version, planned.deleted, planned.metadata)
        held.sizes[row_id] = planned.size
        if planned.deleted:
            held.buried_ms[row_id] = now_ms
        else:
            held.buried_ms.pop(row_id, None)

    def compact(self, before_ms: int) -> None:
        """Removes tombstones up to the newest one that was written before a time, and raises the floor to it."""
        self.check()
        for held in self._partitions.values():
            old = [held.rows[row_id].version for row_id, at in held.buried_ms.items() if at < before_ms]
            if not old:
                continue
            held.floor = max(held.floor, *old)
            for row_id in list(held.buried_ms):
                if held.rows[row_id].version <= held.floor:
                    del held.rows[row_id], held.buried_ms[row_id], held.sizes[row_id]

    # ---- reads

    def read_partition(self, key: str, partition: int, since: int | None, history: str = "") -> PartitionRows:
        """What ``Repository.read_partition`` gives."""
        held = self._partition(key, partition)
        head = held.head.revision
        since = since if history == self.history else None
        if since is None or wants_whole(since, head, held.floor, held.head.rows):
            return PartitionRows(partition, head, True, [row for row in held.rows.values() if not row.deleted])
        rows = sorted((row for row in held.rows.values() if row.version > since), key=lambda row: row.version)
        return PartitionRows(partition, head, False, rows)

    def read_rows(self, key: str, row_ids: Sequence[str]) -> list[PartitionRows]:
        """What ``Repository.read_rows`` gives."""
        if not self.unreadable.isdisjoint(row_ids):
            raise UnavailableError("these rows are not to be read now")
        found: dict[int, PartitionRows] = {}
        for partition, row_id in zip(row_partitions(row_ids, self.store.partition_count), row_ids, strict=True):
            held = self._partition(key, partition)
            part = found.setdefault(partition, PartitionRows(partition, held.head.revision, False, []))
            if (row := held.rows.get(row_id)) is not None:
                part.rows.append(row)
        return list(found.values())

    def read_full(self, key: str) -> list[PartitionRows]:
        """What ``Repository.read_full`` gives."""
        heads = enumerate(self.heads(key))
        return [self.read_partition(key, partition, None) for partition, head in heads if head > 0]

    def heads(self, key: str) -> list[int]:
        """The revision of each partition."""
        return [self._partition(key, number).head.revision for number in range(self.store.partition_count)]

    def live_rows(self, key: str) -> list[int]:
        """How many live rows each partition has."""
        return [self._partition(key, number).head.rows for number in range(self.store.partition_count)]

    def _partition(self, key: str, partition: int) -> _Partition:
        self.check()
        ref = KeyRef(self.store.name, key)
        if ref not in self.keys:
            raise UnknownKeyError(f"store {self.store.name!r} has no config key {key!r}", field="key")
        return self._partitions.get(PartitionRef(ref, partition)) or _Partition()

    # ---- the outbox (as in the repositories' TAKE_OUTBOX)

    def take_outbox(self, relay: object, after: int, limit: int, *, lock: bool) -> list[OutboxRecord]:
        """Up to ``limit`` records above ``after`` that no other relay holds."""
        self.check()
        free = [record for number, record in self.outbox.items() if number > after and number not in self.locked]
        if lock:
            self.locked.update((record.id, relay) for record in free[:limit])
        return free[:limit]

    def release_outbox(self, relay: object) -> None:
        """A relay's transaction has ended, or its connection has broken."""
        self.locked = {number: holder for number, holder in self.locked.items() if holder is not relay}

    def delete_outbox(self, ids: Sequence[int]) -> None:
        """Removes records that the broker has."""
        self.check()
        for number in ids:
            self.outbox.pop(number, None)
