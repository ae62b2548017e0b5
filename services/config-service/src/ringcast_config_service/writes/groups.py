"""Requests that are committed in one transaction, and which of them may run beside each other."""

from __future__ import annotations

from typing import Final

from ringcast_wire import limits

from ringcast_config_service.repository import Chain, WriteRequest
from ringcast_config_service.writes.locked_partitions import LockedPartitions
from ringcast_config_service.writes.write_queues import Lane, Waiting

MAX_GROUP_ROWS: Final = 8 * limits.MAX_BATCH_ROWS
MAX_GROUP_BYTES: Final = 2 * limits.MAX_PARTITION_BYTES
SLOW_S: Final = 0.02
"""A transaction that takes longer than this lets another begin beside it. Groups would only be smaller otherwise."""


class Group:
    """Requests of one transaction. ``lanes`` wait for it to end; ``suspect``: it may find a head locked."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.rows = 0
        self.bytes = 0
        self.began_s = 0.0
        self.lanes: list[Lane] = []
        self._places: dict[tuple[str, str], set[int]] | None = None
        self._chains: set[Chain] = set()

    @property
    def suspect(self) -> bool:
        return self.waiting[0].alone

    def has_room(self, waiting: Waiting) -> bool:
        if not self.waiting:
            return True
        return (
            not waiting.alone
            and not self.waiting[0].alone
            and self.rows + waiting.rows <= MAX_GROUP_ROWS
            and self.bytes + waiting.bytes <= MAX_GROUP_BYTES
        )

    def add(self, waiting: Waiting) -> None:
        self.waiting.append(waiting)
        self.rows += waiting.rows
        self.bytes += waiting.bytes

    @property
    def requests(self) -> list[WriteRequest]:
        return [request for waiting in self.waiting for request in waiting.requests]

    def holds_up(self, waiting: Waiting) -> bool:
        """Whether a request may only begin when this group has ended."""
        if self._places is None:  # most groups are over before anything is compared with them
            self._places = {}
            for request in self.requests:
                place = request.store.name, request.key
                self._places.setdefault(place, set()).update(request.partitions)
                if request.chain is not None:
                    self._chains.add(request.chain)
        if waiting.requests[0].chain in self._chains:
            return True
        for request in waiting.requests:
            partitions = self._places.get((request.store.name, request.key))
            if partitions is not None and not partitions.isdisjoint(request.partitions):
                return True
        return False


class RunningGroups:
    """The groups whose transactions are under way, ``transactions`` at most, and the partitions that they found locked.

    Times are in seconds, of any clock.
    """

    def __init__(self, transactions: int) -> None:
        self.transactions = transactions
        self._groups: list[Group] = []
        self._locked = LockedPartitions()

    def __len__(self) -> int:
        return len(self._groups)

    def begin(self, group: Group) -> None:
        """The transaction of a group begins."""
        self._groups.append(group)

    def end(self, group: Group) -> None:
        """The transaction of a group has ended, however it did."""
        self._groups.remove(group)

    def next_wait_s(self, now_s: float) -> float:
        """Seconds until the latest transaction counts as slow, and another may begin; 0 or less: one may now."""
        return self._groups[-1].began_s + SLOW_S - now_s if self._groups else 0.0

    def blocker(self, waiting: Waiting, now_s: float) -> Group | None:
        """A group that has to end before this request's may begin."""
        for group in self._groups:
            if group.holds_up(waiting):
                return group
        return self._other_suspect() if self._is_suspect(waiting, now_s) else None

    def found_locked(self, request: WriteRequest, now_s: float) -> None:
        """A transaction of this request alone found a lock."""
        self._locked.add(request, now_s)

    def found_free(self, group: Group) -> None:
        """The transaction of a group got all its locks."""
        if group.suspect:
            for request in group.requests:
                self._locked.remove(request)

    def _is_suspect(self, waiting: Waiting, now_s: float) -> bool:
        """Whether a request may find a head locked: then it is written alone, and no other waits for the lock."""
        if self._locked and not waiting.alone:
            waiting.alone = any(self._locked.has_any_of(request, now_s) for request in waiting.requests)
        return waiting.alone

    def _other_suspect(self) -> Group | None:
        """A group to wait for before another begins that may find a head locked: some are left for the others."""
        suspects = [group for group in self._groups if group.suspect]
        return suspects[0] if len(suspects) >= max(1, self.transactions // 2) else None
