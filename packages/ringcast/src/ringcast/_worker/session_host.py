"""Connects the sessions of a worker with what the worker consists of once it has joined."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from ringcast_wire import ErrorCode, EventLog, RingcastError

from ringcast._worker.demand import Demand
from ringcast._worker.joined import JoinedWorker
from ringcast._worker.session import KeySession


class SessionHost:
    """A :class:`KeyHost`. Sessions with rows from the cache exist before the worker has ``joined``."""

    def __init__(self, sessions: Mapping[str, KeySession], stopping: asyncio.Event, log: EventLog) -> None:
        self.joined: JoinedWorker | None = None
        self.deletion: RingcastError | None = None
        """Why the worker ends: all that it works on is deleted."""
        self.demand = Demand(sessions)
        self._sessions = sessions
        self._stopping = stopping
        self._log = log

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task that the worker owns."""
        assert self.joined is not None
        self.joined.tasks.spawn(work)

    def want(self, key: str, subjects: frozenset[str]) -> None:
        """Wants the events of exactly these subjects of a key from now on."""
        if self.joined is not None:
            self.joined.consumers.want(key, subjects)

    def suspect_consumer(self, subject: str) -> None:
        """Events of this subject were not delivered: the filters of its consumer are checked."""
        if self.joined is not None:
            self.joined.consumers.suspect_consumer(subject)

    def check_store(self) -> None:
        """The store may have been created again: its settings are compared."""
        if self.joined is not None:
            self.joined.store_check.look_soon()

    def pressure_changed(self) -> None:
        """A key has room for more events now, or none any more."""
        self.demand.look()

    def recovered(self, key: str) -> None:
        """The events of a key that was left to others can be had again."""
        if self.joined is not None:
            self.joined.participation.come_back(key)

    def deleted(self, key: str, error: RingcastError) -> None:
        """The service says that the store, or this key of it, is deleted.

        A worker of other keys goes on with them. Nothing is handed over as a deletion of rows: partitions are revoked.
        """
        session = self._sessions[key]
        if self._stopping.is_set() or session.ownership.deletion is not None:
            return
        if error.code is ErrorCode.KEY_DELETED:
            self._log.error("key.given_up", key=key, error=error)
            session.give_up(error)
            if self.joined is not None and self.joined.coordinator is not None:
                self.joined.coordinator.give_up(key)
            if any(each.ownership.deletion is None for each in self._sessions.values()):
                return
        else:
            self._log.error("worker.store_deleted", error=error)
        self.deletion = error
        self._stopping.set()
