"""The system of record in one SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping

from ringcast_service import ConfigError
from ringcast_sqlite import Database, StoreError, StoreOpenError
from ringcast_wire import UnavailableError

from ringcast_config_service.repository.base import PoolUse
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sql.statements import require_usable
from ringcast_config_service.repository.sqlite.audit import SqliteAudit
from ringcast_config_service.repository.sqlite.deletions import SqliteDeletions
from ringcast_config_service.repository.sqlite.history import SqliteHistories
from ringcast_config_service.repository.sqlite.lead import SqliteLead
from ringcast_config_service.repository.sqlite.maintenance import SqliteMaintenance
from ringcast_config_service.repository.sqlite.outbox import SqliteOutbox
from ringcast_config_service.repository.sqlite.policies import SqlitePolicies
from ringcast_config_service.repository.sqlite.reader import SqliteReader
from ringcast_config_service.repository.sqlite.releases import SqliteReleases
from ringcast_config_service.repository.sqlite.roles import SqliteRoles
from ringcast_config_service.repository.sqlite.schemas import SqliteSchemas
from ringcast_config_service.repository.sqlite.session import Sessions
from ringcast_config_service.repository.sqlite.stores import SqliteStores
from ringcast_config_service.repository.sqlite.writer import SqliteWriter


class SqliteRepository:
    """Embedded: no server. Several processes may use one file, but one of them writes at a time.

    An acknowledged write is on the disk. Construct, then :meth:`open`, which opens ``database`` too.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sessions = Sessions(database)
        self.stores = SqliteStores(self._sessions)
        self.deletions = SqliteDeletions(self._sessions)
        self.policies = SqlitePolicies(self._sessions)
        self.schemas = SqliteSchemas(self._sessions)
        self.reader = SqliteReader(self._sessions)
        self.writer = SqliteWriter(self._sessions)
        self.releases = SqliteReleases(self._sessions)
        self.histories = SqliteHistories(self._sessions)
        self.events = SqliteOutbox(self._sessions)
        self.roles = SqliteRoles(self._sessions)
        self.audit = SqliteAudit(self._sessions)
        self.lead = SqliteLead(self._sessions)
        self.maintenance = SqliteMaintenance(self._sessions)

    async def open(self) -> None:
        try:
            await self._database.open()
            version, usable_from = await self._database.write(_create_schema)
        except StoreOpenError as error:
            raise ConfigError(str(error)) from error
        except StoreError as error:
            raise UnavailableError(str(error)) from error
        require_usable(f"database {self._database.path}", version, usable_from)

    async def close(self) -> None:
        await self._database.close()

    async def ping(self) -> None:
        await self._sessions.read(lambda db: db.execute(Sql.PING).fetchone())

    async def check_writable(self) -> None:
        # Takes the lock of a write, and changes nothing.
        await self._sessions.write(lambda db: db.execute(Sql.PING).fetchone())

    async def clock_ms(self) -> int:
        return time.time_ns() // 1_000_000  # one file, one machine

    @property
    def retries(self) -> Mapping[str, int]:
        return {}  # one transaction at a time: there is nothing to serialise

    def pools(self) -> list[PoolUse]:
        return []


def _create_schema(db: sqlite3.Connection) -> tuple[int, int | None]:
    """Creates what is missing, upgrades what is older, and returns the schema's version, and from which on builds may
    use it; a newer one is left alone."""
    if not db.execute(Sql.HAS_SCHEMA).fetchone()[0]:
        for statement in Sql.TABLES:
            db.execute(statement)
    for statement in Sql.upgrade(db.execute(Sql.GET_SCHEMA).fetchone()[0]):
        db.execute(statement)
    (version,), (usable_from,) = (db.execute(sql).fetchone() for sql in (Sql.GET_SCHEMA, Sql.GET_USABLE_FROM))
    return version, usable_from
