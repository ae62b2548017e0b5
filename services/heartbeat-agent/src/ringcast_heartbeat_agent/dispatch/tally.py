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

    __slots__ = ("_looked_up", "_pending", "_revision", "history")

    def __init__(self, history: str, revision: int, pending: Iterable[int] = ()) -> None:
        self.history = history
        self._revision = self._looked_up = revision
        self._pending = set(pending)

    def settle(self, version: int) -> None:
        """A version of :attr:`history` was answered, or given up. Beyond what a seal can say it is not counted."""
        self._pending.discard(version)
        if 0 <= version - self._revision - 1 <= limits.MAX_SEAL_PENDING - len(self._pending):
            self._pending.update(range(self._revision + 1, version))
            self._revision = version

    def extended(self, before: Tally) -> Tally:
        """This, as it was looked up just now, and what was answered above it since ``before`` was looked up.

        Where it is below that, its database was restored, and nothing that was known before counts.
        """
        if before.history != self.history or not before._looked_up <= self._revision < before._revision:
            return self
        above = (version for version in before._pending if version > self._revision)
        extended = Tally(self.history, before._revision, {*self._pending, *above})
        extended._looked_up = self._revision
        return extended

    def settled(self) -> Settled:
        """What a seal can say of it."""
        return Settled.bounded(self.history, self._revision, self._pending)
