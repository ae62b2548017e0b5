"""What the heartbeat agent of a host needs of the SDK: a lease for all workers there, their records, reads of keys.

For the agent alone; applications use :class:`ringcast.Worker` with ``agent``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec
from ringcast_wire import (
    Backoff,
    EventLog,
    LeaseRecord,
    NatsLogin,
    NodeRecord,
    ProtocolError,
    UnknownStoreError,
    decode_record,
    names,
)

from ringcast._bus.buckets import Buckets, ConflictError
from ringcast._bus.bus import TRANSIENT, Bus, OpenBus, RejectedError, connected, translated
from ringcast._bus.kv import NatsBuckets
from ringcast._bus.nats_bus import NatsBus
from ringcast._bus.nats_client import WorkerClient
from ringcast._bus.refusals import RefusedError
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._common.opening import Openings
from ringcast._common.process import this_process
from ringcast._common.stats import Stats
from ringcast._coordination.group_seals import GroupSeals, SealEntry
from ringcast._coordination.host_witness import HostWitness
from ringcast._coordination.key_records import CACHED
from ringcast._coordination.lease import LeaseHolder
from ringcast._dapr.items import (
    METADATA_DELETED,
    METADATA_KEY,
    ConfigurationItem,
    KeySelector,
    make_item,
)
from ringcast._dapr.reader import Budget, KeyReader
from ringcast._delivery.dead_letters import DeadLetterSender, dead_letter_of
from ringcast._protocol.kv_mirror import KvMirror
from ringcast._protocol.membership import orphaned_records, records_of_lease
from ringcast._worker.replays import ReplayTaker
from ringcast._worker.worker import Worker

HOST_REFRESH_S: Final = 2.5
"""How often a host's lease is refreshed: when the agent dies, 7.5 s of it are left for the workers to go over."""
_DELETES_AT_ONCE: Final = 32
_REMEMBERED: Final = 4096
"""Processes whose ends were seen, and deleted records of processes that may live, which are remembered of one store."""


def leave_sealed(worker: Worker) -> None:
    """Has a worker that is not started yet hand over encrypted values as they are: the caller opens them."""
    worker._openings = Openings(None, as_stored=True)


def take_replays(worker: Worker, taker: ReplayTaker) -> None:
    """Has ``taker`` take the rows of groups that are to be handed over again; to be called before the worker starts.

    It is called with the request, the row as it is now, and a function that answers with the outcome.
    """
    worker._replay_taker = taker


def row_ids_of(worker: Worker, key: str, partitions: Iterable[int]) -> list[str]:
    """The ids of the live rows of these partitions, of those that the worker holds: it looks at no other rows."""
    held = worker._life.session(key).machine.partitions
    return [row_id for number in partitions if number in held for row_id in held[number].rows]


def loaded_of(worker: Worker, key: str) -> set[int]:
    """The partitions that the worker has loaded: from then on it tells every change of them, and every deletion."""
    return worker._life.session(key).machine.loaded()


class WorkerLease:
    """The lease by which other workers count a worker of this process as alive; the worker must have one of its own."""

    def __init__(self, worker: Worker, worker_id: str) -> None:
        self.id = worker_id
        self._worker = worker

    @property
    def incarnation(self) -> str:
        """What the lease says of this process; another process that has it says something else."""
        return this_process.incarnation

    @property
    def held(self) -> bool:
        """Whether it can't have ended, by this process's own clock."""
        lease = self._lease
        return lease is not None and lease.held

    @property
    def losses(self) -> int:
        """How often it may have ended before it was refreshed."""
        lease = self._lease
        return lease.losses if lease is not None else 0

    @property
    def _lease(self) -> LeaseHolder | None:
        runtime = self._worker._life.runtime
        lease = runtime.lease if runtime is not None else None
        return lease if isinstance(lease, LeaseHolder) else None


class HostBus:
    """The connection of an agent for its lease, the records of its workers, and how far its groups have come."""

    def __init__(self, bus: Bus, agent_id: str, servers: Sequence[str], log: EventLog) -> None:
        self.bus = bus
        self.buckets: Buckets = NatsBuckets(bus)
        """Where the leases, records and seals stand."""
        self.agent_id = agent_id
        self.servers = tuple(servers)
        self.log = log

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        agent_id: str,
        *,
        servers: Sequence[str],
        login: NatsLogin,
        jetstream_api: str,
        connect_timeout_s: float,
        logger: logging.Logger,
        open_bus: OpenBus = NatsBus.prepared,
        purpose: str = "leases",
    ) -> AsyncIterator[HostBus]:
        """Connects, and closes in the end. ``purpose`` is in the connection's name.

        Raises:
            UnavailableError: no server answered within ``connect_timeout_s``.
        """
        log = worker_log(logger, agent_id=agent_id)
        config = WorkerConfig(
            store="-",  # of no store
            keys=(),
            servers=tuple(servers),
            worker_id=agent_id,
            name=f"ringcast-{purpose}-{agent_id}",
            jetstream_api=jetstream_api,
            connect_timeout_s=connect_timeout_s,
            **msgspec.structs.asdict(login),
        )
        async with connected(open_bus, config, log) as bus:
            yield cls(bus, agent_id, servers, log)

    def seals(self, store: str) -> GroupSeals:
        """How far the groups of a store have come."""
        return GroupSeals(self.buckets, store, self.log)

    def witness(self, store: str) -> HostWitness:
        """What is said of the processes of a store's workers that have ended."""
        return HostWitness(self.buckets, store, self.agent_id, self.log)

    async def check_store(self, store: str) -> None:
        """Looks whether there is a store.

        Raises:
            UnknownStoreError: there is none.
            UnavailableError: JetStream does not answer.
        """
        with translated(f"looking for store {store}"):
            if not await self.buckets.bucket(names.meta_bucket(store)).exists():
                raise UnknownStoreError(f"store {store!r} does not exist on this NATS", field="store")


class HostLease:
    """The one lease of a host. ``lost`` is called when it was lost and granted again."""

    def __init__(self, bus: HostBus, lease_id: str, incarnation: str, lost: Callable[[], None]) -> None:
        self.id = lease_id
        self._holder = LeaseHolder(
            bus.buckets,
            lease_id,
            LeaseRecord(
                incarnation=incarnation,
                host=socket.gethostname(),
                pid=os.getpid(),
                started_at_ms=int(time.time() * 1000),
            ),
            refresh_s=HOST_REFRESH_S,
            servers=bus.servers,
            regranted=lost,
            stats=Stats(),
            log=bus.log,
        )

    @staticmethod
    async def lives(bus: HostBus, lease_id: str, incarnation: str) -> bool:
        """Whether this lease has not ended, and no other process has it.

        Raises:
            UnavailableError: the bucket can't be reached.
        """
        with translated(f"reading the lease {lease_id}"):
            entry = await bus.buckets.bucket(names.LEASES_BUCKET).get(lease_id)
        try:
            record = decode_record(entry.value, LeaseRecord) if entry is not None and entry.value is not None else None
        except ProtocolError:
            return False
        return record is not None and record.incarnation == incarnation

    @property
    def held(self) -> bool:
        """Whether the workers count this host as alive, as far as it knows."""
        return self._holder.held

    @property
    def losses(self) -> int:
        """How often it was lost and granted again."""
        return self._holder.losses

    @property
    def failed_writes(self) -> int:
        """How many writes of it have failed."""
        return self._holder.failed_writes

    async def grant(self) -> None:
        """Has it granted, or goes on with it. Raises as the lease of a worker does."""
        await self._holder.grant()

    async def keep_alive(self) -> None:
        """Refreshes it until cancelled. It is not revoked: the next agent goes on with it, or it ends."""
        await self._holder.keep_alive()

    def check(self) -> None:
        """Looks after it at once: it was seen to be gone."""
        self._holder.check()

    def detach(self) -> None:
        """This agent refreshes it no longer."""
        self._holder.detach()


class HostRecords:
    """The records of one store's workers, watched; those of dead workers of this host are deleted.

    ``living`` returns the workers of this host that live, as config key and worker id, or ``None`` while they are not
    known. It is called with :attr:`lock` locked: a caller that holds the lock can change them with no delete under way.
    """

    def __init__(
        self, bus: HostBus, store: str, lease_id: str, living: Callable[[], Collection[tuple[str, str]] | None]
    ) -> None:
        self.store = store
        self.lock = asyncio.Lock()
        self.deleted = 0
        self._ended: dict[tuple[str, str], None] = {}
        """Worker id and incarnation of processes that were seen to end, the oldest first."""
        self._doubtful: dict[str, tuple[tuple[str, str], int]] = {}
        """Deleted records of processes that may live: the process, and the revision of the marker, by name."""
        self._lease_id = lease_id
        self._living = living
        self._log = bus.log.bind(store=store)
        self._bucket = bus.buckets.bucket(names.nodes_bucket(store))
        self._mirror = KvMirror()
        self._dirty = asyncio.Event()
        watch = names.watch_name(store, bus.agent_id)
        self._watch = self._bucket.watch(watch, [">"], self._mirror, self._dirty.set, self._log)

    def look(self) -> None:
        """Deletes what is to be deleted, soon: other workers live now."""
        self._dirty.set()

    def ended(self, worker_id: str, incarnation: str) -> None:
        """This process was seen to end: none of its calls runs."""
        self._ended[worker_id, incarnation] = None
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]
        self._dirty.set()

    def named(self) -> frozenset[tuple[str, str]] | None:
        """Config key and id of each worker whose records name the host's lease; ``None`` while they are not known."""
        if not self._mirror.complete:
            return None
        return frozenset((record.key, record.worker_id) for record in records_of_lease(self._mirror, self._lease_id))

    async def run(self) -> None:
        """Watches and deletes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            backoff = Backoff(random.random, first_s=0.1, most_s=2.0)
            while True:
                await self._dirty.wait()
                self._dirty.clear()
                try:
                    async with self.lock:
                        await self._delete_orphans()
                    backoff.reset()
                except TRANSIENT as error:
                    self._log.debug("records.delete_failed", error=error)
                    await asyncio.sleep(backoff.next_s())
                    self._dirty.set()

    async def _delete_orphans(self) -> None:
        living = self._living()
        if living is None or not self._mirror.complete:
            return
        await self._clear_doubts()
        found = orphaned_records(self._mirror, self._lease_id, living)
        for start in range(0, len(found), _DELETES_AT_ONCE):
            some = found[start : start + _DELETES_AT_ONCE]
            results = await asyncio.gather(*(self._delete(*one) for one in some), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        if found:
            self.deleted += len(found)
            self._log.info("records.deleted", records=[name for name, _ in found])

    async def _delete(self, name: str, revision: int) -> None:
        """Deletes a record. That of a worker says on its marker that calls may run, unless the process has ended."""
        entry = self._mirror.entries.get(name)
        worker_id = name.partition(".")[2]
        is_claim = "." in worker_id
        node = None if is_claim or entry is None or entry.revision != revision else self._mirror.get(name, NodeRecord)
        process = worker_id, node.incarnation if node is not None else ""
        is_cached = node is not None and CACHED in node.capabilities
        may_call = not is_claim and (is_cached or process not in self._ended)
        try:
            at = await self._bucket.delete(name, last=revision, may_call=may_call)
        except ConflictError:
            self._log.debug("record.rewritten", record=name)
            return
        self._mirror.drop(name, revision)
        if may_call and not is_cached:
            self._doubtful[name] = process, at
            while len(self._doubtful) > _REMEMBERED:
                del self._doubtful[next(iter(self._doubtful))]

    async def _clear_doubts(self) -> None:
        """Has markers of processes that have ended since say no more that calls may run."""
        for name, (process, at) in list(self._doubtful.items()):
            if process in self._ended:
                with suppress(ConflictError):  # another process of this id has registered
                    await self._bucket.delete(name, last=at)
                del self._doubtful[name]


__all__ = [
    "HOST_REFRESH_S",
    "METADATA_DELETED",
    "METADATA_KEY",
    "TRANSIENT",
    "Backoff",
    "Budget",
    "ConfigurationItem",
    "ConflictError",
    "DeadLetterSender",
    "GroupSeals",
    "HostBus",
    "HostLease",
    "HostRecords",
    "HostWitness",
    "KeyReader",
    "KeySelector",
    "Openings",
    "RefusedError",
    "RejectedError",
    "ReplayTaker",
    "SealEntry",
    "WorkerClient",
    "WorkerLease",
    "dead_letter_of",
    "make_item",
    "leave_sealed",
    "loaded_of",
    "row_ids_of",
    "take_replays",
]
