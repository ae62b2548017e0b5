"""The lease of a host, the workers that live by it, and what becomes of their records."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from ringcast import UnavailableError
from ringcast.hosting import HostBus
from ringcast_wire import EventLog

from ringcast_heartbeat_agent.leases.exits import ProcessEnd
from ringcast_heartbeat_agent.leases.lease import KeptLease
from ringcast_heartbeat_agent.leases.records import StoreRecords
from ringcast_heartbeat_agent.leases.registry import TICK_S, RegisteredWorker, Registration, WorkerRegistry
from ringcast_heartbeat_agent.leases.state import SocketPlace
from ringcast_heartbeat_agent.leases.witnesses import Witnesses

log = EventLog(logging.getLogger(__name__))

GO_OVER_S: Final = 3.0
"""A worker whose stream has ended takes 2 s at least until its records name its own lease."""
_LOCK_S: Final = 1.0
"""How long a registration may wait for the deletes of a store that are under way."""


class HostLeases:
    """The registrations of one agent. :meth:`open` takes the lease and keeps it."""

    def __init__(
        self,
        bus: HostBus,
        place: SocketPlace,
        agent_id: str,
        *,
        most: int,
        most_of_user: int,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.refused: Counter[str] = Counter({"IN_USE": 0})
        """Registrations, by the error that they were refused with."""
        self.registry = WorkerRegistry(most, most_of_user)
        self.lease = KeptLease(bus, place, agent_id, self.registry, self)
        self._bus = bus
        self._place = place
        self._tasks = tasks
        self._records = StoreRecords(bus, self.registry, tasks)
        self.witnesses = Witnesses(bus, most, tasks, self._records.ended)
        self._watching: list[asyncio.Task[None]] = []
        self._news: dict[RegisteredWorker, asyncio.Event] = {}
        self._seen_at: dict[RegisteredWorker, float] = {}
        self._gone: set[RegisteredWorker] = set()
        self._stopping = False
        self.draining = False
        """Whether its workers are to go over to leases of their own."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls, bus: HostBus, place: SocketPlace, agent_id: str, *, most: int, most_of_user: int
    ) -> AsyncIterator[HostLeases]:
        """Takes the lease, now or when NATS lets it, and keeps it.

        In the end neither the lease nor any record is given back: the next agent goes on with them.
        """
        async with asyncio.TaskGroup() as tasks:
            hosted = cls(bus, place, agent_id, most=most, most_of_user=most_of_user, tasks=tasks)
            tried = asyncio.Event()
            hosted._watching.append(tasks.create_task(hosted.lease.keep(tried), name="host-lease"))
            try:
                await tried.wait()
                yield hosted
            finally:
                hosted.stop()
                hosted._end()

    @property
    def deleted(self) -> int:
        """Records of dead workers that were deleted."""
        return self._records.deleted

    def lease_taken(self) -> None:
        """Watches the records of the workers that are waited for, and begins to tick."""
        for store in self.registry.stores:
            self._records.of(store, self.lease.id)
        self._watching.append(self._tasks.create_task(self._tick(), name="lease-ticks"))

    def lease_lost(self) -> None:
        """Every worker gets that at once."""
        for news in self._news.values():
            news.set()

    async def register(
        self, registration: Registration, end: ProcessEnd | None = None
    ) -> tuple[RegisteredWorker, asyncio.Event, bool]:
        """Takes a worker in; the event is set when there is something to send to it.

        ``end``: that of its process, which is closed in any case; the last of the answer is whether it will be known.

        Raises:
            InUseError: another process has the worker id.
            LimitExceededError: too many have registered, of all users or of this one, or for too many stores.
            UnknownStoreError: there is no such store.
            UnavailableError: the agent stops or drains, or has no lease now, or is still deleting records of the store.
        """
        try:
            worker, news = await self._register(registration)
        except BaseException:
            if end is not None:
                end.close()
            raise
        return worker, news, self.witnesses.watch(registration, end)

    async def _register(self, registration: Registration) -> tuple[RegisteredWorker, asyncio.Event]:
        if self._stopping or self.draining or not self.lease.held:
            raise UnavailableError(
                "the agent stops"
                if self._stopping
                else "the agent is to drain"
                if self.draining
                else "the agent has no lease at the moment"
            )
        if registration.store not in self._records:
            await self._bus.check_store(registration.store)
        records = self._records.of(registration.store, self.lease.id)
        try:
            async with asyncio.timeout(_LOCK_S):
                await records.lock.acquire()
        except TimeoutError:
            raise UnavailableError("records of dead workers of the store are being deleted") from None
        try:
            worker = self.registry.register(registration, object())
        finally:
            records.lock.release()
        news = self._news[worker] = asyncio.Event()
        self._seen_at[worker] = time.monotonic()
        self._changed()
        # Before the worker hears of the lease: were both to die now, only an agent that knows of the worker would look
        # for records that name this lease, and keep it alive for nobody.
        self.lease.save()
        log.info("worker.registered", **_facts(registration))
        return worker, news

    def seen(self, worker: RegisteredWorker) -> None:
        """A sign of life."""
        self.registry.seen(worker)
        self._seen_at[worker] = time.monotonic()

    def left(self, worker: RegisteredWorker) -> None:
        """The worker has given up what it had, or holds it by its own lease."""
        self.registry.left(worker)
        self.witnesses.left(worker.registration)
        self._changed()
        log.info("worker.left", **_facts(worker.registration))

    def ended(self, worker: RegisteredWorker) -> None:
        """Its stream has ended. Without a message before, its process is dead, and its records are deleted at once.

        When the agent drains it has ended the stream itself: the worker goes over to its own lease, or is given up as
        silent.
        """
        self._news.pop(worker, None)
        self._seen_at.pop(worker, None)
        self._gone.discard(worker)
        self.witnesses.stream_ended(worker.registration)
        if not self._stopping and not self.draining and self.registry.closed(worker):
            log.warning("worker.dead", **_facts(worker.registration))
            self._changed()

    def is_given_up(self, worker: RegisteredWorker) -> bool:
        """Whether it was silent for too long."""
        return worker in self._gone

    def drain(self) -> None:
        """Takes nobody in, and ends all streams, so that the workers go over to leases of their own."""
        self.draining = True
        for news in self._news.values():
            news.set()

    async def drained(self) -> None:
        """Returns when no worker lives by the host's lease any more: each has gone over, or is given up."""
        while self.registry.workers():
            await asyncio.sleep(TICK_S)
            for worker in self.registry.workers():
                if worker.silent_ticks * TICK_S >= GO_OVER_S and not self._lives_here(worker.registration):
                    self.registry.left(worker)
                    self._changed()
                    log.info("worker.went_over", **_facts(worker.registration))

    def resume(self) -> None:
        """Takes workers in again."""
        self.draining = False

    def stop(self) -> None:
        """From here on a stream that ends says nothing of its worker, and nobody is taken in."""
        self._stopping = True

    def status(self) -> dict[str, Any]:
        """For people: the lease, and the registered workers."""
        now = time.monotonic()
        return {
            "lease": self.lease.id or "-",
            "held": self.lease.held,
            "losses": self.lease.losses,
            "socket": str(self._place.path),
            "deleted_records": self.deleted,
            "exits_seen": self.witnesses.ended,
            "sessions_reported": self.witnesses.reports,
            "workers": [
                {
                    "worker_id": worker.registration.worker_id,
                    "pid": worker.registration.pid,
                    "uid": worker.registration.uid,
                    "store": worker.registration.store,
                    "keys": list(worker.registration.keys),
                    "since_ms": worker.registration.since_ms,
                    "last_pong_s": round(now - self._seen_at[worker], 3) if worker in self._seen_at else None,
                    "connected": worker.stream is not None,
                    "end_seen": self.witnesses.watches(worker.registration),
                }
                for worker in self.registry.workers()
            ],
        }

    def _end(self) -> None:
        self.lease.save()
        self.lease.detach()
        for task in self._watching:
            task.cancel()
        self._records.stop()
        self.witnesses.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            waiting = self.registry.waiting
            gone = self.registry.tick()
            if waiting and not self.registry.waiting:
                self._changed()
            for worker in gone:
                self._gone.add(worker)
                log.warning("worker.unanswering", **_facts(worker.registration))
                self._changed()
                if (news := self._news.get(worker)) is not None:
                    news.set()
                else:
                    self._gone.discard(worker)
            self._records.end_unused(time.monotonic())
            self.lease.save()

    def _lives_here(self, registration: Registration) -> bool:
        """Whether records of a worker name the host's lease, or may."""
        if not self.lease.id:
            return True
        named = self._records.of(registration.store, self.lease.id).named()
        return named is None or any((key, registration.worker_id) in named for key in registration.keys)

    def _changed(self) -> None:
        self.lease.changed()
        self._records.look()


def _facts(registration: Registration) -> dict[str, object]:
    return {"worker_id": registration.worker_id, "store": registration.store, "pid": registration.pid}
