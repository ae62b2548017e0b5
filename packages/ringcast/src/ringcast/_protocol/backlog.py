"""How many events of a config key wait: for its handler, and for an acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence

from ringcast._protocol.pace import Pace
from ringcast._protocol.partition import Partition
from ringcast._protocol.room import Room, Share


class Backlog:
    """Counts the events of one key for both of its limits: ``pace``, and ``share`` where the worker has more keys."""

    __slots__ = ("pace", "share")

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.share: Share | None = None

    def count(self, partition: Partition) -> None:
        """Counts the events of a partition again; to be called whenever their number may have changed."""
        self.pace.count(partition)
        if self.share is not None:
            self.share.count(partition)


def share_out(most: int, keys: Sequence[Backlog]) -> None:
    """Gives each of the config keys of a worker its share of ``most`` deliveries; a single key has them all."""
    if len(keys) > 1:
        room = Room(most, len(keys))
        for key in keys:
            key.share = room.share()
