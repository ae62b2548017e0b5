"""How many deliveries the config keys of a worker leave unacknowledged: a key that is stuck leaves room to the others.

The broker delivers no more than ``max_ack_pending`` events of one consumer before some are acknowledged, whatever key
they are of. Half of that is shared out evenly, so each key always has its part. The other half goes to the keys that
need it; each takes at most as much of it as it leaves free.
"""

from __future__ import annotations

from ringcast._protocol.partition import Partition


class Room:
    """What ``keys`` config keys have together, which is ``most`` deliveries."""

    def __init__(self, most: int, keys: int) -> None:
        self.each = max(1, most // (2 * keys))
        self.free = max(0, most - self.each * keys)

    def share(self) -> Share:
        """That of one more key."""
        return Share(self)


class Share:
    """The deliveries that one key holds."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.deliveries = 0

    @property
    def is_full(self) -> bool:
        """Whether the key may not hold another one."""
        over = self.deliveries - self._room.each
        return over >= 0 and over >= self._room.free

    def count(self, partition: Partition) -> None:
        """Counts the deliveries of a partition again; to be called whenever their number may have changed."""
        counted = len(partition.tokens) + len(partition.foreign)
        before = max(self.deliveries, self._room.each)
        self.deliveries += counted - partition.counted
        partition.counted = counted
        self._room.free -= max(self.deliveries, self._room.each) - before
