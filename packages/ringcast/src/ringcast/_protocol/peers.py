"""The members of all keys of a worker, and what follows from every change of them."""

from __future__ import annotations

from collections.abc import Iterable

from ringcast_wire import NodeRecord, StoreSettings, names

from ringcast._common.stats import Trigger
from ringcast._protocol.assignment import Assignment, PeerAssigner
from ringcast._protocol.given_up import is_given_up
from ringcast._protocol.membership import Membership


class Peers:
    """The membership that a worker sees, and an assigner for each key. Nothing is decided before the view is whole."""

    def __init__(
        self, keys: Iterable[str], worker_id: str, settings: StoreSettings, *, settle_s: float, grace_s: float
    ) -> None:
        self.membership = Membership()
        self._assigners = {
            key: PeerAssigner(key, worker_id, settings, settle_s=settle_s, grace_s=grace_s) for key in keys
        }

    def changed(self, now: float, key: str | None = None) -> None:
        """The members of a key, or of any, may be others now."""
        for name, assigner in self._assigners.items():
            if key in (None, name):
                assigner.changed(now)

    def start_over(self, key: str, now: float) -> None:
        """The worker takes part in a key again, with nothing."""
        self._assigners[key].start_over()
        self._assigners[key].changed(now)

    def reconnected(self, now: float) -> None:
        """The connection was lost and is back."""
        for assigner in self._assigners.values():
            assigner.reconnected(now)

    @property
    def wake_at(self) -> float | None:
        """When to poll next. As long as the view is not whole, time alone changes nothing."""
        if not self.membership.complete:
            return None
        return min((at for assigner in self._assigners.values() if (at := assigner.wake_at) is not None), default=None)

    def poll(self, now: float) -> list[tuple[Assignment, Trigger]]:
        """The new assignments that are due, each with what led to it."""
        found = []
        if self.membership.complete:
            for key, assigner in self._assigners.items():
                if assigner.wake_at is None or now < assigner.wake_at:
                    continue  # who takes part is not looked at more often than it counts
                before, members = assigner.members, self.membership.members(key)
                left = {one.worker_id for one in before if self._is_gone(key, one.worker_id)}
                assignment = assigner.poll(members, now, left)
                if assignment is not None:
                    found.append((assignment, self.membership.trigger(key, before, members)))
        return found

    def _is_gone(self, key: str, worker_id: str) -> bool:
        """Whether a former member has left, or others share out without it: it is not only late to be back."""
        nodes = self.membership.nodes
        node = nodes.get(names.node_key(key, worker_id), NodeRecord)
        if node is None or not self.membership.ended(node.lease):
            return self.membership.has_left(key, worker_id)
        return is_given_up(nodes, node.lease, self._assigners)
