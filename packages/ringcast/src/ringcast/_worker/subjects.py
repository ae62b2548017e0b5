"""The subjects that bring the events of a config key, and which of them do not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ringcast_wire import names

from ringcast._protocol.partition import Partition


class Confirmed(NamedTuple):
    """What follows once the server delivers some subjects.

    ``ready``: partitions that can be fetched now. ``compare``: whether events may have been missed until now.
    """

    ready: list[int]
    compare: bool


class KeySubjects:
    """The subjects of one key. A worker that owns every partition takes one subject for all: a filter costs the broker.

    ``partitions``: those that are owned.
    """

    def __init__(self, store: str, key: str, partition_count: int, partitions: Mapping[int, Partition]) -> None:
        self.wanted: frozenset[str] = frozenset()
        self.partition_count = partition_count
        self._partitions = partitions
        self._head = names.notify_subject(store, key, 0)[:-1]
        self._all = names.notify_key_subjects(store, key)
        self._wide = self._compared_wide = False
        self._undelivered: frozenset[int] = frozenset()
        """Partitions that are loaded although their events can't be had."""

    def assign(self, partitions: frozenset[int]) -> frozenset[str]:
        """Returns the subjects of the partitions that are owned from now on."""
        self._wide = len(partitions) == self.partition_count
        self._compared_wide = self._compared_wide and self._wide
        self.wanted = frozenset({self.of(number) for number in partitions})
        return self.wanted

    def narrow(self, subjects: frozenset[str]) -> frozenset[str]:
        """Keeps only these of the wanted subjects, without any partition; returns what is left."""
        self.wanted &= subjects
        return self.wanted

    def keep(self, partitions: frozenset[int]) -> None:
        """Forgets what it knows of partitions that are not among these."""
        self._undelivered &= partitions

    def of(self, partition: int) -> str:
        """The subject that brings the events of a partition."""
        return self._all if self._wide else f"{self._head}{partition}"

    def lacks(self, subjects: frozenset[str], *, withdrawn: bool) -> bool:
        """Whether an owned partition waits for the events of one of these subjects.

        ``withdrawn``: whether one did that was given up for that reason.
        """
        if withdrawn:
            return not subjects.isdisjoint(self.wanted)
        return any(
            self.of(number) in subjects and (number in self._undelivered or not partition.filtered)
            for number, partition in self._partitions.items()
        )

    def do_without(self, subjects: Collection[str]) -> list[int]:
        """The partitions that wait for these subjects and are to be loaded without their events."""
        late = [number for number in self._unfiltered() if self.of(number) in subjects]
        self._undelivered |= frozenset(late)
        return late

    def lose(self, subjects: Collection[str]) -> bool:
        """The events of these subjects came, and do not any more. Returns whether that is news of a partition."""
        filtered = (number for number, partition in self._partitions.items() if partition.filtered)
        lost = {number for number in filtered if self.of(number) in subjects}
        is_news = not lost <= self._undelivered
        self._undelivered |= lost
        return is_news

    def confirmed(self, subjects: Collection[str]) -> Confirmed:
        """The server delivers these subjects, of any key."""
        ready = [number for number in self._unfiltered() if self.of(number) in subjects]
        compare = False
        if self._wide and not self._compared_wide and self._all in subjects:
            self._compared_wide = compare = True  # going from several consumers to one, events may have been missed
        if delivered := {number for number in self._undelivered if self.of(number) in subjects}:
            self._undelivered -= delivered
            compare = True  # what came before the filters has been missed
        return Confirmed(ready, compare)

    def _unfiltered(self) -> list[int]:
        return [number for number, partition in self._partitions.items() if not partition.filtered]
