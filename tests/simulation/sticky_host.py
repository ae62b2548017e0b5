"""A host of the simulation of exclusive ownership: its agent, which sees processes end, and may be gone or cut off."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Protocol

from ringcast._protocol.sticky.ownership import Ownership
from ringcast._protocol.sticky.witness import Witness
from ringcast_wire import names
from ringcast_wire.ended_sessions import Span, decode_gone, encode_gone

from tests.simulation.sticky_machines import Machines
from tests.simulation.sticky_store import Store

_HOP_S = 0.002
_RETRY_S = 0.3


class Worker(Protocol):
    """A process of this host."""

    worker_id: str
    ownership: Ownership
    is_alive: bool
    paused: bool

    def __hash__(self) -> int: ...


class HostWorld(Protocol):
    """The world, as far as a host needs it."""

    draw: Random
    machines: Machines
    now: float
    store: Store
    faulty: bool

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Does something later."""

    def changed(self, name: str, entry: tuple[int, bytes]) -> None:
        """A record was written."""


class Host:
    """One host, and the agent that runs there now."""

    def __init__(self, world: HostWorld, name: str, key: str) -> None:
        self.name = name
        self.seen = 0
        """Processes that were seen to end."""
        self._world, self._key = world, key
        self._record = names.gone_key(key, name)
        self._witness: Witness = world.machines.witness()
        self._reported: dict[Worker, tuple[int, int]] = {}
        self._cut_until = -math.inf
        self._writes = False

    def hears(self, worker: Worker) -> None:
        """A worker reports what it has not, and does so again on a new connection."""
        first, last = sessions = worker.ownership.sessions
        if first and self._reported.get(worker) != sessions:
            self._reported[worker] = sessions
            self._world.after(_HOP_S, lambda: self._report(worker, first, last))

    def _report(self, worker: Worker, first: int, last: int) -> None:
        if worker in self._reported and worker.is_alive:
            self._witness.reported(worker, worker.worker_id, self._key, Span(first, last))

    def loses(self, worker: Worker) -> None:
        """The connection of a worker ends, though its process may live."""
        if self._reported.pop(worker, None) is not None:
            self._witness.forget(worker)
            self._write()

    def restarts(self) -> None:
        """Another agent takes the place of this one: it knows nothing."""
        self._witness, self._reported = self._world.machines.witness(), {}

    def cut(self, until: float) -> None:
        self._cut_until = until

    def sees_end(self, worker: Worker) -> None:
        """The process has ended: the kernel says so."""
        self._world.after(_HOP_S, lambda: self._end(worker))

    def _end(self, worker: Worker) -> None:
        self._reported.pop(worker, None)
        if self._witness.ended(worker):
            self.seen += 1
            self._write()

    def _write(self) -> None:
        """Has the bucket say what is known; tries for as long as it has to."""
        gone = self._witness.record(self._key)
        revision, value = self._world.store.nodes.get(self._record, (0, b""))
        if self._writes or not gone or (value and decode_gone(value, revision) == gone):
            return
        self._writes = True
        is_lost = self._world.now < self._cut_until or (self._world.faulty and self._world.draw.random() < 0.1)
        self._world.after(_RETRY_S if is_lost else self._world.draw.uniform(0.001, 0.04), lambda: self._put(is_lost))

    def _put(self, is_lost: bool) -> None:
        self._writes = False
        if not is_lost:
            value = encode_gone(self._witness.record(self._key))
            last = self._world.store.nodes.get(self._record, (0, b""))[0]
            revision = self._world.store.put(self._record, value, last)
            self._world.changed(self._record, (revision, value))
        self._write()
