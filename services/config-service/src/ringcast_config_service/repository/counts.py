"""Looking whether the heads of partitions count the rows that are there, and setting them right.

Writes keep the counts in the transactions that change the rows, so a count that is wrong is the mark of a fault: of the
service, or of somebody who changed the tables. Limits of stores would be wrong by as much.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

DUTY: Final = "counts"
LEASE_MS: Final = 600_000
"""How long an instance has the duty from each key on."""
PARTITIONS: Final = 64
"""Partitions whose rows are counted by one statement: half a gigabyte of rows at most."""


class CountedKey(NamedTuple):
    store: str
    name: str
    key_id: int
    partition_count: int


class WrongCount(NamedTuple):
    """A partition whose head counted other live rows, or bytes of them, than there were. It is set right."""

    store: str
    key: str
    partition: int


class Steps(Protocol):
    """What a database does for it."""

    async def take_counts(self, lease_ms: int) -> bool:
        """Takes or keeps the duty for so long, unless another instance has it."""

    async def counted_keys(self) -> list[CountedKey]:
        """The keys that are not deleted."""

    async def wrong_counts(self, key_id: int, first: int, last: int) -> list[int]:
        """Partitions of a key whose counts are wrong, in one snapshot."""

    async def recount(self, store: str, key_id: int, partition: int) -> bool:
        """Counts the rows of a partition with its head locked; whether that changed anything."""


async def check_counts(steps: Steps, every_ms: int) -> list[WrongCount]:
    """One pass, of one instance at a time and of none within ``every_ms`` of it; what was wrong, and is right now."""
    found: list[WrongCount] = []
    if not await steps.take_counts(LEASE_MS):
        return found
    for store, name, key_id, partition_count in await steps.counted_keys():
        if not await steps.take_counts(LEASE_MS):
            return found
        for first in range(0, partition_count, PARTITIONS):
            wrong = await steps.wrong_counts(key_id, first, first + PARTITIONS - 1)
            repaired = [partition for partition in wrong if await steps.recount(store, key_id, partition)]
            found += [WrongCount(store, name, partition) for partition in repaired]
    await steps.take_counts(every_ms)
    return found
