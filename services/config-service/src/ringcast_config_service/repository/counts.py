"""Looking whether the heads of partitions count the rows that are there, and setting them right.

Writes keep the counts in the transactions that change the rows, so a count that is wrong is the mark of a fault: of the
service, or of a change of the tables by hand. Limits of stores would be wrong by as much.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final, NamedTuple, Protocol

from ringcast_config_service.repository.lead import Lead

DUTY: Final = "counts"
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
    """What a database does for it. Changes are transactions of their own, and raise ``LostLeadError``."""

    async def done_counts(self) -> tuple[int, int]:
        """When the last pass began, and the time; both by the database's clock."""

    async def note_counts(self, lead: Lead, began_ms: int) -> None:
        """A pass that began then is over."""

    async def counted_keys(self) -> list[CountedKey]:
        """The keys that are not deleted."""

    async def wrong_counts(self, key_id: int, first: int, last: int) -> list[int]:
        """Partitions of a key whose counts are wrong, in one snapshot."""

    async def recount(self, lead: Lead, store: str, key_id: int, partition: int) -> bool:
        """Counts the rows of a partition with its head locked; whether that changed anything."""


async def check_counts(steps: Steps, lead: Lead, every_ms: int) -> AsyncGenerator[WrongCount, None]:
    """One pass, and none within ``every_ms`` of the last; what was wrong, once it is right."""
    done_ms, now_ms = await steps.done_counts()
    if 0 <= now_ms - done_ms < every_ms:
        return
    for store, name, key_id, partition_count in await steps.counted_keys():
        for first in range(0, partition_count, PARTITIONS):
            for partition in await steps.wrong_counts(key_id, first, first + PARTITIONS - 1):
                if await steps.recount(lead, store, key_id, partition):
                    yield WrongCount(store, name, partition)
    await steps.note_counts(lead, now_ms)
