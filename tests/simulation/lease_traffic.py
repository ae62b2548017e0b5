"""How many messages idle workers get for their leases, and how soon all know of a death: a store among many.

Run it for other sizes: ``python -m tests.simulation.lease_traffic STORES WORKERS``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ringcast._protocol.assignment import Assignment
from ringcast._protocol.membership import Entry
from ringcast_wire import LeaseRecord, NodeRecord, SlotClaim, StoreSettings, encode_record, limits, names

from tests.simulation.broker import Broker, Bucket
from tests.simulation.coordination import Coordinator, LeaseHolder
from tests.simulation.engine import Process, Scheduler, Steps
from tests.simulation.network import REQUEST_TIMEOUT_S, Network
from tests.simulation.worker import WorkerSettings

STORE: Final = "s0"
IDLE_S: Final = 30.0


class CountingBroker(Broker):
    """Counts what goes out to workers: acknowledgements, answers, and what their watches hear."""

    messages = 0

    def read(self, name: str, keys: Iterable[str]) -> dict[str, tuple[Entry, float]]:
        """As a server: a message for each lease, and one that ends the answer."""
        found = super().read(name, keys)
        self.messages += len(found) + 1
        return found

    def put(self, name: str, key: str, value: bytes | None, last: int) -> int:
        """As a server: the acknowledgement, and one to each watch."""
        revision = super().put(name, key, value, last)
        self.messages += 1 + sum(key.startswith(watcher.prefixes) for watcher in self.buckets[name].watchers)
        return revision


class IdleWorker(Process):
    """The part of a worker that takes part: its lease, what it reads of others, and what it makes of that."""

    def __init__(self, scheduler: Scheduler, random: Random, broker: Broker, number: int) -> None:
        super().__init__(scheduler, f"w{number}", random)
        self.worker_id = self.name
        self.settings = WorkerSettings(store=STORE, keys=("k",), full=False)
        self.broker = broker
        self.link = broker.link(self)
        self._coordinator: Any = None
        self._lease: Any = LeaseHolder(self, lambda: None)  # type: ignore[arg-type]

    def start(self) -> None:
        """Takes the lease and takes part."""
        self.link.connect()
        self.spawn(self._run())

    def _run(self) -> Steps:
        yield self.random.uniform(0.0, limits.LEASE_REFRESH_S)  # workers do not beat in time
        yield from self._lease.take()
        self.spawn(self._lease.run())
        self._coordinator = Coordinator(self, StoreSettings(partition_count=1), self._lease)  # type: ignore[arg-type]
        self._coordinator.start()

    def members(self) -> set[str]:
        """Who takes part, as far as it knows."""
        found = self._coordinator.membership.members("k") if self._coordinator is not None else ()
        return {member.worker_id for member in found}

    def assign(self, assignment: Assignment) -> None:
        """There is no list to share out."""

    def note(self, *_: object) -> None:
        """Nothing is judged here."""

    def get(self, bucket: str, key: str, within_s: float = REQUEST_TIMEOUT_S) -> Steps:
        """As :meth:`Worker.get`."""
        return self.link.request(self.broker.get, bucket, key, within_s=within_s)

    def put(self, bucket: str, key: str, value: bytes | None, last: int, within_s: float = REQUEST_TIMEOUT_S) -> Steps:
        """As :meth:`Worker.put`."""
        return self.link.request(self.broker.put, bucket, key, value, last, within_s=within_s)


@dataclass(frozen=True)
class Traffic:
    """``messages_per_s``: to each idle worker of the store; ``taken_over_s``: when the last one knew of the deaths."""

    workers: int
    messages_per_s: float
    taken_over_s: float


def measure(stores: int, workers: int, *, deaths: int = 1, seed: int = 1) -> Traffic:
    """Lets the workers of one store be idle, beside the leases of the others, and then some of them die at once."""
    random = Random(seed)
    scheduler = Scheduler(None)
    broker = CountingBroker(scheduler, Network(scheduler, random))
    ttl_s = float(limits.LEASE_TTL_S)
    broker.buckets = {names.LEASES_BUCKET: Bucket(ttl_s, ttl_s), names.nodes_bucket(STORE): Bucket(None, ttl_s)}
    for store in range(1, stores):
        for number in range(workers):
            scheduler.after(
                random.uniform(0.0, limits.LEASE_REFRESH_S), _refresh, scheduler, broker, f"x{store}-{number}"
            )
    fleet = [IdleWorker(scheduler, random, broker, number) for number in range(workers)]
    for worker in fleet:
        _record(broker, worker)
        worker.start()
    _run(scheduler, 20.0)
    assert all(len(worker.members()) == workers for worker in fleet)
    before = broker.messages
    _run(scheduler, IDLE_S)
    # An answer to a refresh of another store's worker goes there.
    others = (stores - 1) * workers * IDLE_S / limits.LEASE_REFRESH_S
    idle = (broker.messages - before - others) / IDLE_S / workers
    dead, alive = fleet[:deaths], fleet[deaths:]
    for worker in dead:
        worker.crash()
        worker.link.cut()
    died_at = scheduler.now
    left = {worker.name for worker in alive}
    while any(worker.members() != left for worker in alive) and scheduler.now < died_at + 600.0:
        _run(scheduler, 0.1)
    return Traffic(workers, idle, scheduler.now - died_at)


def _run(scheduler: Scheduler, for_s: float) -> None:
    """Lets time pass. The bound on steps is meant for one seed of the simulation, not for thousands of workers."""
    end = scheduler.now + for_s
    while scheduler.now < end:
        scheduler.fired = 0
        scheduler.run_until(min(end, scheduler.now + 0.5))


def _record(broker: Broker, worker: IdleWorker) -> None:
    """The records of a worker that has taken part for long."""
    slot, bucket = int(worker.name[1:]), names.nodes_bucket(STORE)
    claim = SlotClaim(worker_id=worker.name, lease=worker.name)
    broker.put(bucket, names.slot_key("k", slot), encode_record(claim), 0)
    node = NodeRecord(slot=slot, lease=worker.name, incarnation=worker.name)
    broker.put(bucket, names.node_key("k", worker.name), encode_record(node), 0)


def _refresh(scheduler: Scheduler, broker: Broker, lease: str) -> None:
    """The lease of a worker of another store."""
    record = LeaseRecord(incarnation=lease, host="h", pid=1, started_at_ms=0)
    held = broker.get(names.LEASES_BUCKET, lease)
    broker.put(names.LEASES_BUCKET, lease, encode_record(record), held.revision if held is not None else 0)
    scheduler.after(limits.LEASE_REFRESH_S, _refresh, scheduler, broker, lease)


def main(words: list[str]) -> None:
    """Measures and prints it."""
    stores, workers = int(words[0]), int(words[1])
    for deaths in (1, workers // 2):
        found = measure(stores, workers, deaths=deaths)
        print(
            f"{stores} stores x {workers} workers: {found.messages_per_s:.2f} messages/s to each idle worker,"
            f" {deaths} deaths known to all after {found.taken_over_s:.1f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
