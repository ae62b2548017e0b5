"""The audit log in PostgreSQL and CockroachDB."""

from __future__ import annotations

from collections.abc import Sequence

from ringcast_config_service.repository import audit
from ringcast_config_service.repository.audit import AuditFact, AuditFilter, AuditPage, ChainPage
from ringcast_config_service.repository.base import SERVICE
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.postgres.lead import transact_as
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresAudit:
    """:class:`~ringcast_config_service.repository.parts.AuditRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def add(self, facts: Sequence[AuditFact]) -> None:
        await self._sessions.transact(lambda db: add_facts(db, facts))

    async def seal(self) -> int:
        async def work(db: Connection) -> int:
            chain = audit.to_chain(await db.fetchrow(Sql.LOCK_AUDIT_CHAIN))
            entries = audit.sealed(chain.head, await db.fetch(Sql.TAKE_PENDING_AUDIT, audit.MAX_SEALED))
            if entries:
                await db.execute(Sql.SEAL_AUDIT, *map(list, zip(*entries, strict=True)))
                await db.execute(Sql.SET_AUDIT_HEAD, entries[-1].seq, entries[-1].hash)
            return len(entries)

        async with self._sessions.use("upkeep") as db:
            if not await db.fetchval(Sql.HAS_PENDING_AUDIT):
                return 0
        return await self._sessions.transact(work)

    async def audit_entries(self, wanted: AuditFilter, after: int, limit: int, *, newest_first: bool) -> AuditPage:
        async with self._sessions.snapshot("fetches") as db:
            chain = audit.to_chain(await db.fetchrow(Sql.AUDIT_CHAIN))
            bounds = audit.window(after, chain, newest_first=newest_first)
            statement = Sql.LIST_NEWEST_AUDIT if newest_first else Sql.LIST_AUDIT
            found = audit.to_entries(await db.fetch(statement, *bounds, *wanted, limit))
            return audit.page_of(found, limit, bounds, chain, newest_first=newest_first)

    async def chain_page(self, after: int, limit: int) -> ChainPage:
        async with self._sessions.snapshot("fetches") as db:
            chain = audit.to_chain(await db.fetchrow(Sql.AUDIT_CHAIN))
            found = await db.fetch(Sql.AUDIT_RANGE, max(after, chain.floor.seq), limit)
            return ChainPage(chain, audit.to_entries(found))

    async def forget_audit(self, lead: Lead, before_ms: int) -> int:
        async def work(db: Connection) -> int:
            await db.fetchrow(Sql.LOCK_AUDIT_CHAIN)
            last, count = audit.expired(await db.fetch(Sql.AUDIT_AGES, audit.MAX_FORGOTTEN), before_ms)
            if last is not None:
                await db.execute(Sql.FORGET_AUDIT, last.seq)
                await db.execute(Sql.SET_AUDIT_FLOOR, *last)
                await add_facts(db, [audit.forget_fact(SERVICE, last, count)])
            return count

        return await transact_as(self._sessions, lead, work)


async def add_facts(db: Connection, facts: Sequence[AuditFact]) -> None:
    """Adds what a transaction has done, within it."""
    if facts:
        await db.execute(Sql.INSERT_AUDIT, *fact_columns(facts))


def fact_columns(facts: Sequence[AuditFact]) -> list[list[str]]:
    """The parameters of INSERT_AUDIT: an array a column."""
    return [list(column) for column in zip(*facts, strict=True)]
