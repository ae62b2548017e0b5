"""Comparing revisions with the service's head revisions: when, and what follows from a difference."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ringcast_wire import Backoff, RandomSource

from ringcast._protocol.partition import Partition

LATE_EVENT_S: Final = 0.25
"""How long an event may come later than the head revision that the service gave, before its partition is fetched."""
HELD_BACK_S: Final = 30.0
"""The same where the handler is busy and the worker pulls few events: they wait at the broker."""


class AntiEntropyTimer:
    """Every ``every_s`` seconds, give or take a quarter so that workers spread out, and sooner after a failure.

    A comparison is what finds events that were lost at the end of the stream, so one that was called for (the lease or
    the connection was lost) and failed must not wait for the next regular one.
    """

    def __init__(self, random: RandomSource, every_s: float) -> None:
        self._random = random
        self._every_s = every_s
        self._backoff = Backoff(random)

    def next_s(self, *, failed: bool = False) -> float:
        """How long to wait after a comparison, in seconds; ``failed``: it got no answer."""
        regular = self._every_s * (0.75 + self._random() / 2)
        if not failed:
            self._backoff.reset()
            return regular
        return min(regular, self._backoff.next_s())


@dataclass(slots=True, frozen=True)
class KnownRevisions:
    """How far each partition was when the head revisions were asked for, and in which ``history``.

    ``needed``: whether there is anything to compare.
    """

    at: dict[int, tuple[Partition, int]]
    history: str = ""
    needed: bool = True
    suspects: frozenset[str] = frozenset()
    """Histories that events have named beside the current one."""


class LaggingPartitions:
    """Partitions that are behind their head revision: an event of theirs may be missing, or just late."""

    def __init__(self) -> None:
        self._lagging: deque[tuple[float, float, Partition, int]] = deque()
        self._watched: set[Partition] = set()
        self._was_held_back = False
        self._held_back_until = 0.0

    def add(self, partition: Partition, head: int, now: float) -> None:
        """The head revision of a partition is ``head``, and the worker has not got there."""
        if partition not in self._watched:
            self._watched.add(partition)
            self._lagging.append((now + LATE_EVENT_S, now + HELD_BACK_S, partition, head))

    def behind(self, now: float, *, held_back: bool = False) -> Iterator[Partition]:
        """Those whose time is over and that are behind still; ``held_back``: events may wait at the broker."""
        if held_back or self._was_held_back:
            self._held_back_until = now + LATE_EVENT_S  # events that are pulled now may take as long to come
        self._was_held_back = held_back
        while self._lagging and self._lagging[0][0] <= now:
            _, until, partition, head = self._lagging.popleft()
            is_behind = partition.live and not partition.dead and head > partition.expected
            if is_behind and now < min(until, self._held_back_until):
                self._lagging.append((now + LATE_EVENT_S, until, partition, head))
                continue
            self._watched.discard(partition)
            if is_behind:
                yield partition

    @property
    def wake_at(self) -> float | None:
        """When to look again."""
        return self._lagging[0][0] if self._lagging else None
