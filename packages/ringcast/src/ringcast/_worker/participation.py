"""Whether a worker takes part in each of its keys: it leaves one whose events it can't get to other workers."""

from __future__ import annotations

from collections.abc import Mapping

from ringcast_wire import EventLog

from ringcast._common.stats import Trigger
from ringcast._coordination.migrating import MigratingStore
from ringcast._coordination.peer import Coordinator
from ringcast._protocol.assignment import Assignment
from ringcast._worker.migrating import MigratingKeys
from ringcast._worker.session import KeySession


class Participation:
    """Passes troubles on between sessions and coordinator. ``coordinator``: ``None`` as long as there is none."""

    def __init__(self, worker_id: str, sessions: Mapping[str, KeySession], log: EventLog) -> None:
        self.coordinator: Coordinator | None = None
        self.migrating: MigratingKeys | None = None
        """Of a store that may migrate: what is told of assignments in place of the sessions,"""
        self.store: MigratingStore | None = None
        """and what follows its steps."""
        self.assignments: dict[str, Assignment] = {}
        """The newest one of each key, by the peer rule."""
        self._worker_id = worker_id
        self._sessions = sessions
        self._log = log

    def assign(self, assignment: Assignment, trigger: Trigger) -> None:
        """The partitions of a key are assigned in another way."""
        key, partitions = assignment.key, assignment.of(self._worker_id)
        self.assignments[key] = assignment
        if self.migrating is None or self.store is None:
            self._sessions[key].ownership.assign(partitions, trigger)
        else:
            self.migrating.assign(key, partitions, trigger)
            self.store.assigned(assignment)

    def enrolled(self, key: str) -> None:
        """The registration of a key was written."""
        if self.store is not None:
            self.store.enrolled(key)

    def registered(self, key: str, reason: str) -> None:
        """A key is registered, or it can't be, for a reason."""
        vitals = self._sessions[key].vitals
        if not reason:
            vitals.works("registration")
            return
        if not vitals.failing_because:
            self._log.warning("registration.failed", key=key, error=reason)
        vitals.fails("registration", reason)

    def joining(self, key: str) -> None:
        """A key is registered, and its partitions are others' until several changes are made together."""
        if not self._sessions[key].vitals.joining:
            self._log.info("registration.joining", key=key)
            self._sessions[key].vitals.joins()

    def leases_unreadable(self, reason: str) -> None:
        """Leases can't be read, for a reason: the end of another worker would not be noticed. Or they can again."""
        for session in self._sessions.values():
            if not reason:
                session.vitals.works("leases")
            elif session.vitals.assigned:  # else the start waits for it, up to its time-out
                session.vitals.fails("leases", reason)

    def undelivered(self, subjects: frozenset[str], reason: str, *, lost: bool) -> None:
        """The events of these subjects can't be had: the owner of their partitions would miss every change.

        ``lost``: whether they came until now, and do not any more.
        """
        for key, session in self._sessions.items():
            is_news = lost and session.subjects.lose(subjects)
            if not session.subjects.lacks(subjects, withdrawn=session.vitals.withdrawn):
                continue
            session.vitals.fails("events", reason)
            if session.vitals.withdrawn:
                continue
            if self.coordinator is not None and self.coordinator.withdraw(key):
                self._log.error("key.left_to_others", key=key, error=reason)
                session.ownership.withdraw(subjects)
            elif session.ownership.do_without(subjects) or is_news:
                self._log.error("key.kept_without_events", key=key, error=reason)

    def come_back(self, key: str) -> None:
        """The events can be had again, or no other worker is left."""
        if self.coordinator is not None:
            self._log.info("key.rejoined", key=key)
            self._sessions[key].vitals.withdrawn = False
            self.coordinator.come_back(key)

    def troubles(self) -> list[str]:
        """What fails, by key."""
        return [
            f"key {key}: {why}" for key, session in self._sessions.items() if (why := session.vitals.failing_because)
        ]
