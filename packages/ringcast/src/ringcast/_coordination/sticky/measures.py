"""What a worker measures of exclusive ownership, and what it reports of a key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from ringcast_wire.metrics import Histogram
from ringcast_wire.owner_records import Entry, Phase, Table

UNOWNED: Final = "unowned"
"""Where a metric says that partitions have no owner; the other names are those of the phases."""


class KeyReport(NamedTuple):
    """One key as a worker sees it. ``partitions`` is by phase, and empty unless this worker leads."""

    leads: bool
    partitions: Mapping[str, int]
    handoff: Histogram
    leader_changes: int
    unreadable: int
    """Records of the store's owners and wishes that could not be read, each revision counted once, of any key."""
    plan_moves: int = 0
    """Of a store that migrates: how many partitions the plan gives to another worker, as the leader has it."""
    epoch: int = 0
    """That of the table by which this worker acts; 0 while there is none."""
    load: float = 0.0
    """Changes a second of the partitions that this worker owns."""
    hot: int = 0
    """Hot partitions, as far as this worker leads."""
    passed_over: int = 0
    """Workers that get no partitions for a while, as far as this worker leads: they did not prepare theirs in time."""
    skew: float = 0.0
    """The load of the busiest worker over the mean of all, as far as this worker leads; 0 where nothing is known."""


class LeaderMeasures:
    """Of one key, while this worker leads it. Times are of the leader's clock."""

    def __init__(self) -> None:
        self.handoff = Histogram.of("config_handoff_seconds")
        self.terms = 0
        """How often this worker began to lead."""
        self._draining: dict[int, float] = {}

    def began(self) -> None:
        """This worker leads from now on: what began before it does not know."""
        self.terms += 1
        self._draining.clear()

    def wrote(self, before: Table | None, after: Table, now: float) -> None:
        """A table was written in place of another."""
        if before is None:
            return
        for number, (old, new) in enumerate(zip(before.entries, after.entries, strict=True)):
            if old is new or old.phase is new.phase:
                continue
            if new.phase is Phase.DRAIN:
                self._draining[number] = now
            elif (since := self._draining.pop(number, None)) is not None:
                self.handoff.observe(now - since)


def by_phase(table: Table | None) -> dict[str, int]:
    """How many partitions are in each phase, and how many have no owner."""
    counts = dict.fromkeys((*Phase, UNOWNED), 0)
    if table is not None:
        counts.update(Counter(map(_phase, table.entries)))
    return {str(phase): count for phase, count in counts.items()}


def moves_of(plan: Table | None, shares: tuple[str | None, ...]) -> int:
    """How many partitions a plan gives to another worker than the peer rule does, as far as that is known."""
    entries = plan.entries if plan is not None else ()
    return sum(
        entry.owner is None or entry.owner.worker_id != share for entry, share in zip(entries, shares, strict=False)
    )


def _phase(entry: Entry) -> str:
    return entry.phase if entry.owner is not None else UNOWNED
