"""A worker: the real one, whole, with an application, in a process of the simulation."""

from __future__ import annotations

import asyncio
import logging
import random as global_random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Final
from unittest.mock import patch

from ringcast import Change
from ringcast._bus import consumers
from ringcast._common import process as identity
from ringcast._common.config import WorkerConfig
from ringcast._common.log import worker_log
from ringcast._common.process import Process as Identity
from ringcast._coordination import lease
from ringcast._protocol.actions import Ack, Action, HistoryChanged, HistoryRefused, Restored
from ringcast._protocol.filters import FilterPlan
from ringcast._protocol.key import KeyMachine
from ringcast._worker import session
from ringcast._worker.runtime import Runtime
from ringcast._worker.session import KeySession
from ringcast_wire import RingcastError, names
from typing_extensions import override

from tests.simulation.agent import Host
from tests.simulation.broker import Broker
from tests.simulation.dispatch import Dispatching, DispatchSettings
from tests.simulation.engine import Process, Scheduler
from tests.simulation.history import History
from tests.simulation.jetstream import Message
from tests.simulation.process import LOOP_TIME, SimProcess, current, modules_with_time
from tests.simulation.sim_bus import SimBus

HANDLER_TRIES: Final = 3


@dataclass(slots=True)
class WorkerSettings:
    """What of ``WorkerConfig`` matters here, and how the application behaves."""

    store: str
    keys: tuple[str, ...]
    full: bool
    window_s: float = 0.1
    stabilisation_s: float = 0.0
    grace_s: float = 5.0
    filters: int = 500
    ack_wait_s: float = 30.0
    max_ack_pending: int = 4_096
    parallel: int = 16
    handler_s: float = 0.0
    """The longest that a call of the handler takes."""
    handler_fails: float = 0.0
    """The share of its calls that raise."""
    refuses: str = ""
    """Values that begin so are refused, with every call."""
    revoke_s: float = 0.0
    """The longest that ``on_revoked`` takes."""

    def config(self, worker_id: str, name: str, agent: str) -> WorkerConfig:
        """The settings of a worker; ``name`` tells its process from all others."""
        return WorkerConfig(
            store=self.store,
            keys=self.keys,
            servers=(f"nats://{name}",),
            worker_id=worker_id,
            name=name,
            agent=agent,
            window_s=self.window_s,
            stabilisation_s=self.stabilisation_s,
            grace_s=self.grace_s,
            ack_wait_s=self.ack_wait_s,
            max_ack_pending=self.max_ack_pending,
            max_parallel_handlers=self.parallel,
            handler_tries=HANDLER_TRIES,
            max_delete_share=1.0,  # a list of a few rows may well be empty after a restore
        )


class FailedOnPurposeError(Exception):
    """What the application's handler raises now and then."""


class Application:
    """A handler that is slow or raises as often as it is told, and listeners: all that it sees becomes history."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._tries: dict[int, tuple[Change, int]] = {}
        settings = worker.settings
        slow = settings.handler_s or settings.handler_fails or settings.refuses
        self.handler: Callable[[Change], Awaitable[None] | None] = self._wait_and_handle if slow else self._handle
        if worker.dispatching is not None:
            self.handler = self._dispatch
        self.on_revoked: Callable[[str, frozenset[int]], Awaitable[None] | None] = self.revoked
        if settings.revoke_s:
            self.on_revoked = self._wait_and_revoke

    def _handle(self, change: Change) -> None:
        self._worker.on_call(change, True)
        self._note("handle", change)
        self._note("handled", change)
        self._worker.on_call(change, False)

    def _dispatch(self, change: Change) -> None:
        """As the agent's worker: consumers have it, now or later."""
        assert self._worker.dispatching is not None
        self._note("handle", change)
        self._worker.dispatching.take(change)
        self._note("handled", change)

    async def _wait_and_handle(self, change: Change) -> None:
        """Takes its time, and may fail."""
        self._worker.on_call(change, True)
        try:
            await self._try(change)
        finally:
            self._worker.on_call(change, False)

    async def _try(self, change: Change) -> None:
        """Counts as handled in the end, even if it has failed every time."""
        random, settings = self._worker.random, self._worker.settings
        _, tries = self._tries.pop(id(change), (change, 0))
        if not tries:
            self._note("handle", change)
        await asyncio.sleep(settings.handler_s * random.random())
        if random.random() < settings.handler_fails or self._is_refused(change):
            if tries + 1 < HANDLER_TRIES:
                self._tries[id(change)] = change, tries + 1
            else:
                self._note("handled", change)
            raise FailedOnPurposeError
        self._note("handled", change)

    def _is_refused(self, change: Change) -> bool:
        refuses = self._worker.settings.refuses
        return bool(refuses) and change.value is not None and change.value.startswith(refuses)

    def assigned(self, key: str, partitions: frozenset[int]) -> None:
        """The worker's ``on_assigned``."""
        self._worker.on_told(key, partitions)
        self._worker.note("assigned", key, tuple(sorted(partitions)))
        if self._worker.dispatching is not None:
            self._worker.dispatching.assigned(key, partitions)

    def revoked(self, key: str, partitions: frozenset[int]) -> None:
        """The worker's ``on_revoked``, or what it does first."""
        self._worker.note("revoked", key, tuple(sorted(partitions)))
        if self._worker.dispatching is not None:
            self._worker.dispatching.revoked(key, partitions)

    async def _wait_and_revoke(self, key: str, partitions: frozenset[int]) -> None:
        """``on_revoked`` of an application that takes its time."""
        with self._worker.within_last_call(key, partitions):
            self.revoked(key, partitions)
            await asyncio.sleep(self._worker.settings.revoke_s * self._worker.random.random())

    def _note(self, kind: str, change: Change) -> None:
        self._worker.note(kind, change.key, change.partition, change.row_id, change.version, change.value)


class Worker(SimProcess):
    """A process with one real worker in it."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        random: Random,
        *,
        worker_id: str,
        settings: WorkerSettings,
        broker: Broker,
        history: History,
        host: Host | None = None,
        dispatch: tuple[int, DispatchSettings] | None = None,
    ) -> None:
        super().__init__(scheduler, name, random, broker, history)
        self.worker_id = worker_id
        self.host = host
        """Whose agent keeps its lease; without one it keeps its own."""
        self.settings = settings
        self.process: Process = self
        self.leaving = False
        self.on_call: Callable[[Change, bool], None] = lambda _change, _begins: None
        """Is told of each call of the handler that begins, or ends."""
        self.on_told: Callable[[str, frozenset[int]], None] = lambda _key, _partitions: None
        """Is told of each ``on_assigned``."""
        self.within_last_call: Callable[[str, frozenset[int]], AbstractContextManager[None]] = (
            lambda _key, _partitions: nullcontext()
        )
        """Is around each ``on_revoked`` that takes its time."""
        self.on_pause: Callable[[], None] = lambda: None
        self._running: asyncio.Task[None] | None = None
        self._tokens: dict[str, tuple[str, int, int, str]] = {}
        self._log = worker_log(_silent)
        identity = Identity()
        identity.incarnation = name
        self.dispatching: Dispatching | None = (
            Dispatching(self, settings.store, settings.keys, *dispatch) if dispatch is not None else None
        )
        """It is an agent's own: what it is told goes to consumers."""
        application = Application(self)
        self.runtime = ObservedRuntime(
            settings.config(worker_id, name, host.path if host is not None else ""),
            self._log,
            handler=application.handler,
            on_assigned=application.assigned,
            on_revoked=application.on_revoked,
            open_bus=partial(SimBus.prepared, self),
            open_agent_call=partial(host.opened, self) if host is not None else None,
            process=identity,
        )
        self.runtime.worker = self

    @property
    def sessions(self) -> dict[str, KeySession]:
        """Its config keys, once it has begun."""
        return self.runtime.sessions

    def owned(self, key: str) -> frozenset[int]:
        """The partitions of a key that it takes itself to own."""
        return frozenset(self.sessions[key].machine.partitions) if self.sessions else frozenset()

    @property
    def lease_id(self) -> str:
        """The lease that its records are to name."""
        return self.runtime.lease.id if self.runtime.lease is not None else self.worker_id

    @property
    def by_agent(self) -> bool:
        """Whether its host's agent keeps its lease."""
        return self.runtime.lease is not None and self.runtime.lease.by_agent

    # ---- life

    def stop(self) -> None:
        """Has it leave in order, as SIGTERM does."""
        self.leaving = True
        self.run(self.runtime.stopping.set, ())

    @override
    def pause(self) -> None:
        self.on_pause()
        super().pause()

    @property
    def running(self) -> asyncio.Task[None]:
        """Runs its runtime, where it dispatches."""
        assert self._running is not None
        return self._running

    @override
    async def live(self) -> None:
        with suppress(RingcastError):  # another process has its id, or nothing answers
            if self.dispatching is None:
                await self.runtime.run()
            else:
                self._running = asyncio.create_task(self.runtime.run())
                self.dispatching.start()
                await self._running

    @override
    def crash(self) -> None:
        if self.alive:
            self.note_errors()
            self.note("end")
            super().crash()
            if self.host is not None:
                self.host.left(self)

    # ---- what it sends and gets

    def received(self, token: str, message: Message) -> None:
        """An event has come."""
        subject = names.parse_notify_subject(message.subject)
        self._tokens[token] = subject.config_key, subject.partition, message.event.rev, message.event.history

    def observe(self, action: Action, key: str) -> None:
        """The machine of a key wants something done."""
        match action:
            case Ack():
                for token in action.tokens:
                    if (delivery := self._tokens.pop(token, None)) is not None:
                        self.note("deferred" if action.deferred else "ack", *delivery)
            case HistoryChanged():
                self.note("history", key, action.before, action.after)
            case HistoryRefused():
                self.note("refused", key, str(action.refusal))
            case Restored():
                self.note("put_back", key, action.partition, action.applied, action.head)


class ObservedRuntime(Runtime):
    """Tells when its lease had ended and is held again."""

    worker: Worker

    @override
    def _verify(self) -> None:
        self.worker.note("lease_back")
        super()._verify()


class ObservedMachine(KeyMachine):
    """Tells what it owns, and what of its actions the promises are about."""

    @override
    def assign(self, partitions: frozenset[int]) -> None:
        before = frozenset(self.partitions)
        super().assign(partitions)
        worker = current(Worker)
        for number in sorted(before - partitions):
            worker.note("disown", self.key, number)
        for number in sorted(partitions - before):
            worker.note("own", self.key, number)

    @override
    def poll(self, now: float) -> list[Action]:
        actions = super().poll(now)
        if actions:
            worker = current(Worker)
            for action in actions:
                worker.observe(action, self.key)
        return actions


@contextmanager
def simulated(seed: int, filters: int) -> Iterator[None]:
    """Has the real code draw from the seed, tell the time by its loop, and show what the promises are about."""
    before = global_random.getstate()
    global_random.seed(seed)
    with ExitStack() as stack:
        for module in modules_with_time("ringcast"):
            stack.enter_context(patch.object(module, "time", LOOP_TIME))
        # Of this process, and so of all runs in it: workers that were killed have left their leases there.
        stack.enter_context(patch.object(lease, "_holders", Counter()))
        stack.enter_context(patch.object(identity, "os", SimpleNamespace(getpid=lambda: 1)))
        stack.enter_context(patch.object(identity, "socket", SimpleNamespace(gethostname=lambda: "host")))
        stack.enter_context(patch.object(session, "KeyMachine", ObservedMachine))
        stack.enter_context(patch.object(consumers, "FilterPlan", partial(FilterPlan, filters)))
        yield
    global_random.setstate(before)


_silent: Final = logging.getLogger("ringcast.simulation")
_silent.disabled = True
_silent.setLevel(logging.CRITICAL + 1)
