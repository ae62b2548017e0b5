"""What of a partition is settled, kept up to date answer by answer."""

from __future__ import annotations

from collections.abc import Iterable

from ringcast_wire import limits

from ringcast_heartbeat_agent.dispatch.seals import Settled


class Tally:
    """Every change up to ``revision`` is settled, but for the versions of ``pending``. It is never ahead of the group.

    The versions of a partition have no gaps. So an answer above the revision is counted even where it is not known what
    changed before it: every version in between is pending then, as many as a seal has room for. Of those that are no
    row's newest any more nothing comes of it.
    """

    __slots__ = ("_pending", "_revision", "history")

    def __init__(self, history: str, revision: int, pending: Iterable[int] = ()) -> None:
        self.history = history
        self._revision = revision
        self._pending = set(pending)

    def settle(self, version: int) -> None:
        """A version of :attr:`history` was answered, or given up. Beyond what a seal can say it is not counted."""
        self._pending.discard(version)
        if 0 <= version - self._revision - 1 <= limits.MAX_SEAL_PENDING - len(self._pending):
            self._pending.update(range(self._revision + 1, version))
            self._revision = version

    def joined(self, other: Tally) -> Tally:
        """What is settled by this or by ``other``, where that is of the same history."""
        if other.history != self.history:
            return self
        low, high = sorted((self, other), key=lambda each: each._revision)
        pending = (version for version in high._pending if version > low._revision or version in low._pending)
        return Tally(self.history, high._revision, pending)

    def settled(self) -> Settled:
        """What a seal can say of it."""
        return Settled.bounded(self.history, self._revision, self._pending)
