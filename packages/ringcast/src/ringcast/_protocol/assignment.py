"""The owner of each partition, computed by every worker for itself from the members that it sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from ringcast_wire import NodeRecord, StoreSettings, assign, names

from ringcast._common.stats import Trigger
from ringcast._protocol.given_up import is_given_up
from ringcast._protocol.membership import Member, Membership


@dataclass(frozen=True, slots=True)
class Assignment:
    """An assignment of all partitions of a key: ``owners[p]`` is the worker id of partition ``p``."""

    key: str
    epoch: int
    owners: tuple[str, ...]

    def of(self, worker_id: str) -> frozenset[int]:
        """The partitions of one worker."""
        return frozenset(number for number, owner in enumerate(self.owners) if owner == worker_id)


def owners(settings: StoreSettings, members: Sequence[Member]) -> tuple[str, ...]:
    """The owner of each partition; ``members`` must not be empty. The same for every worker that sees the same."""
    return assign(settings, {member.worker_id: member.slot for member in members})


class Assignor:
    """Turns changes of the membership of one key into assignments with rising epochs.

    Changes settle for ``settle_s``, counted from the first, so that many at once lead to one assignment. After the
    connection was lost, every lease may have ended and be taken again one by one: for ``grace_s`` a membership that
    lacks a former member is not acted upon, unless that one is known to have left. A worker that does not see itself
    keeps what it has.
    """

    def __init__(
        self, key: str, worker_id: str, settings: StoreSettings, *, settle_s: float = 0.05, grace_s: float = 5.0
    ) -> None:
        self._key = key
        self._worker_id = worker_id
        self._settings = settings
        self._settle_s = settle_s
        self._grace_s = grace_s
        self._due: float | None = None
        self._grace_until: float | None = None
        self._members: tuple[Member, ...] = ()
        self._epoch = 0
        self.current: Assignment | None = None

    @property
    def members(self) -> tuple[Member, ...]:
        """The members that the current assignment was computed from."""
        return self._members

    def changed(self, now: float) -> None:
        """The membership may have changed."""
        due = now + self._settle_s
        self._due = due if self._due is None else min(self._due, due)

    def reconnected(self, now: float) -> None:
        """The connection was lost and is back."""
        if self._members:
            self._grace_until = now + self._grace_s
        self.changed(now)

    def start_over(self) -> None:
        """The worker owns nothing any more: what is assigned next is news even if it is the same."""
        self._members, self.current = (), None

    @property
    def wake_at(self) -> float | None:
        """When to poll next."""
        return self._due

    def poll(self, members: tuple[Member, ...], now: float, left: Set[str] = frozenset()) -> Assignment | None:
        """The new assignment, if one is due and differs from the last. ``left``: the workers that are known to have."""
        if self._due is None or now < self._due:
            return None
        if self._grace_until is not None and now < self._grace_until and self._misses_one(members, left):
            self._due = self._grace_until
            return None
        self._due = None
        self._grace_until = None
        if all(member.worker_id != self._worker_id for member in members):
            return None
        if self.current is not None and members == self._members:
            return None
        self._members = members
        found = owners(self._settings, members)
        if self.current is not None and self.current.owners == found:
            return None
        self._epoch += 1
        self.current = Assignment(self._key, self._epoch, found)
        return self.current

    def _misses_one(self, members: Sequence[Member], left: Set[str]) -> bool:
        """Whether a former member is not there and may come back; one that is back with another slot is there."""
        return not {member.worker_id for member in members} | left >= {member.worker_id for member in self._members}


class GroupMembership:
    """The membership that a worker sees, and an assignor for each key. Nothing is decided on a partial view."""

    def __init__(
        self, keys: Iterable[str], worker_id: str, settings: StoreSettings, *, settle_s: float, grace_s: float
    ) -> None:
        self.membership = Membership()
        self._assignors = {key: Assignor(key, worker_id, settings, settle_s=settle_s, grace_s=grace_s) for key in keys}

    def changed(self, now: float, key: str | None = None) -> None:
        """The members of a key, or of any, may be others now."""
        for name, assignor in self._assignors.items():
            if key in (None, name):
                assignor.changed(now)

    def start_over(self, key: str, now: float) -> None:
        """The worker takes part in a key again, with nothing."""
        self._assignors[key].start_over()
        self._assignors[key].changed(now)

    def reconnected(self, now: float) -> None:
        """The connection was lost and is back."""
        for assignor in self._assignors.values():
            assignor.reconnected(now)

    @property
    def wake_at(self) -> float | None:
        """When to poll next. As long as the view is not complete, time alone changes nothing."""
        if not self.membership.complete:
            return None
        return min((at for assignor in self._assignors.values() if (at := assignor.wake_at) is not None), default=None)

    def poll(self, now: float) -> list[tuple[Assignment, Trigger]]:
        """The new assignments that are due, each with what led to it."""
        found = []
        if self.membership.complete:
            for key, assignor in self._assignors.items():
                if assignor.wake_at is None or now < assignor.wake_at:
                    continue  # the members are not read more often than an assignment can follow
                before, members = assignor.members, self.membership.members(key)
                left = {one.worker_id for one in before if self._is_gone(key, one.worker_id)}
                assignment = assignor.poll(members, now, left)
                if assignment is not None:
                    found.append((assignment, self.membership.trigger(key, before, members)))
        return found

    def _is_gone(self, key: str, worker_id: str) -> bool:
        """Whether a former member has left, or others have assigned its partitions: it is not only late to be back."""
        nodes = self.membership.nodes
        node = nodes.get(names.node_key(key, worker_id), NodeRecord)
        if node is None or not self.membership.ended(node.lease):
            return self.membership.has_left(key, worker_id)
        return is_given_up(nodes, node.lease, self._assignors)
