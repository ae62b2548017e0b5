"""The system of record: the service's own SQLite repository, on a database in memory that can be away or go back."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from ringcast_config_service.repository import StoreRecord, audit, mapping
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.writes import Plan, PlannedRow
from ringcast_sqlite import StoreError
from ringcast_wire import names
from ringcast_wire.audit import ChainCheck

from tests.simulation.engine import Scheduler

T = TypeVar("T")

Committed = Callable[[str, int, list[PlannedRow], str], None]
"""Is told of each partition that a transaction wrote: key, partition, every revision in order, and their history."""

EPOCH_S: Final = 1_700_000_000.0
_DAY_S: Final = 86_400.0
_JULIAN_EPOCH: Final = 2_440_587.5


class Database:
    """One file and its clock, for all services. A transaction takes no time once it has begun."""

    def __init__(self, scheduler: Scheduler, committed: Committed, began: Callable[[dict[str, str]], None]) -> None:
        self.up = True
        self.unreadable: set[str] = set()
        """Rows that can't be read by their names."""
        self.plan: Plan | None = None
        """What the transaction that runs has planned to write."""
        self._scheduler = scheduler
        self._committed = committed
        self._began = began
        self._file = self._open()
        self._backup = b""

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256)
        # Python's garbage collector sees no reference of SQLite's: with a strong one no world would ever be freed.
        database = weakref.ref(self)

        def julianday(_what: str) -> float:
            clock = database()
            assert clock is not None, "a statement runs in a database that is gone"
            return clock.now_s() / _DAY_S + _JULIAN_EPOCH

        file.create_function("julianday", 1, julianday)
        return file

    def now_s(self) -> float:
        """Its clock, as Unix time."""
        return EPOCH_S + self._scheduler.now

    def run(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs a transaction.

        Raises:
            StoreError: the database is away.
        """
        if not self.up:
            raise StoreError("the database does not answer")
        self.plan = None
        self._file.execute(begin)
        try:
            found = work(self._file)
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")
        if self.plan is not None:
            self._tell(self.plan)
        return found

    def _tell(self, plan: Plan) -> None:
        histories = {}
        for event in plan.events:
            place = names.parse_notify_subject(event.subject)
            _, histories[place.config_key] = names.parse_event_msg_id(event.msg_id)
        written: dict[tuple[str, int], list[PlannedRow]] = {}
        for row in plan.history:
            written.setdefault((row.key.name, row.partition), []).append(row)
        for (key, partition), rows in written.items():
            self._committed(key, partition, rows, histories[key])

    def histories_began(self) -> None:
        """The keys have histories that may be others than before."""
        self._began(dict(self._rows("SELECT name, history_id FROM config_keys")))

    # ---- what the simulation wants to know

    def _rows(self, sql: str, *words: Any) -> list[tuple[Any, ...]]:
        return self._file.execute(sql, words).fetchall()

    @property
    def unpublished(self) -> int:
        """How many events wait in the outbox."""
        return int(self._rows("SELECT count(*) FROM outbox")[0][0])

    def heads(self) -> dict[tuple[str, int], int]:
        """The revision of each partition that was ever written, by key and number."""
        found = self._rows("SELECT name, partition, head FROM partitions JOIN config_keys USING (key_id)")
        return {(key, partition): head for key, partition, head in found}

    def audit_problem(self) -> str:
        """What is wrong with the audit log: each revision is in one of its entries, and these form a chain."""
        if pending := self._rows("SELECT count(*) FROM audit_pending")[0][0]:
            return f"{pending} entries of the audit log are not chained"
        entries = audit.to_entries(self._rows(Sql.AUDIT_RANGE, 0, 1 << 40))
        check = ChainCheck()
        check.add(audit.to_chain(self._rows(Sql.AUDIT_CHAIN)[0]), entries, last=True)
        said = [json.loads(entry.details) for entry in entries if entry.action == "WriteRows"]
        told, written = sum(each["written"] + each["deleted"] for each in said), sum(self.heads().values())
        if told != written:
            return f"the audit log tells of {told} revisions, there are {written}"
        return check.problem

    def create(self, store: StoreRecord) -> None:
        """Makes the tables and a store, as a service did in an earlier life."""
        for statement in Sql.TABLES:
            self._file.execute(statement)
        self._file.execute(Sql.INSERT_STORE, mapping.from_store(store))

    # ---- backups

    def back_up(self) -> None:
        """Keeps a copy of everything."""
        self._backup = self._file.serialize()

    def restore(self) -> None:
        """Is again as it was when it was backed up."""
        self._file.close()
        self._file = self._open()
        self._file.deserialize(self._backup)


class SimDatabase:
    """In the place of ``ringcast_sqlite.Database``: calls wait for virtual time in place of threads."""

    def __init__(self, database: Database, random: Random) -> None:
        self.path = Path("simulated")
        self._database = database
        self._random = random

    async def open(self) -> None:
        """Is always possible."""

    async def close(self) -> None:
        """Nothing is left."""

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """A transaction that writes."""
        return await self._run("BEGIN IMMEDIATE", work)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One that reads."""
        return await self._run("BEGIN", work)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[SimDatabase]:
        """For one read only: each is of one moment."""
        yield self

    async def _run(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        await asyncio.sleep(self._random.uniform(0.0003, 0.005))
        found = self._database.run(begin, work)
        await asyncio.sleep(self._random.uniform(0.0003, 0.005))
        return found
