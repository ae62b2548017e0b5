"""What hosts that share groups have around them: a service with its record, and NATS with leases and seals. Models."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from ringcast import Change
from ringcast.hosting import ConflictError, SealEntry
from ringcast_wire import GroupSeal, PartitionRows, Row

from tests.simulation.engine import Scheduler

TTL_S: Final = 3.0


def partition_of_seal(key: str) -> int:
    """Of which partition a seal is."""
    return int(key.rsplit(".", 1)[1])


class Record:
    """The service with its database: the rows of a config key, with the tombstones of the deleted ones."""

    def __init__(self, random: Random) -> None:
        self.partitions = random.choice((1, 2, 4))
        self.rows: dict[str, Row] = {}
        self.heads = [0] * self.partitions
        self.slow_until = 0.0
        self._row_ids = [f"r{number}" for number in range(random.choice((2, 4, 8)))]

    @property
    def history(self) -> str:
        """The key has none before its first revision."""
        return "h" if self.rows else ""

    def partition_of(self, row_id: str) -> int:
        """Where a row is."""
        return int(row_id[1:]) % self.partitions

    def write(self, random: Random, share: float) -> Change:
        """The next version of one of the rows: a value, or nothing. ``share``: of the rows, those that are in use."""
        row_id = random.choice(self._row_ids[: 1 + int(share * len(self._row_ids))])
        partition, known = self.partition_of(row_id), self.rows.get(row_id)
        self.heads[partition] += 1
        version, deleted = self.heads[partition], known is not None and not known.deleted and random.random() < 0.5
        self.rows[row_id] = Row(row_id, "" if deleted else f"v{version}", version, deleted)
        return self.change(self.rows[row_id])

    def change(self, row: Row) -> Change:
        """A row as a change."""
        value = None if row.deleted else row.value
        return Change("s", "list", self.partition_of(row.row_id), row.row_id, value, row.version, row.deleted)

    def since(self, partition: int, revision: int, history: str) -> PartitionRows:
        """What has changed; of another history the live rows."""
        head = self.heads[partition]
        whole = history != self.history or revision > head
        rows = [
            row
            for row in self.rows.values()
            if self.partition_of(row.row_id) == partition and (not row.deleted if whole else row.version > revision)
        ]
        return PartitionRows(partition, head, whole, sorted(rows, key=lambda row: row.version))


class Bus:
    """The leases and the seals: what NATS keeps.

    ``told`` is called once a lease has come or gone, and ``claimed`` where a seal has another holder than before.
    """

    def __init__(
        self, scheduler: Scheduler, told: Callable[[], None], claimed: Callable[[int, GroupSeal], None]
    ) -> None:
        self.leases: dict[str, str] = {}
        self.entries: dict[str, SealEntry] = {}
        self._scheduler = scheduler
        self._told = told
        self._claimed = claimed
        self._numbers: dict[str, int] = {}
        self._written = 0

    def refresh(self, lease: str, incarnation: str) -> bool:
        """Whether it was there."""
        was_there = self.leases.get(lease) == incarnation
        number = self._numbers[lease] = self._numbers.get(lease, 0) + 1
        self.leases[lease] = incarnation
        if not was_there:
            self._told()
        self._scheduler.after(TTL_S, self._expire, lease, number)
        return was_there

    def revoke(self, lease: str) -> None:
        """Ends it."""
        self._numbers[lease] += 1
        if self.leases.pop(lease, None) is not None:
            self._told()

    def put(self, key: str, seal: GroupSeal, last: int) -> int:
        """By compare-and-set."""
        before = self.entries.get(key, SealEntry(0, None))
        if before.revision != last:
            raise ConflictError(key)
        if seal.holder and (before.seal is None or before.seal.holder != seal.holder):
            self._claimed(partition_of_seal(key), seal)
        self._written += 1
        self.entries[key] = SealEntry(self._written, seal)
        return self._written

    def _expire(self, lease: str, number: int) -> None:
        if self._numbers[lease] == number and self.leases.pop(lease, None) is not None:
            self._told()
