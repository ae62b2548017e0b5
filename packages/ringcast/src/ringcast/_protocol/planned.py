"""Planned changes: when a worker that comes, or goes of its own will, does so.

The record of a worker that joins says so, and the worker owns nothing at first; one that leaves has that in its record
and goes on serving. Each waits until no other has joined or announced its leave for a while, and all act when the first
does. So partitions move once for several workers. Only those that join or leave wait: what the others see is a
record whose worker takes part, or none, and they act upon that at once, as upon a death.
"""

from __future__ import annotations

from typing import Final

from ringcast_wire import NodePhase, NodeRecord, names

from ringcast._protocol.membership import Membership, Others

MOST: Final = 5.0
"""No worker waits for more times the stabilisation window, however many others come and go."""
COLD: Final = 0.5
"""As long as no worker owns anything, one that joins waits for so many times the window,"""
COLD_MOST: Final = 3.0
"""and for at most so many times it, however many come."""


class PlannedChange:
    """The phase that this worker's record of one key is to say, and until when.

    ``phase`` is ``None`` before :meth:`join`. ``over``: a worker that leaves may give its partitions up now.
    """

    def __init__(self, key: str, worker_id: str, membership: Membership, stabilisation_s: float) -> None:
        self.phase: NodePhase | None = None
        self.over = False
        self.slot: int | None = None
        """The slot that a worker which takes part now is to take over from one that has left, if there is one."""
        self.wake_at: float | None = None
        """When to poll next, if nothing changes before."""
        self.waits_for_share = False
        """Whether this worker joins, and others own the partitions until it does."""
        self._key = key
        self._worker_id = worker_id
        self._membership = membership
        self._window_s = stabilisation_s
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        self._opened_at = self._quiet_since = now
        self._active: frozenset[str] = frozenset()
        self._joining: set[str] = set()
        self._leaving: dict[str, int] = {}
        """The slots of workers that leave, or have left since this one waits."""
        self._called = False
        """Whether another planned change has come about, so that this one does too."""

    def join(self, now: float) -> None:
        """Decides how to come, before the record is written for the first time.

        A worker that did not leave before it ended may still be counted as a member, with partitions that no worker
        serves now: it does not wait where there are others.
        """
        if self.phase is not None:
            return
        record = self._membership.nodes.get(names.node_key(self._key, self._worker_id), NodeRecord)
        others = self._membership.others(self._key, self._worker_id)
        is_back = record is not None and record.phase is NodePhase.ACTIVE and others.serve
        if is_back or not self._window_s:
            self.phase = NodePhase.ACTIVE
        else:
            self.phase = NodePhase.JOINING
            self._begin(now)

    def leave(self, now: float) -> None:
        """The worker wants to go."""
        if self.phase is NodePhase.ACTIVE and self._window_s:
            self.phase = NodePhase.LEAVING
            self._begin(now)
        elif self.phase is not NodePhase.LEAVING:
            self.over = True
        self.wake_at = now

    def poll(self, now: float) -> None:
        """Has the change come about if it is time."""
        self.wake_at, self.waits_for_share = None, False
        if self.over or self.phase in (None, NodePhase.ACTIVE):
            return
        others = self._membership.others(self._key, self._worker_id)
        self._note(others, now)
        due = self._due(others)
        if now < due:
            self.wake_at = due
            self.waits_for_share = self.phase is NodePhase.JOINING and others.serve
        elif self.phase is NodePhase.JOINING:
            self.phase, self.slot = NodePhase.ACTIVE, self._inherited(others)
        else:
            self.over = True

    def _note(self, others: Others, now: float) -> None:
        news = (others.joining - self._joining) | (others.leaving.keys() - self._leaving.keys())
        if news:
            self._quiet_since = now
        joined, left = self._joining & others.active, self._leaving.keys() - others.leaving.keys()
        gone = self._active - others.all
        self._called = self._called or bool(joined or left or (gone and not others.serve))
        self._active = others.active
        self._joining |= others.joining
        self._leaving.update(others.leaving)

    def _due(self, others: Others) -> float:
        """When this change comes about, if all stays as it is. Of workers that come and go, those that go are first."""
        window_s, joins = self._window_s, self.phase is NodePhase.JOINING
        if self._called or not (joins or others.all):
            return self._opened_at
        if joins and not others.serve:
            return min(self._opened_at + COLD_MOST * window_s, self._quiet_since + COLD * window_s)
        latest = self._opened_at + MOST * window_s
        return latest if joins and others.leaving else min(latest, self._quiet_since + window_s)

    def _inherited(self, others: Others) -> int | None:
        """The slot of a worker that has left meanwhile, so that its partitions move here and no other does.

        Of several that join, each takes another one, by their order.
        """
        slots = sorted(slot for worker_id, slot in self._leaving.items() if worker_id not in others.all)
        joining = sorted({worker_id for worker_id in self._joining if worker_id in others.all} | {self._worker_id})
        place = joining.index(self._worker_id)
        return slots[place] if place < len(slots) else None
