"""The coordinator of a store of peers that may migrate: that of the peers, and beside it what follows the migration."""

from __future__ import annotations

import asyncio

from ringcast_wire import EventLog, RingcastError

from ringcast._bus.bus import TRANSIENT
from ringcast._common.lasting import lasting
from ringcast._coordination.migrating import MigratingStore
from ringcast._coordination.peer import PeerCoordinator


class MigratingPeers:
    """A :class:`Coordinator`. The peers share the partitions out all the time, also while a table names the owners."""

    def __init__(self, peers: PeerCoordinator, store: MigratingStore, log: EventLog) -> None:
        self._peers = peers
        self._store = store
        self._log = log

    async def run(self) -> None:
        """Takes part until cancelled; raises as both do."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lasting("shares partitions out among peers", self._peers.run))
            tasks.create_task(lasting("follows the migration of the store", self._store.run))

    def give_up(self, key: str) -> None:
        """Takes no part in a key any more."""
        self._peers.give_up(key)
        self._store.give_up(key)

    def withdraw(self, key: str) -> bool:
        """Takes no part in a key, until :meth:`come_back`; returns whether another worker has to stay.

        Where the table names the owners its leader stays, and else the worker that the peers leave it to.
        """
        sticky = self._store.coordinator
        if sticky is None or not self._store.guards(key):
            if not self._peers.withdraw(key):
                return False
        elif sticky.withdraw(key):
            self._peers.withdraw(key)
        else:
            return False
        self._store.withdraw(key)
        return True

    def come_back(self, key: str) -> None:
        """Takes part in a key again, with nothing at first."""
        self._peers.come_back(key)
        self._store.come_back(key)

    def announce(self) -> None:
        """Writes the records of the peers again, soon."""
        self._peers.announce()

    async def give_notice(self) -> None:
        """Has others take the partitions over, and serves until they have."""
        sticky = self._store.coordinator
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._peers.give_notice())
            if sticky is not None and self._store.guards_any:
                tasks.create_task(sticky.give_notice())

    async def leave(self) -> None:
        """Says that no call of this worker runs, and gives its registration up: to be called once that is so."""
        try:
            await self._store.leave()
        except (RingcastError, *TRANSIENT) as error:
            self._log.warning("release.unconfirmed", error=error)
        await self._peers.leave()
