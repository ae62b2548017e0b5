"""What groups that hosts share promise, and the judge of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ringcast import Change
from ringcast.hosting import SealEntry
from ringcast_wire import GroupSeal, limits

from tests.simulation.group_store import partition_of_seal
from tests.simulation.sticky_judge import Violation


class _Flight(NamedTuple):
    holder: str
    version: int


class GroupJudge:
    """Follows every delivery.

    A delivery is in flight until its answer, or until its process is killed or its lease has ended: nobody takes an
    answer to it then.

    Args:
        is_held: whether the lease of a process stands, as the server has it.
    """

    def __init__(self, now: Callable[[], float], is_held: Callable[[str], bool]) -> None:
        self.begun = 0
        """Deliveries."""
        self.repeats = 0
        """Of what was settled."""
        self._now = now
        self._is_held = is_held
        self._written: dict[str, int] = {}
        self._partitions: dict[str, int] = {}
        """Of each row."""
        self._flights: dict[str, _Flight] = {}
        self._settled: dict[str, int] = {}
        self._had: set[str] = set()
        """Rows of which a consumer was told a value, and settled no deletion since."""
        self._over: set[str] = set()
        self._deleted: dict[str, bool] = {}
        self._settled_by: dict[tuple[str, int], str] = {}
        self._beyond: set[tuple[str, int]] = set()
        """What was settled so far above a seal that it has no room for the versions in between."""
        self._violation: str = ""

    def written(self, change: Change) -> None:
        """A row has a new version."""
        self._written[change.row_id] = change.version
        self._partitions[change.row_id] = change.partition
        self._deleted[change.row_id] = change.deleted

    def given(self, holder: str, change: Change) -> None:
        """A consumer of a process is given a change."""
        self.begun += 1
        row, flight = change.row_id, self._flights.get(change.row_id)
        if not self._is_held(holder):
            # What a process does after its lease has ended, and before it knows, is answered to nobody.
            if change.version < self._settled.get(row, 0):
                self._broken(f"{holder}, whose lease has ended, leads {row} back to {change.version}")
            return
        if flight is not None and flight.holder != holder:
            self._broken(f"{row} goes to {holder} while {flight.holder} has it in flight")
        if change.version < self._settled.get(row, 0):
            self._broken(f"{holder} leads {row} back from {self._settled[row]} to {change.version}")
        if change.version == self._settled.get(row):
            self.repeats += 1
            before = self._settled_by[row, change.version]
            if before not in self._over and (row, change.version) not in self._beyond:
                self._broken(f"{holder} repeats {row} {change.version}, which {before} had settled")
        self._flights[row] = _Flight(holder, change.version)
        if not change.deleted:
            self._had.add(row)

    def answered(self, holder: str, change: Change) -> bool:
        """A consumer answers; whether the answer counts."""
        row = change.row_id
        flight = self._flights.get(row)
        if flight is None or flight.holder != holder:
            return False
        if flight.version == change.version:
            del self._flights[row]
        if change.version >= self._settled.get(row, 0):
            self._settled[row] = change.version
            self._settled_by[row, change.version] = holder
            if change.deleted:
                self._had.discard(row)
        return True

    def claimed(self, partition: int, seal: GroupSeal) -> None:
        """Another process goes on from a seal. What it has no room to say, comes again."""
        room = limits.MAX_SEAL_PENDING - len(seal.pending)
        self._beyond |= {
            (row, version)
            for row, version in self._settled.items()
            if self._partitions[row] == partition and version - seal.revision - 1 > room
        }

    def over(self, holder: str) -> None:
        """A process is gone, or its lease is."""
        self._over.add(holder)
        self.evicted(holder)

    def evicted(self, holder: str) -> None:
        """The consumer of a process is no longer one: nobody takes its answers."""
        self._flights = {row: flight for row, flight in self._flights.items() if flight.holder != holder}

    def holders(self) -> set[str]:
        """Those that have something in flight, or have settled something."""
        return {flight.holder for flight in self._flights.values()} | set(self._settled_by.values())

    def missing(self) -> list[str]:
        """Rows whose last version nobody has settled. Of a deletion none needs to hear who never had the row."""
        return [
            row
            for row, version in self._written.items()
            if self._settled.get(row, 0) < version and not (self._deleted[row] and row not in self._had)
        ]

    def unsealed(self, entries: Mapping[str, SealEntry], heads: Sequence[int]) -> list[str]:
        """Seals that do not say that all is settled, of partitions in which something was written."""
        return [
            f"{key} says {entry.seal}, and the head is {head}"
            for key, entry in entries.items()
            if (head := heads[partition_of_seal(key)])
            if entry.seal is None or entry.seal.pending or entry.seal.revision != head
        ]

    def ended(self, entries: Mapping[str, SealEntry], heads: Sequence[int]) -> None:
        """Nothing fails any more, for long enough: nothing may be missing, and the seals have to say so."""
        for row in self.missing():
            self._broken(f"{row} {self._written[row]} was never settled, but {self._settled.get(row, 0)}")
        for seal in self.unsealed(entries, heads):
            self._broken(f"the seal {seal}")

    def look(self) -> None:
        """Raises what was noticed: in the middle of the dispatch an error would not get far.

        Raises:
            Violation: a promise is broken.
        """
        if self._violation:
            raise Violation(self._violation)

    def _broken(self, what: str) -> None:
        self._violation = self._violation or f"{self._now():.3f} {what}"
