"""Which partitions to fetch now: a bounded number at once, the others in turn or after a delay."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final

from ringcast._protocol.partition import Fetching, Partition

MAX_FETCHES: Final = 16
"""Partition fetches of one key under way at once, counted until their rows are applied: 16 · 8 MiB at most."""


class FetchQueue:
    """Partitions that want a fetch."""

    def __init__(self) -> None:
        self._ready: deque[Partition] = deque()
        self._later: list[tuple[float, int, Partition]] = []
        self._order = 0
        self._busy: set[Partition] = set()

    def want(self, partition: Partition, *, at: float | None = None) -> None:
        """Puts a partition in the queue, now or at a later time, unless it is there or being fetched already."""
        if partition.fetching is not Fetching.IDLE or partition.dead:
            return
        partition.fetching = Fetching.WANTED
        if at is None:
            self._ready.append(partition)
        else:
            self._order += 1
            heapq.heappush(self._later, (at, self._order, partition))

    def retry_now(self) -> None:
        """Ends all delays: the connection is back."""
        self._ready.extend(partition for _, _, partition in sorted(self._later))
        self._later.clear()

    def take(self, now: float) -> Iterator[Partition]:
        """Hands out partitions to fetch now, as many as may be under way."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._ready and len(self._busy) < MAX_FETCHES:
            partition = self._ready.popleft()
            if partition.dead:
                continue
            partition.fetching = Fetching.REQUESTED
            self._busy.add(partition)
            yield partition

    def done(self, partition: Partition) -> None:
        """A fetch has ended: its rows are applied, or it failed, or the partition was lost."""
        self._busy.discard(partition)
        partition.fetching = Fetching.IDLE

    @property
    def wake_at(self) -> float | None:
        """When the next delay ends."""
        return self._later[0][0] if self._later else None
