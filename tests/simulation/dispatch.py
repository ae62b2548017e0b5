"""The agent's real key-shared dispatch, fed by a real worker, with consumers that are slow, reject, die and come back.

All that the simulation takes from the agent's distribution for dispatch is imported here, also for variants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast
from unittest.mock import patch

from ringcast import Change, PoisonPolicy
from ringcast._worker.session import KeySession
from ringcast_core import Action, row_partition
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch import consumer_session, key_shared
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Delivery
from ringcast_heartbeat_agent.dispatch.driver import Driver
from ringcast_heartbeat_agent.dispatch.group import GroupContext
from ringcast_heartbeat_agent.dispatch.intake import Intake
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_wire import AlreadyExistsError, Row
from typing_extensions import override

from tests.simulation.process import SimProcess, current

ACK_TIMEOUT_S: Final = 3.0
_SEEN_S: Final = 1.0
_AGAIN_S: Final = 0.2

__all__ = ["Intake", "ConsumerSession", "KeySharedGroup"]


@dataclass(slots=True)
class DispatchSettings:
    """How groups and their consumers are."""

    consumers: int
    capacity: int
    window: int
    policy: PoisonPolicy
    handler_s: float
    """The longest that a consumer mostly takes for a delivery."""
    rejects: float
    """The share of deliveries that fail."""
    slow: float
    """The share that is answered after its time."""
    restless_s: float
    """About how long a consumer goes on until something becomes of it."""
    well: bool = False
    """From now on nothing does."""

    @classmethod
    def drawn(cls, random: Random) -> DispatchSettings:
        """As a seed has it."""
        return cls(
            consumers=random.choice((1, 2, 3)),
            capacity=random.choice((1, 2, 64)),
            window=random.choice((4, 64, 1_000)),
            policy=random.choice((PoisonPolicy.DROP, PoisonPolicy.DEAD_LETTER)),
            handler_s=random.choice((0.0, 0.05, 0.5)),
            rejects=random.choice((0.0, 0.1, 0.3)),
            slow=random.choice((0.0, 0.05, 0.4)),
            restless_s=random.choice((2.0, 6.0, 60.0)),
        )

    def config(self) -> Config:
        """The same for the agent."""
        return Config(
            window=self.window,
            consumer_capacity=self.capacity,
            ack_timeout_s=ACK_TIMEOUT_S,
            max_tries=3,
            max_deliveries=6,
            retry_first_s=0.2,
            retry_most_s=1.0,
            evict_after_s=3.0,
            orphan_hold_s=2.0,
        )


class Host(Protocol):
    """The process that dispatches."""

    random: Random
    worker_id: str

    @property
    def sessions(self) -> dict[str, KeySession]:
        """What its worker holds."""

    def note(self, kind: str, *words: Any) -> None:
        """Adds to the history."""


class Source:
    """A config key as its worker holds it."""

    store = "s"
    staleness_s = 0.0
    lease = None

    def __init__(self, host: Host, key: str, partitions: int) -> None:
        self.key = key
        self.worker_id = host.worker_id
        self.revoked: set[int] = set()
        self._host = host
        self._partitions = partitions

    def owns(self, partition: int) -> bool:
        """Whether a partition is this host's now."""
        return partition not in self.revoked

    @property
    def history(self) -> str:
        """The history of the key's revisions."""
        return self._session.machine.history.current if self._host.sessions else ""

    def applied(self) -> Mapping[int, int]:
        """How far each partition is."""
        found = self._session.machine.partitions if self._host.sessions else {}
        return {number: part.applied for number, part in found.items()}

    def loaded(self) -> Collection[int]:
        """The partitions that its worker has loaded."""
        return self._session.machine.loaded() if self._host.sessions else ()

    def rows(self) -> Iterator[Row]:
        """The live rows."""
        return self._session.machine.rows() if self._host.sessions else iter(())

    def row_ids(self, partitions: Collection[int] | None = None) -> list[str]:
        """Their ids: all of them, or those of these partitions."""
        row_ids = [row.row_id for row in self.rows()]
        if partitions is None:
            return row_ids
        return [row_id for row_id in row_ids if row_partition(row_id, self._partitions) in partitions]

    def opened(self, change: Change) -> Change:
        return change

    def change_of(self, row_id: str) -> Change | None:
        """A live row as it is now, as a change."""
        number = row_partition(row_id, self._partitions)
        part = self._session.machine.partitions.get(number) if self._host.sessions else None
        row = part.rows.get(row_id) if part is not None else None
        return None if row is None else Change(self.store, self.key, number, row_id, row.value, row.version)

    @property
    def _session(self) -> KeySession:
        return self._host.sessions[self.key]


class Dispatching:
    """The groups of one process: one of each config key, with consumers."""

    def __init__(self, host: SimProcess, keys: tuple[str, ...], partitions: int, settings: DispatchSettings) -> None:
        self._process = host
        self._host = cast(Host, host)
        self._keys = keys
        self._partitions = partitions
        self._settings = settings
        self._groups: dict[str, KeySharedGroup] = {}
        self._sources: dict[str, Source] = {}

    def start(self) -> None:
        """Makes the groups, and has consumers come."""
        random = self._process.random
        around = GroupContext(self._settings.config(), self._process.loop.create_task, cast(Any, DeadLetters(random)))
        for key in self._keys:
            source = self._sources[key] = Source(self._host, key, self._partitions)
            group = self._groups[key] = KeySharedGroup(source, "g", around, self._settings.policy)
            for number in range(self._settings.consumers):
                consumer = Consumer(f"c{number}", group, self._settings, random)
                self._process.loop.create_task(consumer.run())

    def take(self, change: Change) -> None:
        """The worker's handler."""
        self._groups[change.key].take(change)

    def assigned(self, key: str, partitions: frozenset[int]) -> None:
        """The worker's ``on_assigned``."""
        self._sources[key].revoked.difference_update(partitions)

    def revoked(self, key: str, partitions: frozenset[int]) -> None:
        """The worker's ``on_revoked``."""
        self._sources[key].revoked.update(partitions)

    @property
    def lag(self) -> int:
        """What is not settled."""
        return sum(group.figures().lag for group in self._groups.values())

    def close(self) -> None:
        """Ends all."""
        for group in self._groups.values():
            group.close()


class DeadLetters:
    """Publishes dead letters, after a time."""

    def __init__(self, random: Random) -> None:
        self._random = random

    async def publish(self, change: Change, **_words: Any) -> None:
        """The stream has it."""
        await asyncio.sleep(self._random.uniform(0.0, 0.5))
        _note("settled", change.key, change.row_id, change.version)


class ObservedDriver(Driver):
    """Tells what it gives up."""

    @override
    def _do_one(self, action: Action) -> None:
        if isinstance(action, Action.Drop):
            change = self._intake.messages[action.offset].change
            _note("settled", change.key, change.row_id, change.version)
        elif isinstance(action, Action.Skip) and (message := self._intake.messages.get(action.offset)) is not None:
            _note("skipped", message.change.key, message.change.row_id, message.change.version)
        super()._do_one(action)


class ObservedSession(ConsumerSession):
    """Tells what it is given, and when it is over."""

    def title(self) -> str:
        """The same for one session only: each key's group has numbers of its own."""
        return f"{self.name}#{self.session[:8]}"

    @override
    def give(self, delivery: Delivery, *, to_be_answered: bool = True) -> None:
        change = delivery.change
        _note("given", change.key, change.row_id, change.version, self.title(), delivery.offset, delivery.attempt)
        super().give(delivery, to_be_answered=to_be_answered)

    @override
    def end(self, error: StoppedError | None = None) -> None:
        if not self.ended:
            _note("consumer_over", self.title())
        super().end(error)


@dataclass
class Consumer:
    """An application that consumes: each connection is one to the group, as the transport makes it."""

    name: str
    group: KeySharedGroup
    settings: DispatchSettings
    random: Random
    _session: str = ""
    _current: ObservedSession | None = None
    """The registration, while it is connected."""
    _handling: dict[tuple[int, int], asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Comes and goes for ever."""
        while not self.group.closed:
            try:
                found, resumed = self.group.join(
                    self.name, (), capacity=0, changes_only=False, session=self._session, api="stream"
                )
            except AlreadyExistsError:
                await asyncio.sleep(_AGAIN_S)
                continue
            if not resumed:
                self._drop_all()
            self._current = cast(ObservedSession, found)
            self._session = found.session
            await self._connected(self._current)

    async def _connected(self, consumer: ObservedSession) -> None:
        trouble = asyncio.ensure_future(self._until_trouble())
        tasks = [asyncio.ensure_future(self._read(consumer)), asyncio.ensure_future(self._seen(consumer))]
        await asyncio.wait([*tasks, trouble], return_when=asyncio.FIRST_COMPLETED)
        comes = trouble.result() if trouble.done() else self._nothing
        for task in (*tasks, trouble):
            task.cancel()
        await asyncio.wait([*tasks, trouble])
        await comes(consumer)
        self._current = None

    async def _nothing(self, consumer: ObservedSession) -> None:
        """The group has ended the session: another follows."""
        await asyncio.sleep(_AGAIN_S)

    async def _until_trouble(self) -> Callable[[ObservedSession], Any]:
        while True:
            await asyncio.sleep(self.random.expovariate(1.0 / self.settings.restless_s))
            if not self.settings.well:
                return self.random.choice((self._disconnect, self._die, self._leave, self._fall_silent))

    # ---- what becomes of it

    async def _disconnect(self, consumer: ObservedSession) -> None:
        """The connection is gone, and comes back: mostly before the eviction."""
        self._gone(consumer)
        await asyncio.sleep(self.random.uniform(0.0, 4.0))

    async def _die(self, consumer: ObservedSession) -> None:
        """The process is gone, and another starts under the same name."""
        _note("consumer_over", consumer.title())
        self._drop_all()
        self._session = ""
        self._gone(consumer)
        await asyncio.sleep(self.random.uniform(0.0, 6.0))

    async def _leave(self, consumer: ObservedSession) -> None:
        """It takes nothing new, answers what it has, and comes back later."""
        if not consumer.ended:
            self.group.leave(consumer)
        reading = [asyncio.ensure_future(self._read(consumer)), asyncio.ensure_future(self._seen(consumer))]
        await asyncio.wait({asyncio.ensure_future(consumer.over.wait())}, timeout=2.0 * ACK_TIMEOUT_S)
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
        self._session = ""
        self._gone(consumer)
        await asyncio.sleep(self.random.uniform(0.0, 3.0))

    async def _fall_silent(self, consumer: ObservedSession) -> None:
        """It hangs: nothing is read or said for a time, and the connection stays."""
        await asyncio.sleep(self.random.uniform(0.0, 6.0))
        self._gone(consumer)

    def _gone(self, consumer: ObservedSession) -> None:
        if not consumer.ended:
            self.group.detach(consumer)

    def _drop_all(self) -> None:
        handling, self._handling = self._handling, {}
        for task in handling.values():
            task.cancel()

    # ---- what it does

    async def _read(self, consumer: ObservedSession) -> None:
        try:
            async for frame in consumer.frames():
                for delivery in frame.deliveries:
                    place = delivery.offset, delivery.attempt
                    if place not in self._handling:
                        self._handling[place] = asyncio.ensure_future(self._handle(consumer, delivery))
        except StoppedError:
            return

    async def _seen(self, consumer: ObservedSession) -> None:
        while not consumer.ended:
            self.group.seen(consumer)
            await asyncio.sleep(_SEEN_S)

    async def _handle(self, consumer: ObservedSession, delivery: Delivery) -> None:
        random, settings = self.random, self.settings
        slow = not settings.well and random.random() < settings.slow
        await asyncio.sleep(ACK_TIMEOUT_S * random.uniform(0.9, 2.0) if slow else settings.handler_s * random.random())
        while self._current is None and not consumer.ended:  # noqa: ASYNC110  # either may change first
            await asyncio.sleep(_AGAIN_S)  # it says so when it is connected again
        self._handling.pop((delivery.offset, delivery.attempt), None)
        if consumer.ended:
            return
        change = delivery.change
        _note("answered", change.key, change.row_id, consumer.title(), delivery.offset, delivery.attempt)
        if not settings.well and random.random() < settings.rejects:
            self.group.answer(consumer, [], [], [(delivery.offset, delivery.attempt, "on purpose")])
        else:
            _note("settled", change.key, change.row_id, change.version)
            self.group.answer(consumer, [delivery.offset], [delivery.attempt])


def _note(kind: str, *words: Any) -> None:
    current(SimProcess).note(kind, *words)


@contextmanager
def simulated_dispatch(seed: int) -> Iterator[None]:
    """Has the dispatch draw from the seed, and show what the promises are about."""
    random = Random(f"sessions of {seed}")
    secrets = SimpleNamespace(token_hex=lambda count: random.randbytes(count).hex())
    with ExitStack() as stack:
        stack.enter_context(patch.object(consumer_session, "secrets", secrets))
        stack.enter_context(patch.object(key_shared, "ConsumerSession", ObservedSession))
        stack.enter_context(patch.object(key_shared, "Driver", ObservedDriver))
        yield
