"""A config service: all that the real one does beside listening for gRPC, in a process of the simulation."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import nats.errors
from ringcast_config_service.config import Config
from ringcast_config_service.core import Core
from ringcast_config_service.nats import relay
from ringcast_config_service.repository import OutboxRecord, StoreRecord, WriteRequest, Written, base, writes
from ringcast_config_service.repository.sqlite.history import SqliteHistories
from ringcast_config_service.repository.sqlite.outbox import SqliteOutbox
from ringcast_config_service.repository.sqlite.reader import SqliteReader
from ringcast_config_service.repository.sqlite.repository import SqliteRepository
from ringcast_config_service.repository.sqlite.session import Sessions
from ringcast_config_service.repository.sqlite.writer import SqliteWriter
from ringcast_config_service.repository.writes import CurrentState, Plan
from ringcast_config_service.telemetry import Telemetry
from ringcast_config_service.writes.batches import RowInput
from ringcast_wire import FetchReply, RingcastError, UnavailableError
from typing_extensions import override

from tests.simulation.broker import Broker
from tests.simulation.database import EPOCH_S, Database, SimDatabase
from tests.simulation.engine import Scheduler
from tests.simulation.history import History
from tests.simulation.process import SimProcess, clock, current, modules_with_time
from tests.simulation.sim_client import SimClient

COMPACT_EVERY_S: Final = 7.0
START_AGAIN_S: Final = 0.5
RELAY_BATCH: Final = 8
"""Far fewer than the service's 1,000, so that paging through the outbox happens."""
RELAY_POLL_S: Final = 0.5
QUEUED_EVENTS: Final = 24
"""Far fewer than the service's 8,192, so that some are left to the outbox."""

_SERVICE: Final = "ringcast_config_service"
STEPS_THAT_MAY_CRASH: Final = ("commit", "outbox", "published", "answer")


class Service(SimProcess):
    """A process with one real service in it, but for its listeners."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        random: Random,
        *,
        broker: Broker,
        database: Database,
        history: History,
        store: StoreRecord,
        max_payload: int,
        retention_ms: int,
    ) -> None:
        super().__init__(scheduler, name, random, broker, history)
        self.crash_at = ""
        """The step, of ``STEPS_THAT_MAY_CRASH``, at which it dies the next time that it gets there."""
        self.store = store
        self.database = database
        self._max_payload = max_payload
        self._config = Config(
            database="sqlite:simulated",
            compaction_interval_s=COMPACT_EVERY_S,
            tombstone_retention_ms=retention_ms,
            relay_batch=RELAY_BATCH,
            relay_poll_s=RELAY_POLL_S,
        )
        self._skew_s = random.uniform(-20.0, 20.0)
        self.core: Core | None = None

    def wall_s(self) -> float:
        """Its wall clock, as Unix time."""
        return EPOCH_S + self.scheduler.now + self._skew_s

    @override
    async def live(self) -> None:
        await self._serve(await self._started())

    async def _started(self) -> Core:
        """Tries until it has a connection, and the server has its subscriptions."""
        while True:
            if self.link.connect():
                client: Any = self.open_client()
                client.before_answer = lambda: self.may_die_at("answer")
                record = self.open_record()
                instance_id = base.new_history_id()  # drawn from the seed
                core = Core(self._config, record, client, client.jetstream(), Telemetry(), instance_id)
                try:
                    await core.fetches.start()
                except nats.errors.Error:
                    self._leave()  # what starts services does so again
                else:
                    self.link.on_lost.append(partial(client.in_loop, core.disconnected))
                    self.link.on_back.append(partial(client.in_loop, core.reconnected))
                    return core
            await asyncio.sleep(START_AGAIN_S)

    def open_client(self) -> SimClient:
        """Its client of NATS."""
        return SimClient(self, self.link, self.broker, self._max_payload)

    def open_database(self) -> SimDatabase:
        """Its connection to the database."""
        return SimDatabase(self.database, self.random)

    def open_record(self) -> SimRepository:
        """Its system of record."""
        return SimRepository(self)

    async def _serve(self, core: Core) -> None:
        self.core = core
        async with asyncio.TaskGroup() as tasks:
            for work in core.work().values():
                tasks.create_task(work)

    def _leave(self) -> None:
        """It takes no fetches any more."""
        self.broker.responders = [each for each in self.broker.responders if each.process is not self]

    # ---- its end

    @override
    def crash(self) -> None:
        if self.alive:
            super().crash()
            self._leave()

    async def may_die_at(self, step: str) -> None:
        """Ends it here if that is what is to happen."""
        if self.crash_at == step:
            self.crash_at = ""
            self.crash()
        if not self.alive:
            await self.loop.create_future()

    # ---- what clients ask

    def write(self, key: str, rows: Sequence[RowInput]) -> None:
        """Writes rows of a key, for a client that may never hear of the outcome."""
        self.run(self._begin_write, (key, rows))

    def _begin_write(self, key: str, rows: Sequence[RowInput]) -> None:
        if self.core is not None:
            self.loop.create_task(self._write(self.core, key, rows))

    async def _write(self, core: Core, key: str, rows: Sequence[RowInput]) -> None:
        try:
            found = await core.handlers.check_batch(
                self.store.name, key, rows, skip_invalid=False, skip_unchanged=False, chain=base.Chain()
            )
            if found.request is not None:
                await core.writer.write(found.request)
        except RingcastError:
            pass  # the client is told


class SimRepository(SqliteRepository):
    """The real one, on the database of the simulation; its process may die between two calls."""

    def __init__(self, service: Service) -> None:
        stand_in: Any = service.open_database()
        super().__init__(stand_in)
        database = service.database
        self.writer = SimWriter(self._sessions, service)
        self.reader = SimReader(self._sessions, database)
        self.histories = SimHistories(self._sessions, database)
        self.events = SimOutbox(self._sessions, service)


class SimWriter(SqliteWriter):
    def __init__(self, sessions: Sessions, service: Service) -> None:
        super().__init__(sessions)
        self._service = service

    @override
    async def write(self, requests: Sequence[WriteRequest], now_ms: int) -> Written:
        written = await super().write(requests, now_ms)
        await self._service.may_die_at("commit")
        return written


class SimHistories(SqliteHistories):
    def __init__(self, sessions: Sessions, database: Database) -> None:
        super().__init__(sessions)
        self._began = database.histories_began

    @override
    async def new_history(
        self, store: str, *, instead_of: str | None = None, by: base.Authorship = base.SERVICE, after: int = 0
    ) -> str:
        history = await super().new_history(store, instead_of=instead_of, by=by, after=after)
        self._began()
        return history


class SimOutbox(SqliteOutbox):
    def __init__(self, sessions: Sessions, service: Service) -> None:
        super().__init__(sessions)
        self._service = service

    @override
    async def outbox(self, store: str, after: int, limit: int, max_bytes: int) -> list[OutboxRecord]:
        found = await super().outbox(store, after, limit, max_bytes)
        await self._service.may_die_at("outbox")
        return found

    @override
    async def delete_events(self, ids: Sequence[int]) -> None:
        await self._service.may_die_at("published")
        await super().delete_events(ids)


class SimReader(SqliteReader):
    def __init__(self, sessions: Sessions, database: Database) -> None:
        super().__init__(sessions)
        self._unreadable = database.unreadable

    @override
    async def read_rows(
        self, store: str, key: str, row_ids: Sequence[str], most_bytes: int = sys.maxsize
    ) -> FetchReply:
        if not self._unreadable.isdisjoint(row_ids):
            raise UnavailableError("these rows are not to be read now")
        return await super().read_rows(store, key, row_ids, most_bytes)


@contextmanager
def simulated_service(random: Random, database: Database) -> Iterator[None]:
    """Has the real code tell the time by its process, draw from the seed, and show what it commits."""

    def token_hex(size: int) -> str:
        return random.randbytes(size).hex()

    def plan(requests: Sequence[WriteRequest], state: CurrentState, now_ms: int) -> Plan:
        found = database.plan = plan_writes(requests, state, now_ms)
        return found

    plan_writes = writes.plan_writes
    own_time = SimpleNamespace(
        monotonic=clock,
        perf_counter=clock,
        clock_gettime=lambda _clock: clock(),
        time=lambda: current(Service).wall_s(),
    )
    database_time = SimpleNamespace(
        monotonic=clock, time=database.now_s, time_ns=lambda: int(database.now_s() * 1e9), sleep=time.sleep
    )
    secrets = SimpleNamespace(token_hex=token_hex)
    uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=token_hex(8)))
    logger = logging.getLogger("ringcast_config_service")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with ExitStack() as stack:
        stack.callback(logger.setLevel, level)
        for module in modules_with_time(_SERVICE):
            of_database = module.__name__.startswith(f"{_SERVICE}.repository.")
            stack.enter_context(patch.object(module, "time", database_time if of_database else own_time))
        stack.enter_context(patch.object(base, "secrets", secrets))
        stack.enter_context(patch.object(relay, "uuid", uuid))
        stack.enter_context(patch.object(relay, "MAX_QUEUED_EVENTS", QUEUED_EVENTS))
        stack.enter_context(patch.object(writes, "plan_writes", plan))
        yield
