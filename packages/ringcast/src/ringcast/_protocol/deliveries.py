"""The changes that are delivered to the application, one delivery at a time, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ringcast_wire import PartitionRows, Row

from ringcast._common.change import Change
from ringcast._common.stats import Stats
from ringcast._protocol.batches import Batch
from ringcast._protocol.partition import Partition, Token

MAX_OPEN_BATCHES: Final = 4
"""Closed batches that are not applied yet; until one of them is, changes go on gathering."""


@dataclass(slots=True, frozen=True)
class PartitionRequest:
    """A fetch of one partition, whole or what changed ``since`` a revision."""

    partition: Partition
    since: int | None = None
    goal: int = 0
    """The revision that the answer should reach."""
    unconfirmed: frozenset[int] = frozenset()
    """Revisions of events that are dropped if this answer, too, does not reach them."""


@dataclass(slots=True)
class PartitionDelivery:
    """The rows of a partition that a fetch brought."""

    partition: Partition
    rows: PartitionRows
    request: PartitionRequest
    history: str = ""


@dataclass(slots=True, frozen=True)
class CachedDelivery:
    """The rows of a partition that the disk had."""

    partition: Partition


@dataclass(slots=True, frozen=True)
class FirstDelivery:
    """All that a partition has that was silent until now, once the worker owns it."""

    partition: Partition


PartitionsDelivery: TypeAlias = PartitionDelivery | CachedDelivery | FirstDelivery
QueuedDelivery: TypeAlias = PartitionsDelivery | Batch


def events_of(delivery: QueuedDelivery) -> list[Token]:
    """The deliveries of the events that a fetch of a partition has made up for.

    None where the partition was not live: the last event of each is delivered to a new owner, however old it is.
    """
    if not isinstance(delivery, PartitionDelivery) or not delivery.partition.live:
        return []
    return delivery.partition.tokens_to(delivery.rows.revision)


class DeliveryQueue:
    """The deliveries that wait, and the one that is under way. Batches and others take turns."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.active: tuple[int, QueuedDelivery] | None = None
        """The delivery that is under way, and its number."""
        self._others: deque[PartitionsDelivery] = deque()
        self._batch_last = False

    def __bool__(self) -> bool:
        return bool(self.batches or self._others or self.active)

    def add(self, delivery: PartitionsDelivery) -> None:
        """Queues the rows of a partition."""
        self._others.append(delivery)

    @property
    def full(self) -> bool:
        """Whether no further batch may be closed now."""
        return len(self.batches) >= MAX_OPEN_BATCHES

    def take(self, is_announced: Callable[[int], bool]) -> QueuedDelivery | None:
        """The next delivery that can start, if there is one: a batch whose fetches were answered, or another.

        ``is_announced``: whether the application knows that it has a partition; rows of others wait for that.
        """
        batch = self.batches[0] if self.batches and self.batches[0].pending == 0 else None
        if batch is not None and self._batch_last:
            other = self._take_other(is_announced)
            if other is not None:
                return other
        if batch is not None:
            self._batch_last = True
            return self.batches.popleft()
        return self._take_other(is_announced)

    def _take_other(self, is_announced: Callable[[int], bool]) -> PartitionsDelivery | None:
        for at, delivery in enumerate(self._others):
            if delivery.partition.dead or is_announced(delivery.partition.number):
                del self._others[at]
                self._batch_last = False
                return delivery
        return None


class ChangeMaker:
    """Turns rows into changes. Those of a batch or a fetch are taken in on the way."""

    def __init__(self, store: str, key: str, stats: Stats) -> None:
        self._store = store
        self._key = key
        self._stats = stats

    def of_batch(self, batch: Batch) -> list[Change]:
        """Takes in the rows of a batch; returns those that are new."""
        changes: list[Change] = []
        store, key = self._store, self._key
        for partition, row, committed in batch.rows:
            if partition.dead:
                continue
            if not partition.accept(row):
                self._stats.stale += 1
            elif not partition.silent:
                value = None if row.deleted else row.value
                # As `of_row`, which would be a third of what this costs.
                changes.append(
                    Change(
                        store,
                        key,
                        partition.number,
                        row.row_id,
                        value,
                        row.version,
                        row.deleted,
                        row.metadata,
                        committed,
                        None,
                        partition.grant,
                        partition.release_of(row.version) if partition.releases else 0,
                    )
                )
        return changes

    def of_fetch(self, partition: Partition, rows: PartitionRows) -> list[Change]:
        """Takes in the rows of a fetch; returns those that are new."""
        current, gone = partition.rows, partition.tombstones
        for row in rows.rows:
            known = current.get(row.row_id)
            self._stats.stale += row.version < (gone.get(row.row_id, 0) if known is None else known.version)
        if rows.whole:
            news = partition.accept_whole(rows.rows, rows.revision)
        else:
            news = [row for row in rows.rows if partition.accept(row)]
        return [] if partition.silent else self.of_rows(partition, news)

    def of_first(self, partition: Partition) -> list[Change]:
        """All rows, and what was deleted while the partition was silent, which it is not any more."""
        partition.end_silence()
        gone = [Row(row_id, "", version, True) for row_id, version in partition.owed.items()]
        return self.of_rows(partition, [*gone, *partition.rows.values()])

    def of_cache(self, partition: Partition, now: float) -> list[Change]:
        """The rows that the disk had."""
        age_s = max(0.0, now - partition.as_of)
        return [self.of_row(partition, row, None, age_s) for row in partition.rows.values()]

    def of_rows(self, partition: Partition, rows: list[Row]) -> list[Change]:
        """Rows that came with their partition."""
        return [self.of_row(partition, row, None) for row in rows]

    def of_row(
        self, partition: Partition, row: Row, committed_at_ms: int | None, cached_age_s: float | None = None
    ) -> Change:
        """One row as a change."""
        return Change(
            self._store,
            self._key,
            partition.number,
            row.row_id,
            None if row.deleted else row.value,
            row.version,
            row.deleted,
            row.metadata,
            committed_at_ms,
            cached_age_s,
            partition.grant,
            partition.release_of(row.version),
        )
