"""Micro-batches: changes that gather while something is under way go on together, each row once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ringcast_core import Dedup
from ringcast_wire import Change as WireChange
from ringcast_wire import Event, PartitionRows, Row, limits

from ringcast._machine.partition import Partition, Token

MAX_GATHERED_ROWS: Final = 16_384
"""Rows that may gather; an event that would exceed it is fetched later instead."""
PAUSE_AT_ROWS: Final = 4_096
"""Rows gathered at which the worker stops pulling events."""


@dataclass(slots=True)
class Wanted:
    """A row that a batch has to fetch, and the version that the event said."""

    partition: Partition
    row_id: str
    version: int
    committed_at_ms: int

    @property
    def is_needed(self) -> bool:
        """Whether nothing else has brought the row: its partition is still ours, and not yet at this version."""
        return not self.partition.dead and self.version > self.partition.applied


@dataclass(slots=True)
class Batch:
    """Changes that are applied together. ``revs``: how far each partition is once they are; ``size``: its rows."""

    revs: dict[int, tuple[Partition, int]]
    size: int
    rows: list[tuple[Partition, Row, int | None]] = field(default_factory=list)
    pending: int = 0
    denied: frozenset[Partition] = frozenset()
    """Where the last reply was older than the events."""
    mark: Any = None
    """For whoever follows batches from outside; nothing here looks at it."""

    def tokens(self) -> list[Token]:
        """The deliveries of its events, as long as they are not acknowledged."""
        return [
            token for partition, last in self.revs.values() for rev, token in partition.tokens.items() if rev <= last
        ]

    def take(self, wanted: Iterable[Wanted], reply: Iterable[PartitionRows]) -> bool:
        """Adds the rows that a fetch brought. If some are older than the events: none, and says ``False``.

        A row may be newer than its event, which is fine. One that the service does not know (deleted, and the tombstone
        compacted) is a deletion at the version of the event.
        """
        heads: dict[int, int] = {}
        got: dict[tuple[int, str], Row] = {}
        for part in reply:
            heads[part.partition] = part.revision
            got.update(((part.partition, row.row_id), row) for row in part.rows)
        rows: list[tuple[Partition, Row, int | None]] = []
        denied: set[Partition] = set()
        for want in wanted:
            number = want.partition.number
            row = got.get((number, want.row_id)) or Row(want.row_id, "", want.version, True)
            if min(heads.get(number, want.version), row.version) < want.version:
                denied.add(want.partition)
            rows.append((want.partition, row, want.committed_at_ms if row.version == want.version else None))
        self.denied = frozenset(denied)
        if not denied:
            self.rows += rows
        return not denied


class Collector:
    """Gathers changes until they go on as a :class:`Batch`; the newest of each row, in order of first arrival."""

    def __init__(self) -> None:
        self._dedup = Dedup(MAX_GATHERED_ROWS)
        self._newest: dict[tuple[int, str], tuple[WireChange, int]] = {}
        self._revs: dict[int, tuple[Partition, int]] = {}
        self.since: float | None = None
        """When the first change came."""

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def paused(self) -> bool:
        """Whether no more events should be pulled for now."""
        return len(self._newest) >= PAUSE_AT_ROWS

    def add(self, partition: Partition, event: Event, now: float) -> bool:
        """Takes in all changes of an event, or says ``False`` when they do not fit."""
        changes = event.changes or []
        if len(self._newest) + len(changes) > MAX_GATHERED_ROWS:
            return False
        number = partition.number
        self._dedup.push_many([(number, change.row_id, change.version, change.deleted) for change in changes])
        for change in changes:
            held = self._newest.get((number, change.row_id))
            if held is None or held[0].version < change.version:
                self._newest[(number, change.row_id)] = (change, event.committed_at_ms)
        self._revs[number] = (partition, event.rev)
        if self.since is None:
            self.since = now
        return True

    def close(self) -> tuple[Batch, list[list[Wanted]]]:
        """Empties the collector: the batch, and what must be fetched for it in requests of allowed size."""
        batch = Batch(self._revs, len(self._newest))
        wanted: list[Wanted] = []
        for number, row_id, version, deleted in self._dedup.drain():
            partition = batch.revs[number][0]
            change, committed = self._newest[(number, row_id)]
            if deleted or change.value is not None:
                row = Row(row_id, change.value or "", version, deleted, change.metadata)
                batch.rows.append((partition, row, committed))
            else:
                wanted.append(Wanted(partition, row_id, version, committed))
        self._newest, self._revs, self.since = {}, {}, None
        requests = [wanted[at : at + limits.MAX_BATCH_ROWS] for at in range(0, len(wanted), limits.MAX_BATCH_ROWS)]
        batch.pending = len(requests)
        return batch, requests
