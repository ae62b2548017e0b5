"""The lease of a host: taken or taken over, kept, and left to the next agent."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Final, Protocol

from ringcast import UnavailableError
from ringcast.hosting import HostBus, HostLease
from ringcast_wire import Backoff, EventLog

from ringcast_heartbeat_agent.leases.registry import WorkerRegistry
from ringcast_heartbeat_agent.leases.state import SocketPlace, State

log = EventLog(logging.getLogger(__name__))

_CHECK_S: Final = 1.0
"""Least time between two looks at the lease that workers ask for."""


class LeaseObserver(Protocol):
    """What a :class:`KeptLease` reports to."""

    def lease_taken(self) -> None:
        """The host has its lease, and the registry the workers of the agent before."""

    def lease_lost(self) -> None:
        """The lease was lost and granted again."""


class KeptLease:
    """The lease of one host, and the file that leaves it to the next agent with the registered workers."""

    def __init__(
        self, bus: HostBus, place: SocketPlace, agent_id: str, registry: WorkerRegistry, observer: LeaseObserver
    ) -> None:
        self._bus = bus
        self._place = place
        self._agent_id = agent_id
        self._registry = registry
        self._observer = observer
        self._state: State | None = None
        self._lease: HostLease | None = None
        self._dirty = False
        self._checked_at = 0.0

    @property
    def id(self) -> str:
        """The lease, or nothing as long as there is none."""
        return self._state.lease if self._state is not None else ""

    @property
    def held(self) -> bool:
        """Whether the others count this host as alive, as far as it can tell."""
        return self._lease is not None and self._lease.held

    @property
    def losses(self) -> int:
        """How often the lease was lost and taken again."""
        return self._lease.losses if self._lease is not None else 0

    @property
    def failed_writes(self) -> int:
        """How many writes of it have failed."""
        return self._lease.failed_writes if self._lease is not None else 0

    async def keep(self, tried: asyncio.Event) -> None:
        """Takes the lease and refreshes it until cancelled. Sets ``tried`` once it has it, or has to wait for it."""
        backoff = Backoff(random.random, first_s=0.2, most_s=5.0)
        while True:
            try:
                lease = await self._take()
                break
            except UnavailableError as error:
                if not tried.is_set():
                    log.warning("host_lease.unavailable", error=error)
                tried.set()
                await asyncio.sleep(backoff.next_s())
        log.info("host_lease.granted", lease=lease.id, socket=self._place.path)
        tried.set()
        await lease.keep_alive()

    def check(self) -> None:
        """A worker sees that the lease is gone: reads the lease, at most once a second."""
        if (now := time.monotonic()) - self._checked_at >= _CHECK_S:
            self._checked_at = now
            if self._lease is not None:
                self._lease.check()

    def changed(self) -> None:
        """Registrations have changed: :meth:`save` is to write them."""
        self._dirty = True

    def save(self) -> None:
        """Leaves the lease and the registrations to the next agent, if they have changed."""
        if self._dirty:
            self._write()

    def detach(self) -> None:
        """The lease is left as it is."""
        if self._lease is not None:
            self._lease.detach()

    async def _take(self) -> HostLease:
        """Goes on with the lease of the agent before this one if it lives, else takes a new one."""
        found = await asyncio.to_thread(self._place.read)
        if found is not None and not await HostLease.lives(self._bus, found.lease, found.incarnation):
            found = None
        state = found if found is not None else State.fresh(self._agent_id)
        lease = HostLease(self._bus, state.lease, state.incarnation, self._observer.lease_lost)
        await lease.grant()
        if found is not None:
            self._registry.restore(list(found.registrations), found.users)
        self._state, self._lease = state, lease
        self._observer.lease_taken()
        self._write()
        return lease

    def _write(self) -> None:
        if self._state is None:
            return
        self._dirty = False
        registrations = tuple(self._registry.registrations)
        self._state = State(
            lease=self.id,
            incarnation=self._state.incarnation,
            registrations=registrations,
            users=self._registry.users,
        )
        try:
            self._place.write(self._state)
        except OSError as error:
            self._dirty = True
            log.warning("host_lease.state_unwritable", error=error)
