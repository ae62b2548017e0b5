"""The records of a host's workers in NATS, store by store, as long as workers of the store are registered."""

from __future__ import annotations

import asyncio
from typing import Final

from ringcast import LimitExceededError
from ringcast.hosting import HostBus, HostRecords
from ringcast_wire import limits

from ringcast_heartbeat_agent.leases.registry import WorkerRegistry

UNUSED_S: Final = 30.0
"""After so long without a worker of a store its records are watched no longer."""


class StoreRecords:
    """Watches the records of every store that has workers, and deletes those of dead workers."""

    def __init__(self, bus: HostBus, registry: WorkerRegistry, tasks: asyncio.TaskGroup) -> None:
        self._bus = bus
        self._registry = registry
        self._tasks = tasks
        self._records: dict[str, HostRecords] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._unused_since: dict[str, float] = {}
        self._deleted = 0

    def __contains__(self, store: str) -> bool:
        return store in self._records

    @property
    def deleted(self) -> int:
        """Records of dead workers that were deleted."""
        return self._deleted + sum(records.deleted for records in list(self._records.values()))

    def of(self, store: str, lease_id: str) -> HostRecords:
        """The records of a store, which are watched from now on.

        Raises:
            LimitExceededError: the agent has workers of too many other stores.
        """
        if (found := self._records.get(store)) is not None:
            return found
        if len(self._records) >= limits.MAX_STORES:
            raise LimitExceededError(
                f"the agent has workers of {len(self._records)} stores: at most {limits.MAX_STORES} are allowed"
            )
        records = HostRecords(self._bus, store, lease_id, lambda: self._registry.living(store))
        self._records[store] = records
        self._running[store] = self._tasks.create_task(records.run(), name=f"records-{store}")
        return records

    def ended(self, store: str, worker_id: str, incarnation: str) -> None:
        """A process was seen to end that takes part in a store, or did."""
        if (records := self._records.get(store)) is not None:
            records.ended(worker_id, incarnation)

    def look(self) -> None:
        """Registrations have changed: compares the records of every store with them."""
        for records in self._records.values():
            records.look()

    def end_unused(self, now: float) -> None:
        """Stops watching stores that have had no registered worker for a while."""
        used = self._registry.stores
        for store in self._records.keys() - used:
            if now - self._unused_since.setdefault(store, now) >= UNUSED_S and not self._registry.waiting:
                self._end(store)
        for store in self._unused_since.keys() & used:
            del self._unused_since[store]

    def stop(self) -> None:
        """Stops watching all stores. No record is deleted."""
        for task in self._running.values():
            task.cancel()

    def _end(self, store: str) -> None:
        self._deleted += self._records.pop(store).deleted
        del self._unused_since[store]
        self._running.pop(store).cancel()
