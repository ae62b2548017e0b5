"""What of a config key is in memory and not on the disk yet.

Nothing is queued: each partition remembers which of its rows differ from the disk, and what is written is what memory
says at that moment. So a slow disk makes the cache older, never the worker slower or larger, and what one write brings
to the disk is a state that the partition was in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ringcast_wire import Row

from ringcast._protocol.partition import Partition
from ringcast._protocol.unsaved import Unsaved

MAX_WRITE_ROWS: Final = 8_192
"""Rows after which a write takes no further partition."""


@dataclass(slots=True, frozen=True)
class CachedPartition:
    """A partition as the disk has it. ``as_of``: when it was known to be current, on the clock of the machine."""

    number: int
    applied: int
    rows: dict[str, Row]
    tombstones: dict[str, int]
    as_of: float
    history: str = ""


@dataclass(slots=True, frozen=True)
class PartitionSave:
    """What makes the disk say what memory says of a partition; to be written whole or not at all.

    ``rows`` are put in the place of those of the same id and ``gone`` are deleted. With ``whole``, nothing that is
    there stays but ``rows``, and without a ``partition`` (it was lost) nothing stays at all.
    """

    number: int
    partition: Partition | None
    whole: bool = True
    applied: int = 0
    row_count: int = 0
    rows: Sequence[Row] = ()
    gone: Sequence[str] = ()
    tombstones: Sequence[tuple[str, int]] = ()
    history: str = ""

    @property
    def size(self) -> int:
        """How many rows are written."""
        return len(self.rows) + len(self.gone)


class Saving:
    """Follows the partitions of one key."""

    def __init__(self) -> None:
        self._due: dict[int, Partition | None] = {}

    @property
    def pending(self) -> int:
        """Partitions that are to be written."""
        return len(self._due)

    def follow(self, partition: Partition, *, saved: bool = False) -> None:
        """Remembers from now on what changes. ``saved``: the disk has it as it is."""
        partition.unsaved = Unsaved(whole=not saved)

    def changed(self, partition: Partition) -> None:
        """What was under way for a partition has been applied."""
        if not partition.dead:
            self._due[partition.number] = partition

    def lost(self, number: int) -> None:
        """The partition is no longer ours."""
        self._due[number] = None

    def take(self, max_rows: int = MAX_WRITE_ROWS) -> list[PartitionSave]:
        """What to write now: whole partitions, until there are ``max_rows`` rows."""
        saves: list[PartitionSave] = []
        size = 0
        while self._due and size < max_rows:
            number = next(iter(self._due))
            partition = self._due.pop(number)
            if partition is not None and partition.dead:
                continue  # another has taken its place
            save = PartitionSave(number, None) if partition is None else _save(partition)
            size += save.size
            saves.append(save)
        return saves

    def failed(self, saves: Iterable[PartitionSave]) -> None:
        """These have not been written, as far as is known: what the disk has of them is to be replaced."""
        for save in saves:
            if save.partition is None:
                self._due.setdefault(save.number, None)
            elif not save.partition.dead:
                self.rewrite([save.partition])

    def rewrite(self, partitions: Iterable[Partition]) -> None:
        """The disk has nothing of these partitions that can be built on."""
        for partition in partitions:
            self.follow(partition)
            if partition.live or partition.cached:
                self._due[partition.number] = partition

    def forget(self) -> None:
        """The file is a new one: there is nothing to delete in it."""
        self._due = {}


def _save(partition: Partition) -> PartitionSave:
    unsaved, partition.unsaved = partition.unsaved or Unsaved(whole=True), Unsaved(whole=False)
    current = partition.rows
    rows = (
        [*current.values()] if unsaved.whole else [current[row_id] for row_id in unsaved.row_ids if row_id in current]
    )
    return PartitionSave(
        partition.number,
        partition,
        unsaved.whole,
        partition.applied,
        len(current),
        rows,
        () if unsaved.whole else [row_id for row_id in unsaved.row_ids if row_id not in current],
        tuple(partition.tombstones.items()),
        partition.history,
    )
