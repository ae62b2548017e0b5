"""How many messages idle workers get for their leases, and how soon all know of a death: a store among many.

Run it for other sizes: ``python -m tests.simulation.lease_traffic STORES WORKERS [DEATHS]``. Without a number of deaths
it is done for one and for half of the workers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from ringcast._protocol.kv_mirror import Entry
from ringcast_wire import ErrorCode, LeaseRecord, StoreSettings, encode_record, limits, names

from tests.simulation.broker import Broker, Bucket
from tests.simulation.connection import SimConnection
from tests.simulation.engine import Process, Scheduler
from tests.simulation.history import History
from tests.simulation.jetstream import Stream
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network
from tests.simulation.worker import Worker, WorkerSettings, simulated

STORE: Final = "s0"
PARTITIONS_EACH: Final = 2
IDLE_S: Final = 30.0


class CountingBroker(Broker):
    """Counts what goes out to workers: acknowledgements, answers, and what their watches hear."""

    messages = 0

    def read(self, name: str, keys: Iterable[str]) -> dict[str, tuple[Entry, float]]:
        """As a server: a message for each lease, and one that ends the answer."""
        found = super().read(name, keys)
        self.messages += len(found) + 1
        return found

    def put(self, name: str, key: str, value: bytes | None, last: int, among: str = "") -> int:
        """As a server: the acknowledgement, and one to each watch."""
        revision = super().put(name, key, value, last, among)
        self.messages += 1 + sum(key.startswith(watcher.prefixes) for watcher in self.buckets[name].watchers)
        return revision


@dataclass(frozen=True)
class Traffic:
    """``messages_per_s``: to each idle worker; ``taken_over_s``: until every partition had an owner again."""

    workers: int
    messages_per_s: float
    taken_over_s: float


def measure(stores: int, workers: int, *, deaths: int = 1, seed: int = 1) -> Traffic:
    """Lets the workers of one store be idle, beside the leases of the others, and then some of them die at once."""
    with simulated(seed, limits.MAX_FILTERS_PER_CONSUMER):
        return _measure(stores, workers, deaths, Random(seed))


def _measure(stores: int, workers: int, deaths: int, random: Random) -> Traffic:
    scheduler = Scheduler(None)
    broker = CountingBroker(scheduler, Network(scheduler, random))
    partitions = PARTITIONS_EACH * workers  # each worker owns some, so that the death of any of them shows
    settings = StoreSettings(partition_count=partitions)
    ttl_s = float(limits.LEASE_TTL_S)
    broker.buckets = {
        names.LEASES_BUCKET: Bucket(ttl_s, ttl_s),
        names.nodes_bucket(STORE): Bucket(None, ttl_s),
        names.meta_bucket(STORE): Bucket(None, ttl_s),
    }
    for setting, value in settings.to_kv().items():
        broker.put(names.meta_bucket(STORE), setting, value, 0)
    broker.stream = Stream(
        scheduler, names.notify_stream(STORE), life=0, depth=64, ack_wait_s=30.0, max_ack_pending=64, inactive_s=300.0
    )
    for number in range((stores - 1) * workers):
        scheduler.after(random.uniform(0.0, limits.LEASE_REFRESH_S), _refresh, scheduler, broker, f"x{number}")
    Nobody(scheduler, "nobody", random).start(broker)
    fleet = [_start(scheduler, random, broker, number) for number in range(workers)]
    _run(scheduler, 30.0)
    assert _is_shared_out(fleet, partitions)
    before = broker.messages
    _run(scheduler, IDLE_S)
    # An answer to a refresh of another store's worker goes there.
    others = (stores - 1) * workers * IDLE_S / limits.LEASE_REFRESH_S
    idle = (broker.messages - before - others) / IDLE_S / workers
    fleet.sort(key=lambda worker: not worker.owned("k"))
    dead, alive = fleet[:deaths], fleet[deaths:]
    assert all(worker.owned("k") for worker in dead), "the death of a worker without partitions would not show"
    for worker in dead:
        worker.crash()
    died_at = scheduler.now
    while not _is_shared_out(alive, partitions) and scheduler.now < died_at + 600.0:
        _run(scheduler, 0.1)
    taken_over_s = scheduler.now - died_at
    for worker in alive:
        worker.crash()
    return Traffic(workers, idle, taken_over_s)


def _start(scheduler: Scheduler, random: Random, broker: Broker, number: int) -> Worker:
    """A worker that starts within a refresh of a lease: workers do not beat in time."""
    worker = Worker(
        scheduler,
        f"w{number}",
        random,
        worker_id=f"w{number}",
        settings=WorkerSettings(store=STORE, keys=("k",), full=False),
        broker=broker,
        history=History(),
    )
    scheduler.after(random.uniform(0.0, limits.LEASE_REFRESH_S), worker.start)
    return worker


class Nobody(Process):
    """A service that says of every list that nobody has written to it."""

    def start(self, broker: Broker) -> None:
        """Takes fetches."""
        loop = SimLoop(self)
        loop.call_soon(self._subscribe, broker)

    def _subscribe(self, broker: Broker) -> None:
        link = broker.link(self)
        link.connect()
        connection = SimConnection(self, link, broker)
        headers = {names.HEADER_ERROR: str(ErrorCode.UNKNOWN_KEY)}
        connection.callbacks[names.FETCH_SUBJECTS] = lambda message: connection.send(message.reply, b"", "", headers)
        broker.responders.append(connection)


def _is_shared_out(workers: Iterable[Worker], partitions: int) -> bool:
    """Whether every partition has one owner: all that live know which others do."""
    owned = [number for worker in workers for number in worker.owned("k")]
    return sorted(owned) == list(range(partitions))


def _run(scheduler: Scheduler, for_s: float) -> None:
    """Lets time pass. The bound on steps is meant for one seed of the simulation, not for thousands of workers."""
    end = scheduler.now + for_s
    while scheduler.now < end:
        scheduler.fired = 0
        scheduler.run_until(min(end, scheduler.now + 0.5))


def _refresh(scheduler: Scheduler, broker: Broker, lease: str) -> None:
    """The lease of a worker of another store."""
    record = LeaseRecord(incarnation=lease, host="h", pid=1, started_at_ms=0)
    held = broker.get(names.LEASES_BUCKET, lease)
    broker.put(names.LEASES_BUCKET, lease, encode_record(record), held.revision if held is not None else 0)
    scheduler.after(limits.LEASE_REFRESH_S, _refresh, scheduler, broker, lease)


def main(words: list[str]) -> None:
    """Measures and prints it."""
    stores, workers, *rest = (int(word) for word in words)
    for deaths in rest or (1, workers // 2):
        found = measure(stores, workers, deaths=deaths)
        print(
            f"{stores} stores x {workers} workers: {found.messages_per_s:.2f} messages/s to each idle worker,"
            f" {deaths} deaths: every partition has an owner after {found.taken_over_s:.1f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
