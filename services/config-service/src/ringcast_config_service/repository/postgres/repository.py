"""The system of record in PostgreSQL or CockroachDB.

Writes lock what they change and begin again where that can't be (40001, 40P01), a bounded number of times; how they
keep apart stands in :mod:`~ringcast_config_service.repository.postgres.session`. Reads are one REPEATABLE READ
snapshot, which nothing aborts.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import asyncpg
from ringcast_service import ConfigError
from ringcast_wire import UnavailableError

from ringcast_config_service.repository.base import DEFAULT_LOCK_TIMEOUT_MS, DEFAULT_WRITE_CONNECTIONS, PoolUse
from ringcast_config_service.repository.postgres import session as sessions
from ringcast_config_service.repository.postgres.audit import PostgresAudit
from ringcast_config_service.repository.postgres.deletions import PostgresDeletions
from ringcast_config_service.repository.postgres.history import PostgresHistories, RecordWatch
from ringcast_config_service.repository.postgres.lead import PostgresLead
from ringcast_config_service.repository.postgres.maintenance import PostgresMaintenance
from ringcast_config_service.repository.postgres.outbox import PostgresOutbox
from ringcast_config_service.repository.postgres.policies import PostgresPolicies
from ringcast_config_service.repository.postgres.reader import PostgresReader
from ringcast_config_service.repository.postgres.releases import PostgresReleases
from ringcast_config_service.repository.postgres.roles import PostgresRoles
from ringcast_config_service.repository.postgres.schemas import PostgresSchemas
from ringcast_config_service.repository.postgres.session import Connection, Sessions, error_line
from ringcast_config_service.repository.postgres.stores import PostgresStores
from ringcast_config_service.repository.postgres.writer import PostgresWriter
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_config_service.repository.sql.statements import require_usable

_SCHEMA_RACES = (
    asyncpg.UniqueViolationError,
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateObjectError,
    *sessions.RETRIED,
)


class PostgresRepository:
    """A database on which any number of instances may work. Construct, then :meth:`open`.

    Its parts share the connections, and any number of tasks may call any of their methods at once. ``writes``
    transactions of the writer run at a time, the others wait for a free connection; ``upkeep`` are the connections of
    the relay, of compaction and of the creation of stores.
    """

    def __init__(
        self,
        url: str,
        *,
        fetches: int = 8,
        snapshots: int = 8,
        writes: int = DEFAULT_WRITE_CONNECTIONS,
        upkeep: int = 4,
        lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
    ) -> None:
        self._sessions = Sessions(
            url, fetches=fetches, snapshots=snapshots, writes=writes, upkeep=upkeep, lock_timeout_ms=lock_timeout_ms
        )
        self._watch = RecordWatch()
        self.stores = PostgresStores(self._sessions)
        self.deletions = PostgresDeletions(self._sessions)
        self.policies = PostgresPolicies(self._sessions)
        self.schemas = PostgresSchemas(self._sessions)
        self.reader = PostgresReader(self._sessions)
        self.writer = PostgresWriter(self._sessions, self._watch)
        self.releases = PostgresReleases(self._sessions, self._watch)
        self.histories = PostgresHistories(self._sessions, self._watch)
        self.events = PostgresOutbox(self._sessions)
        self.roles = PostgresRoles(self._sessions)
        self.audit = PostgresAudit(self._sessions)
        self.lead = PostgresLead(self._sessions)
        self.maintenance = PostgresMaintenance(self._sessions)

    async def open(self) -> None:
        try:
            await self._sessions.open(self._on_connect)
            version = await self._create_schema()
            async with self._sessions.use("upkeep") as db:
                usable_from = await db.fetchval(Sql.GET_USABLE_FROM)
                require_usable("the database", version, usable_from)
                await self._watch.begin(db, is_postgres=self._sessions.is_postgres)
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
            raise ConfigError(f"the database refuses the user or its password: {error_line(error)}") from error
        except asyncpg.InvalidCatalogNameError as error:
            raise ConfigError(f"the database is not there: {error_line(error)}") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise ConfigError(f"the database user may not create tables: {error_line(error)}") from error
        except (asyncpg.ClientConfigurationError, ValueError) as error:
            raise ConfigError(f"the database address can't be used: {error_line(error)}") from error
        except Exception as error:
            if not sessions.is_away(error):
                raise
            raise UnavailableError(f"the database can't be reached: {error_line(error)}") from error

    async def close(self) -> None:
        await self._sessions.close()

    async def ping(self) -> None:
        async with self._sessions.use("fetches") as db:
            await db.fetchval(Sql.PING)

    async def check_writable(self) -> None:
        async with self._sessions.use("upkeep") as db:
            if await db.fetchval(Sql.IS_READ_ONLY) == "on":
                await self._sessions.connect_again()
                raise UnavailableError("the database takes no writes now, it is read-only")

    async def clock_ms(self) -> int:
        async with self._sessions.use("fetches") as db:
            return int(await db.fetchval(Sql.CLOCK_MS))

    @property
    def retries(self) -> Counter[str]:
        return self._sessions.retries

    def pools(self) -> list[PoolUse]:
        return self._sessions.pools()

    async def _on_connect(self, db: Connection) -> None:
        """A connection that writes is new: the database may have been restored since the others were made."""
        self.writer.forget_keys()
        await self._watch.look(db)

    async def _create_schema(self) -> int:
        """Creates what is missing, upgrades what is older. Several instances may do so at once: the loser of a race
        looks again."""
        backoff = sessions.collision_backoff()
        async with self._sessions.use("upkeep") as db:
            is_postgres = self._sessions.is_postgres
            tables, database = (Sql.TABLES, "") if is_postgres else (Sql.COCKROACH_TABLES, "COCKROACH_")
            for _ in range(sessions.MAX_ATTEMPTS):
                try:
                    if not await db.fetchval(Sql.HAS_SCHEMA) or not await db.fetchval(Sql.GET_SCHEMA):
                        # The upgrades too, before the version: an older build may have created some of the tables.
                        for statement in (*tables[:-1], *Sql.upgrade(1, database), tables[-1]):
                            await db.execute(statement)
                    for statement in Sql.upgrade(await db.fetchval(Sql.GET_SCHEMA), database):
                        await db.execute(statement)
                    return int(await db.fetchval(Sql.GET_SCHEMA))
                except _SCHEMA_RACES:
                    await asyncio.sleep(backoff.next_s())
        raise UnavailableError(
            f"the tables could not be created in {sessions.MAX_ATTEMPTS} attempts: others are creating them"
        )
