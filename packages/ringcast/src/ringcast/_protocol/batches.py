"""Micro-batches: changes that gather while something is under way go on together, each row once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ringcast_core import Dedup
from ringcast_wire import Change as WireChange
from ringcast_wire import Event, PartitionRows, Row, limits

from ringcast._protocol.partition import Partition, Token

MAX_GATHERED_ROWS: Final = 16_384
"""Rows that may gather; an event that would exceed it is fetched later instead."""
PAUSE_AT_ROWS: Final = 4_096
"""Rows gathered at which the worker stops pulling events."""


@dataclass(slots=True)
class MissingRow:
    """A row that an event names without its value, so its batch has to fetch it. ``version``: as the event has it."""

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
    stale: frozenset[Partition] = frozenset()
    """Partitions of which the last reply was older than the events."""
    mark: Any = None
    """For tracing: the batch itself does not use it."""

    def tokens(self) -> list[Token]:
        """The deliveries of its events, as long as they are not acknowledged."""
        return [
            token for partition, last in self.revs.values() for rev, token in partition.tokens.items() if rev <= last
        ]

    def take(self, wanted: Iterable[MissingRow], reply: Iterable[PartitionRows]) -> bool:
        """Adds the rows that a fetch brought. If some are older than the events it adds none and returns ``False``.

        A row may be newer than its event, which is fine. One that the service does not know (deleted, and the tombstone
        compacted) is a deletion at the version of the event.
        """
        heads: dict[int, int] = {}
        got: dict[tuple[int, str], Row] = {}
        for part in reply:
            heads[part.partition] = part.revision
            got.update(((part.partition, row.row_id), row) for row in part.rows)
        rows: list[tuple[Partition, Row, int | None]] = []
        stale: set[Partition] = set()
        for want in wanted:
            number = want.partition.number
            row = got.get((number, want.row_id)) or Row(want.row_id, "", want.version, True)
            if min(heads.get(number, want.version), row.version) < want.version:
                stale.add(want.partition)
            rows.append((want.partition, row, want.committed_at_ms if row.version == want.version else None))
        self.stale = frozenset(stale)
        if not stale:
            self.rows += rows
        return not stale


class Collector:
    """Gathers changes until they go on as a :class:`Batch`; the newest of each row, in order of first arrival.

    Events are collected as they come, which is cheap; rows that come twice are found for all events at once.
    """

    def __init__(self) -> None:
        self._dedup = Dedup(MAX_GATHERED_ROWS)
        self._fresh: list[tuple[Partition, Event]] = []
        self._fresh_changes = 0
        self._newest: dict[tuple[int, str], tuple[WireChange, int]] = {}
        self._revs: dict[int, tuple[Partition, int]] = {}
        self.since: float | None = None
        """When the first change came."""

    def __len__(self) -> int:
        self._merge()
        return len(self._newest)

    @property
    def paused(self) -> bool:
        """Whether no more events should be pulled for now."""
        return len(self._newest) + self._fresh_changes >= PAUSE_AT_ROWS and len(self) >= PAUSE_AT_ROWS

    def add(self, partition: Partition, event: Event, now: float) -> bool:
        """Takes in all changes of an event; returns ``False`` if they do not fit."""
        count = len(event.changes or ())
        if (
            len(self._newest) + self._fresh_changes + count > MAX_GATHERED_ROWS
            and len(self) + count > MAX_GATHERED_ROWS
        ):
            return False
        self._fresh.append((partition, event))
        self._fresh_changes += count
        self._revs[partition.number] = (partition, event.rev)
        if self.since is None:
            self.since = now
        return True

    def close(self) -> tuple[Batch, list[list[MissingRow]]]:
        """Empties the collector: the batch, and what must be fetched for it in requests of allowed size."""
        wanted: list[MissingRow] = []
        if self._newest or not self._once():
            self._merge()
            batch = Batch(self._revs, len(self._newest))
            for number, row_id, _, _ in self._dedup.drain():
                change, committed = self._newest[(number, row_id)]
                _put(batch, wanted, self._revs[number][0], change, committed)
        else:
            batch = Batch(self._revs, self._fresh_changes)
            for partition, event in self._fresh:
                for change in event.changes or ():
                    _put(batch, wanted, partition, change, event.committed_at_ms)
        self._fresh, self._fresh_changes, self._newest, self._revs, self.since = [], 0, {}, {}, None
        requests = [wanted[at : at + limits.MAX_BATCH_ROWS] for at in range(0, len(wanted), limits.MAX_BATCH_ROWS)]
        batch.pending = len(requests)
        return batch, requests

    def _once(self) -> bool:
        """Whether no row has two of the changes that were collected; a row id is in one partition only."""
        row_ids = {change.row_id for _, event in self._fresh for change in event.changes or ()}
        return len(row_ids) == self._fresh_changes

    def _merge(self) -> None:
        """Finds the newest change of each row among all that were collected."""
        fresh, newest = self._fresh, self._newest
        self._fresh, self._fresh_changes = [], 0
        for partition, event in fresh:
            number, changes = partition.number, event.changes or ()
            self._dedup.push_many([(number, change.row_id, change.version, change.deleted) for change in changes])
            for change in changes:
                known = newest.get((number, change.row_id))
                if known is None or known[0].version < change.version:
                    newest[(number, change.row_id)] = (change, event.committed_at_ms)


def _put(batch: Batch, wanted: list[MissingRow], partition: Partition, change: WireChange, committed: int) -> None:
    value = change.value
    if value is not None or change.deleted:
        row = Row(change.row_id, value or "", change.version, change.deleted, change.metadata)
        batch.rows.append((partition, row, committed))
    else:
        wanted.append(MissingRow(partition, change.row_id, change.version, committed))
