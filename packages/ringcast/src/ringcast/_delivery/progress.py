"""Which partitions of a long delivery are done before its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ringcast._common.change import Change


class DeliveryProgress:
    """Of one delivery at a time: counts the changes that are left of each partition."""

    def __init__(self) -> None:
        self._left: Counter[int] = Counter()
        self._finished: set[int] = set()

    def reset(self) -> None:
        """Another delivery begins."""
        self._left.clear()
        self._finished.clear()

    def expect(self, changes: Sequence[Change]) -> None:
        """These changes are left. Without it, nothing is counted: a short delivery ends soon enough."""
        self._left.update(change.partition for change in changes)

    def done(self, partition: int) -> None:
        """One change of a partition is done."""
        if self._left:
            self._left[partition] -= 1
            if not self._left[partition]:
                self._finished.add(partition)

    def take_finished(self) -> set[int]:
        """The partitions of which everything is done; each is returned once."""
        finished, self._finished = self._finished, set()
        return finished
