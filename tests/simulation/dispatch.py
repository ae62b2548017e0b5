"""The agent's real key-shared dispatch, fed by a real worker, with consumers that are slow, reject, die and come back.

All that the simulation takes from the agent's distribution for dispatch is imported here, also for variants.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast
from unittest.mock import patch

import nats.errors
from ringcast import Change, PoisonPolicy, UnavailableError, Worker
from ringcast._worker.runtime import Runtime
from ringcast_core import Action
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dispatch import consumer_session, key_shared
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, Delivery
from ringcast_heartbeat_agent.dispatch.dead_letters import GroupDeadLetters
from ringcast_heartbeat_agent.dispatch.driver import Driver
from ringcast_heartbeat_agent.dispatch.group import GroupContext
from ringcast_heartbeat_agent.dispatch.intake import Intake
from ringcast_heartbeat_agent.dispatch.key_follower import KeyFollower
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.errors import StoppedError
from ringcast_heartbeat_agent.opening import Opener
from ringcast_wire import AlreadyExistsError, RingcastError, decode_dead_letter, names
from typing_extensions import override

from tests.simulation.connection import SimConnection
from tests.simulation.network import TransientError
from tests.simulation.process import SimProcess, current

ACK_TIMEOUT_S: Final = 3.0
_SEEN_S: Final = 1.0
_AGAIN_S: Final = 0.2

__all__ = ["Intake", "ConsumerSession", "GroupDeadLetters", "KeySharedGroup"]


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

    def config(self, agent_id: str) -> Config:
        """The same for an agent."""
        return Config(
            agent_id=agent_id,
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
    """The process that dispatches. It runs one worker for all keys, where an agent has one for each."""

    runtime: Runtime

    @property
    def running(self) -> asyncio.Task[None]:
        """Runs it."""


class FollowedWorker(Worker):
    """The worker of a :class:`KeyFollower`: the real one, but for what runs it and has its changes."""

    def __init__(self, host: Host, *words: Any, handler: Any, on_assigned: Any, on_revoked: Any, **given: Any) -> None:
        super().__init__(*words, handler=handler, on_assigned=on_assigned, on_revoked=on_revoked, **given)
        self.take: Callable[[Change], None] = handler
        self.assigned: Callable[[str, frozenset[int]], None] = on_assigned
        self.revoked: Callable[[str, frozenset[int]], None] = on_revoked
        self._host = host

    @override
    async def start(self) -> None:
        runtime, running = self._host.runtime, self._host.running
        self._life.runtime, self._life._task = runtime, running
        await asyncio.wait(
            (running, asyncio.ensure_future(runtime.started.wait())), return_when=asyncio.FIRST_COMPLETED
        )
        if running.done():
            raise UnavailableError("the worker stopped while it was starting")


class DeadLetterStream(SimConnection):
    """What the agent's publisher uses of nats-py, over the connection of its process."""

    failure = nats.errors.TimeoutError
    max_payload = 1 << 20

    def __init__(self, process: SimProcess, store: str, partitions: int) -> None:
        super().__init__(process, process.link, process.broker, "-dead-letters")
        self._process = process
        self._stream = names.dead_stream(store)
        self._partitions = partitions

    async def publish(self, subject: str, body: bytes, *, headers: dict[str, str], timeout: float) -> None:
        """Returns when the stream has it."""
        assert headers[names.HEADER_MSG_ID]
        assert timeout > 0
        await self.ask(self._store, subject, body)

    def _store(self, subject: str, body: bytes) -> None:
        if self._stream not in self.broker.configs:
            raise TransientError("no stream")
        letter = decode_dead_letter(body, *names.parse_dead_subject(subject), self._partitions)
        self._process.note("settled", letter.key, letter.row_id, letter.version)


class Dispatching:
    """The groups of one process: one of each config key, with consumers, as soon as its worker is ready."""

    def __init__(
        self, host: Host, store: str, keys: tuple[str, ...], partitions: int, settings: DispatchSettings
    ) -> None:
        self._host = host
        self._process = cast(SimProcess, host)
        self._store = store
        self._keys = keys
        self._partitions = partitions
        self._settings = settings
        self._workers: dict[str, FollowedWorker] = {}
        self._groups: dict[str, KeySharedGroup] = {}

    def start(self) -> None:
        """Follows the keys, and has consumers come."""
        process = self._process
        config = self._settings.config(process.name.replace(".", "-"))
        stream: Any = DeadLetterStream(process, self._store, self._partitions)
        context = GroupContext(config, process.loop.create_task, GroupDeadLetters(stream, stream))
        for key in self._keys:
            make = partial(self._make, key)
            follower = KeyFollower(config, self._store, key, None, Counter(), Opener(""), make)
            process.loop.create_task(follower.run())
            process.loop.create_task(self._share(follower, context))

    def _make(self, key: str, *words: Any, **given: Any) -> FollowedWorker:
        worker = self._workers[key] = FollowedWorker(self._host, *words, **given)
        return worker

    async def _share(self, follower: KeyFollower, context: GroupContext) -> None:
        """As the agent does when the first consumer comes: it waits, and then has the rows that are there."""
        with suppress(RingcastError):  # the process ends: its worker could not start
            await follower.ready
            group = KeySharedGroup(follower, "g", context, self._settings.policy)
            follower.groups["g"] = self._groups[follower.key] = group
            for row_id in follower.row_ids():
                change = follower.change_of(row_id)
                assert change is not None
                self._received(change)
            for number in range(self._settings.consumers):
                consumer = Consumer(f"c{number}", group, self._settings, self._process.random)
                self._process.loop.create_task(consumer.run())

    def take(self, change: Change) -> None:
        """The worker's handler."""
        self._workers[change.key].take(change)
        if change.key in self._groups:
            self._received(change)

    def assigned(self, key: str, partitions: frozenset[int]) -> None:
        """The worker's ``on_assigned``."""
        self._workers[key].assigned(key, partitions)

    def revoked(self, key: str, partitions: frozenset[int]) -> None:
        """The worker's ``on_revoked``."""
        self._workers[key].revoked(key, partitions)

    @property
    def unrest(self) -> str:
        """What is not in order yet; empty if nothing."""
        if missing := [key for key in self._keys if key not in self._groups]:
            return f"has no group yet of {', '.join(missing)}"
        lag = sum(group.figures().lag for group in self._groups.values())
        return f"has {lag} messages that are not settled" if lag else ""

    def _received(self, change: Change) -> None:
        _note("dispatched", change.key, change.partition, change.row_id, change.version, change.value)


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

    @override
    def _give_up(self, offset: int) -> None:
        change = self._intake.messages[offset].change
        _note("given_up", change.key, change.row_id, change.version)
        super()._give_up(offset)


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
