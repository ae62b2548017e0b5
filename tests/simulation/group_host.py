"""A host of shared groups: the agent's real dispatch and seals, over a worker that is a model.

The worker has the partitions that the leases say it has, some time after others know it. It loads them, and then gets
every change, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast
from unittest.mock import patch

from ringcast import Change
from ringcast.hosting import SealEntry
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch import catch_up, consumer_session, key_shared, seal_keeper
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Delivery
from ringcast_heartbeat_agent.dispatch.group import GroupContext
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.dispatch.positions import Positions
from ringcast_heartbeat_agent.dispatch.progress import History
from ringcast_heartbeat_agent.dispatch.seal_keeper import Lease, SealCounts, Sealed, SealKeeper
from ringcast_heartbeat_agent.dispatch.seal_pace import SealPace
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_wire import GroupSeal, PartitionRows, Row, UnavailableError
from typing_extensions import override

from tests.simulation.engine import Process, Scheduler
from tests.simulation.group_judge import GroupJudge
from tests.simulation.group_store import TTL_S, Bus, Record
from tests.simulation.loop import SimLoop

_REFRESH_S: Final = 0.5
_LOOK_S: Final = 0.5
_SEEN_S: Final = 1.0


class HostWorld(Protocol):
    """The world, as far as a host needs it: what hosts share."""

    seed: int
    scheduler: Scheduler
    record: Record
    bus: Bus
    judge: GroupJudge

    def share_of(self, lease: str) -> set[int]:
        """The partitions of a host."""


@dataclass
class HostLease:
    """The lease of a host, as it knows it."""

    id: str
    incarnation: str
    process: Process
    losses: int = 0
    until: float = 0.0
    """By the clock of the process."""

    @property
    def held(self) -> bool:
        return self.process.clock() < self.until


class Host(Process):
    """An agent: worker, group, and one consumer. It is the group's source, its reader, and the store of its seals."""

    store, key, group_name, staleness_s = "s", "list", "g", 0.0

    def __init__(self, world: HostWorld, name: str, life: int) -> None:
        super().__init__(world.scheduler, name, Random(f"{world.seed} {name} {life}"))
        self.rate = self.random.uniform(0.995, 1.005)
        self.worker_id = name
        self.cut = False
        self.leaving = False
        self.loop = SimLoop(self)
        self.lease = HostLease(name, f"{name}.{life}", self)
        self.counts = SealCounts()
        self._world = world
        self._owned: set[int] = set()
        self._loaded: set[int] = set()
        self._applied: dict[int, int] = {}
        self._rows: dict[str, Row] = {}
        self._history = ""
        self._capacity = self.random.choice((1, 2, 64))
        self._answer_s = self.random.choice((0.0, 0.05, 0.5))
        self._group: KeySharedGroup | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def start(self) -> None:
        """Begins to run."""
        self.loop.create_task(self._live())

    @override
    def crash(self) -> None:
        if self.alive:
            super().crash()
            self._world.judge.over(self.lease.incarnation)
            self.loop.end()

    # ---- what the group asks of its source

    @property
    def history(self) -> str:
        return self._history

    def owns(self, partition: int) -> bool:
        return partition in self._owned

    def applied(self) -> Mapping[int, int]:
        return {partition: self._applied.get(partition, 0) for partition in self._owned}

    def loaded(self) -> Collection[int]:
        return self._owned & self._loaded

    def rows(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def row_ids(self, partitions: Collection[int] | None = None) -> list[str]:
        of = self._world.record.partition_of
        return [row_id for row_id in self._rows if partitions is None or of(row_id) in partitions]

    def opened(self, change: Change) -> Change:
        return change

    def change_of(self, row_id: str) -> Change | None:
        row = self._rows.get(row_id)
        return self._world.record.change(row) if row is not None else None

    # ---- what it asks of NATS and of the service

    async def partition(
        self, _store: str, _key: str, partition: int, *, since: int | None = None, history: str = ""
    ) -> tuple[PartitionRows, str]:
        record = self._world.record
        await self._asked()
        if self.scheduler.now < record.slow_until:
            raise UnavailableError("the service does not answer")
        found = record.since(partition, since or 0, history), record.history
        await self._asked()
        return found

    def keeper(self, place: Any, group: Sealed, lease: Lease) -> SealKeeper:
        made = SealKeeper(place, self, group, lease, self.counts, SealPace())
        self._keeping = self.loop.create_task(made.run(None))
        return made

    def warn(self, _store: str, why: str) -> None:
        """Why seals can't be kept."""

    async def exists(self) -> bool:
        await self._asked()
        return True

    async def read(self, keys: list[str]) -> dict[str, SealEntry]:
        await self._asked()
        found = {key: self._world.bus.entries.get(key, SealEntry(0, None)) for key in keys}
        await self._asked()
        return found

    async def write(self, key: str, seal: GroupSeal, *, last: int) -> int:
        await self._asked()
        revision = self._world.bus.put(key, seal, last)
        await self._asked()
        return revision

    async def living(self, leases: set[str]) -> dict[str, str]:
        await self._asked()
        return {lease: said for lease in leases if (said := self._world.bus.leases.get(lease)) is not None}

    async def _asked(self) -> None:
        """One way: it takes its time, and may be lost."""
        await asyncio.sleep(self.random.choice((0.001, 0.01, 0.1)) * self.random.random())
        if self.cut:
            await asyncio.sleep(1.0)
            raise UnavailableError("NATS does not answer")

    # ---- the worker

    def told(self) -> None:
        """The leases have changed, or the record has: it finds out what is new in it."""
        self._news.set()

    def rest(self) -> bool:
        """Whether nothing is left to do for it."""
        figures = self._group.figures() if self._group is not None else None
        heads = self._world.record.heads
        return figures is not None and not figures.lag and all(self._applied.get(p) == heads[p] for p in self._owned)

    async def _live(self) -> None:
        refreshing = self.loop.create_task(self._refresh())
        await self._until(lambda: self.lease.held)
        self._look_at_owned()
        while not self._owned <= self._loaded:  # each load has its own time
            await self._step()
        context = GroupContext(
            Config(window=self.random.choice((4, 1_000)), retry_first_s=0.2, retry_most_s=1.0),
            cast(Any, self.loop.create_task),
            cast(Any, None),
            History(self, Positions()),
            cast(Any, self),
        )
        self._group = KeySharedGroup(self, self.group_name, context, "drop")
        tasks = [self.loop.create_task(work) for work in (self._consume(), self._looks())]
        while not self.leaving:
            await self._step()
        await self._leave([refreshing, *tasks])

    async def _leave(self, tasks: list[asyncio.Task[Any]]) -> None:
        """In order: what is in flight is answered to nobody, and the seals are given up before the lease is."""
        assert self._group is not None
        self._world.judge.over(self.lease.incarnation)
        self._group.close()
        if self._keeping is not None:
            await asyncio.wait({self._keeping}, timeout=5.0)
        for task in tasks:
            task.cancel()
        if not self.cut and self._world.bus.leases.get(self.lease.id) == self.lease.incarnation:
            self._world.bus.revoke(self.lease.id)
        self.soon(self.crash)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _refresh(self) -> None:
        while True:
            sent_at = self.clock()
            if not self.cut:
                was_there = self._world.bus.refresh(self.lease.id, self.lease.incarnation)
                if (not was_there and self.lease.until) or (self.lease.until and not self.lease.held):
                    self.lease.losses += 1
                self.lease.until = sent_at + TTL_S * 0.98
            await asyncio.sleep(_REFRESH_S)

    async def _step(self) -> None:
        await asyncio.sleep(self.random.choice((0.001, 0.02, 0.2)) * self.random.random())
        if not self.cut:
            self._look_at_owned()
            heads = self._world.record.heads
            for partition in sorted(self._owned):
                if partition not in self._loaded or self._applied[partition] != heads[partition]:
                    await self._hear(partition)
        self._news.clear()

    def _look_at_owned(self) -> None:
        owned = self._world.share_of(self.lease.id)
        lost = self._owned - owned
        for partition in lost:
            self._loaded.discard(partition)
            self._applied.pop(partition, None)
        of = self._world.record.partition_of
        self._rows = {row_id: row for row_id, row in self._rows.items() if of(row_id) in owned}
        if owned != self._owned:
            self._owned = owned
            if self._group is not None:
                self._group.partitions_changed()

    async def _hear(self, partition: int) -> None:
        """What is new in a partition: the first time all of it, and then change after change."""
        record = self._world.record
        times = (0.0, 0.0, 0.05) if partition in self._loaded else (0.0, 0.05, 1.0)
        await asyncio.sleep(self.random.choice(times) * self.random.random())
        if partition not in self._owned or self.cut:
            return
        self._history = record.history
        head, rows = record.heads[partition], record.since(partition, self._applied.get(partition, 0), "h").rows
        for row in rows:
            if row.version > head:
                continue
            if row.deleted and partition not in self._loaded:
                continue  # it loads the live rows
            if row.deleted:
                self._rows.pop(row.row_id, None)
            else:
                self._rows[row.row_id] = row
            if self._group is not None:
                self._group.take(record.change(row))
            await asyncio.sleep(self.random.choice((0.0, 0.0, 0.0, 0.02)) * self.random.random())
            if partition not in self._owned:
                return
            if partition in self._loaded:
                self._applied[partition] = row.version
        self._applied[partition] = head
        self._loaded.add(partition)

    # ---- the consumer

    async def _consume(self) -> None:
        """A consumer that was paused for too long is one no more, and registers again."""
        assert self._group is not None
        while not self._group.closed:
            found, _ = self._group.join("one", (), capacity=self._capacity, changes_only=True, session="", api="stream")
            seen = self.loop.create_task(self._seen(found))
            with suppress(StoppedError):
                await self._read(found)
            seen.cancel()

    async def _read(self, found: ConsumerSession) -> None:
        async for frame in found.frames():
            for delivery in frame.deliveries:
                self.loop.create_task(self._handle(found, delivery))

    async def _handle(self, found: ConsumerSession, delivery: Delivery) -> None:
        assert self._group is not None
        await asyncio.sleep(self._answer_s * self.random.random())
        if found.ended or self._group.closed:
            return
        if not self._group.source.owns(delivery.change.partition) and self.random.random() < 0.1:
            await asyncio.sleep(1.0)  # the other host waits for it
        if self._world.judge.answered(self.lease.incarnation, delivery.change):
            self._group.answer(found, [delivery.offset], [delivery.attempt])

    async def _seen(self, found: ConsumerSession) -> None:
        assert self._group is not None
        while not found.ended:
            self._group.seen(found)
            await asyncio.sleep(_SEEN_S)

    async def _looks(self) -> None:
        assert self._group is not None
        while not self._group.closed:
            self._group.look(self.clock())
            await asyncio.sleep(_LOOK_S)


class ObservedSession(ConsumerSession):
    """Tells the judge what it is given."""

    @override
    def give(self, delivery: Delivery, *, to_be_answered: bool = True) -> None:
        host = _current_host()
        host._world.judge.given(host.lease.incarnation, delivery.change)
        super().give(delivery, to_be_answered=to_be_answered)

    @override
    def end(self, error: StoppedError | None = None) -> None:
        if not self.ended:
            host = _current_host()
            host._world.judge.evicted(host.lease.incarnation)
        super().end(error)


def _current_host() -> Host:
    """The host whose code is running."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    assert isinstance(loop.process, Host)
    return loop.process


@contextmanager
def simulated_groups(seed: int) -> Iterator[None]:
    """Has the dispatch draw from the seed, tell virtual time only, and tell the judge what is delivered."""
    random = Random(f"sessions of {seed}")
    secrets = SimpleNamespace(token_hex=lambda count: random.randbytes(count).hex())
    clock = SimpleNamespace(
        perf_counter=lambda: 0.0,
        time=lambda: 0.0,
        monotonic=lambda: asyncio.get_running_loop().time(),
    )
    with ExitStack() as stack:
        for module in (catch_up, seal_keeper):
            stack.enter_context(patch.object(module, "random", random))
            stack.enter_context(patch.object(module, "time", clock))
        stack.enter_context(patch.object(consumer_session, "secrets", secrets))
        stack.enter_context(patch.object(key_shared, "ConsumerSession", ObservedSession))
        yield
