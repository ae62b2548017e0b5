"""A config service that publishes releases: it may die at each step of that, by the number of the step."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Final, TypeVar
from unittest.mock import patch

from ringcast_config_service import core as service_core
from ringcast_config_service.core import Core
from ringcast_config_service.promql.conditions import Answer, Outcome
from ringcast_config_service.repository import Certificate, Release, release_steps
from ringcast_config_service.repository.sqlite.releases import SqliteReleases
from ringcast_wire import KeyCertificate, RingcastError, UnavailableError
from ringcast_wire._reports import asking
from ringcast_wire.reports import decode_report_request
from typing_extensions import override

from tests.simulation.database import SimDatabase
from tests.simulation.process import current
from tests.simulation.release_judge import ReleaseJudge
from tests.simulation.service import Service, SimRepository
from tests.simulation.sim_client import SimClient

T = TypeVar("T")


class Part(StrEnum):
    """What of an instance takes a step for releases."""

    NONE = ""
    CALLER = "caller"
    """It does what a caller wants."""
    DRIVER = "driver"
    """It publishes, judges gates, and undoes."""
    RELAY = "relay"
    """It tells workers what is published."""


_part: ContextVar[Part] = ContextVar("part", default=Part.NONE)
_PARTS: Final = {"releases": Part.DRIVER, "relay": Part.RELAY}


class Steps:
    """Counts the steps that all instances take for releases. The one that takes a step of ``crash_at`` dies there."""

    def __init__(self, crash_at: Collection[int]) -> None:
        self.taken: list[str] = []
        """What each of them was."""
        self.crash_at = frozenset(crash_at)
        self.is_counting = False
        """Whether a release is under way, so that not only what callers want counts."""

    def take(self, what: str) -> bool:
        """Counts a step; whether the instance that takes it dies."""
        part = _part.get()
        if part is Part.NONE or not (self.is_counting or part is Part.CALLER):
            return False
        self.taken.append(f"{part} {what}")
        return len(self.taken) in self.crash_at


class Prometheus:
    """What answers the PromQL conditions of gates."""

    def __init__(self) -> None:
        self.outcome = Outcome.MET
        self.told: dict[str, Outcome] = {}
        """What each instance was told last."""


class ReleaseService(Service):
    """A real service whose steps for releases are counted, and seen by the judge."""

    steps: Steps
    judge: ReleaseJudge
    prometheus: Prometheus
    on_death: Callable[[], None]
    """Is called when it dies at a step."""

    def call(self, op: Callable[[Core], Awaitable[T]], done: Callable[[T | RingcastError], None]) -> None:
        """Does something for a client, and tells it the outcome, unless the process ends before."""
        self.run(self._begin_call, (op, done))

    def _begin_call(self, op: Callable[[Core], Awaitable[T]], done: Callable[[T | RingcastError], None]) -> None:
        if self.core is None:
            done(UnavailableError("it is starting"))
        else:
            self.loop.create_task(self._call(self.core, op, done), context=_as(Part.CALLER))

    async def _call(
        self, core: Core, op: Callable[[Core], Awaitable[T]], done: Callable[[T | RingcastError], None]
    ) -> None:
        found: T | RingcastError
        try:
            found = await op(core)
        except RingcastError as error:
            found = error
        await self.step("answer")
        done(found)

    async def step(self, what: str) -> None:
        """Ends the process here if that is what is to happen."""
        if self.alive and self.steps.take(what):
            self.note("dies_at", len(self.steps.taken), what)
            self.crash()
            self.on_death()
        if not self.alive:
            await self.loop.create_future()

    # ---- its parts

    @override
    def open_client(self) -> SimClient:
        return SteppedClient(self, self.link, self.broker, self._max_payload)

    @override
    def open_database(self) -> SimDatabase:
        return SteppedDatabase(self)

    @override
    def open_record(self) -> SimRepository:
        return ReleaseRepository(self)

    @override
    async def _serve(self, core: Core) -> None:
        self.core = core
        async with asyncio.TaskGroup() as tasks:
            for name, work in core.work().items():
                tasks.create_task(work, context=_as(_PARTS.get(name, Part.NONE)))


def _as(part: Part) -> Context:
    context = copy_context()
    context.run(_part.set, part)
    return context


class SteppedClient(SimClient):
    """Each request is a step, and so is each message."""

    process: ReleaseService

    @override
    async def ask(self, op: Callable[..., Any], *args: Any, changes: bool = True, takes_s: float = 0.0) -> Any:
        await self.process.step("request")
        return await super().ask(op, *args, changes=changes, takes_s=takes_s)

    @override
    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        await self.process.step("message")
        if subject.startswith("config.report."):
            round_id = decode_report_request(payload).round_id
            self.process.judge.asked(self.process.name, subject.rpartition(".")[2], round_id)
        await super().publish(subject, payload, reply, headers)


class SteppedDatabase(SimDatabase):
    """A transaction that writes is two steps: one before its commit, one behind. One that reads is one step."""

    def __init__(self, service: ReleaseService) -> None:
        super().__init__(service.database, service.random)
        self._service = service

    @override
    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        await self._service.step("write")
        found = await super().write(work)
        await self._service.step("written")
        return found

    @override
    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if _part.get() is not Part.RELAY:  # which polls
            await self._service.step("read")
        return await super().read(work)


class ReleaseRepository(SimRepository):
    """With releases whose proofs the judge looks at."""

    def __init__(self, service: ReleaseService) -> None:
        super().__init__(service)
        self.releases = JudgedReleases(self, service)


class JudgedReleases(SqliteReleases):
    """The judge hears what an instance takes for proven, before that is stored."""

    def __init__(self, record: SimRepository, service: ReleaseService) -> None:
        super().__init__(record._sessions)
        self._service = service

    @override
    async def pass_gate(
        self, store: str, number: int, wave: int, proven: Sequence[KeyCertificate] = (), instance: str = ""
    ) -> Release:
        service = self._service
        service.judge.claimed(service.name, number, wave, proven)
        return await super().pass_gate(store, number, wave, proven, instance)

    @override
    async def set_proven(
        self, store: str, number: int, keys: Sequence[KeyCertificate], instance: str
    ) -> tuple[Release, Certificate]:
        self._service.judge.claimed(self._service.name, number, 0, keys)
        return await super().set_proven(store, number, keys, instance)


class SimConditions:
    """In the place of ``Conditions``, which asks a Prometheus over HTTP."""

    def __init__(self, *_: Any) -> None:
        pass

    async def check(self, _place: str, conditions: Sequence[str]) -> None:
        """Lets every release begin."""

    async def ask(self, conditions: Sequence[str]) -> list[Answer]:
        """What becomes of each condition."""
        if not conditions:
            return []
        service = current(ReleaseService)
        await asyncio.sleep(service.random.uniform(0.001, 0.02))
        outcome = service.prometheus.told[service.name] = service.prometheus.outcome
        return [Answer(outcome)] * len(conditions)


@contextmanager
def simulated_releases(service_random: Any, step_rows: int, wave_rows: int) -> Iterator[None]:
    """Has the real code take few rows in a step, so that a release is many of them, and draw from the seed."""
    secrets = SimpleNamespace(token_hex=lambda size: service_random.randbytes(size).hex())
    with ExitStack() as stack:
        stack.enter_context(patch.object(service_core, "Conditions", SimConditions))
        stack.enter_context(patch.object(release_steps, "STEP_ROWS", step_rows))
        stack.enter_context(patch.object(release_steps, "WAVE_ROWS", wave_rows))
        stack.enter_context(patch.object(release_steps, "REMOVED_ROWS", step_rows))
        stack.enter_context(patch.object(asking, "secrets", secrets))
        yield
