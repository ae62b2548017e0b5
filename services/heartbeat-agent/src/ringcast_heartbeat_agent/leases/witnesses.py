"""Sessions of exclusive ownership: the agent says which are over because their process has ended, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ringcast.hosting import HostBus, HostWitness
from ringcast_wire import EventLog, limits

from ringcast_heartbeat_agent.leases.exits import ProcessEnd
from ringcast_heartbeat_agent.leases.registry import Registration

log = EventLog(logging.getLogger(__name__))

LINGER_S: Final = 30.0
"""How long the end of a process is waited for after its stream has ended: a process that lives registers again."""


class _Place(NamedTuple):
    store: str
    worker_id: str
    process: tuple[str, int]


@dataclass(slots=True)
class _Watched:
    registration: Registration
    end: ProcessEnd
    timer: asyncio.TimerHandle | None = None


class Witnesses:
    """Processes of registered workers whose ends the kernel will tell of; at most twice as many as may register.

    ``exited`` is called with the store, the worker id and the incarnation of each that has ended.
    """

    def __init__(
        self, bus: HostBus, most: int, tasks: asyncio.TaskGroup, exited: Callable[[str, str, str], None]
    ) -> None:
        self.ended = 0
        """Processes that were seen to end."""
        self.reports = 0
        """Sessions that were reported by processes whose end will be known."""
        self._exited = exited
        self._bus = bus
        self._most = 2 * most
        self._tasks = tasks
        self._stores: dict[str, tuple[HostWitness, asyncio.Task[None]]] = {}
        self._watched: dict[_Place, _Watched] = {}

    def watch(self, registration: Registration, end: ProcessEnd | None) -> bool:
        """Waits for the end of a process that registers; returns whether it will be known."""
        place = _place(registration)
        if (before := self._watched.pop(place, None)) is not None:
            _close(before)
        if end is not None and len(self._watched) >= self._most:
            log.warning("worker.exit_unwatched", worker_id=registration.worker_id, limit=self._most)
            end.close()
            end = None
        if end is None:
            self._forget(place)
            return False
        self._watched[place] = _Watched(registration, end)
        end.on_end(lambda: self._ended(place))
        return True

    def watches(self, registration: Registration) -> bool:
        """Whether the end of a process will be known."""
        return _place(registration) in self._watched

    def reported(self, registration: Registration, key: str, first: int, last: int) -> None:
        """A process that is watched reports its sessions of a key; what others report is passed over."""
        place = _place(registration)
        if place in self._watched and (witness := self._of(registration.store)) is not None:
            self.reports += 1
            witness.reported(place, registration.worker_id, key, first, last)

    def stream_ended(self, registration: Registration) -> None:
        """Its stream has ended, and another one may come. Its end is waited for, but not for ever."""
        place = _place(registration)
        watched = self._watched.get(place)
        if watched is not None and watched.registration is registration and watched.timer is None:
            watched.timer = asyncio.get_running_loop().call_later(LINGER_S, self._drop, place)

    def left(self, registration: Registration) -> None:
        """The worker has ended in order: its sessions are its own affair."""
        self._drop(_place(registration))

    def stop(self) -> None:
        """Looks after no process any more."""
        for watched in self._watched.values():
            _close(watched)
        self._watched.clear()
        for _, task in self._stores.values():
            task.cancel()

    def _of(self, store: str) -> HostWitness | None:
        if store not in self._stores:
            if len(self._stores) >= limits.MAX_STORES:
                self._end_unused()
            if len(self._stores) >= limits.MAX_STORES:
                return None  # its workers' ends are proved by their silence
            witness = self._bus.witness(store)
            self._stores[store] = witness, self._tasks.create_task(witness.run(), name=f"witness-{store}")
        return self._stores[store][0]

    def _end_unused(self) -> None:
        used = {place.store for place in self._watched}
        for store in self._stores.keys() - used:
            self._stores.pop(store)[1].cancel()

    def _ended(self, place: _Place) -> None:
        watched = self._watched.pop(place, None)
        if watched is None:
            return
        _close(watched)
        self.ended += 1
        log.info("worker.exited", worker_id=place.worker_id, store=place.store, pid=watched.registration.pid)
        if place.store in self._stores:
            self._stores[place.store][0].ended(place)
        self._exited(place.store, place.worker_id, place.process[0])

    def _drop(self, place: _Place) -> None:
        if (watched := self._watched.pop(place, None)) is not None:
            _close(watched)
            self._forget(place)

    def _forget(self, place: _Place) -> None:
        """The process may live: nothing is said of it when it ends."""
        if place.store in self._stores:
            self._stores[place.store][0].forget(place)


def _place(registration: Registration) -> _Place:
    return _Place(registration.store, registration.worker_id, registration.process)


def _close(watched: _Watched) -> None:
    watched.end.close()
    if watched.timer is not None:
        watched.timer.cancel()
