"""Comparing revisions with the service's heads: when, and what to make of a difference."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ringcast._machine.backoff import Backoff, Random
from ringcast._machine.partition import Partition

SUSPICION_S: Final = 0.25
"""How long an event may lag behind the head that the service told before its partition is fetched."""


class HeadsTimer:
    """Every ``every_s`` seconds, give or take a quarter so that workers spread out, and sooner after a failure.

    A comparison is what finds events that were lost at the end of the stream, so one that was called for (the lease or
    the connection was lost) and failed must not wait for the next regular one.
    """

    def __init__(self, random: Random, every_s: float) -> None:
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
class HeadsAsked:
    """How far each partition was when the heads were asked for, and in which ``history``; ``needed``: whether there is
    anything to compare."""

    at: dict[int, tuple[Partition, int]]
    history: str = ""
    needed: bool = True
    suspects: frozenset[str] = frozenset()
    """Histories that had been heard of beside the current one."""


class Suspects:
    """Partitions that are behind what the service told: an event of theirs may just be late."""

    def __init__(self) -> None:
        self._suspects: deque[tuple[float, Partition, int]] = deque()

    def add(self, partition: Partition, head: int, now: float) -> None:
        """The service is at ``head``."""
        self._suspects.append((now + SUSPICION_S, partition, head))

    def behind(self, now: float) -> Iterator[Partition]:
        """Those whose time is over and that are behind still."""
        while self._suspects and self._suspects[0][0] <= now:
            _, partition, head = self._suspects.popleft()
            if partition.live and not partition.dead and head > partition.expected:
                yield partition

    @property
    def wake_at(self) -> float | None:
        """When to look again."""
        return self._suspects[0][0] if self._suspects else None
