"""The audit log in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ringcast_config_service.repository import audit
from ringcast_config_service.repository.audit import AuditFact, AuditFilter, AuditPage, ChainPage
from ringcast_config_service.repository.base import SERVICE
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.lead import write_as
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteAudit:
    """:class:`~ringcast_config_service.repository.parts.AuditRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def add(self, facts: Sequence[AuditFact]) -> None:
        await self._sessions.write(lambda db: add_facts(db, facts))

    async def seal(self) -> int:
        def work(db: sqlite3.Connection) -> int:
            chain = audit.to_chain(db.execute(Sql.LOCK_AUDIT_CHAIN).fetchone())
            entries = audit.sealed(chain.head, db.execute(Sql.TAKE_PENDING_AUDIT, (audit.MAX_SEALED,)).fetchall())
            if entries:
                db.executemany(Sql.SEAL_AUDIT, entries)
                db.execute(Sql.SET_AUDIT_HEAD, (entries[-1].seq, entries[-1].hash))
            return len(entries)

        if not await self._sessions.read(lambda db: db.execute(Sql.HAS_PENDING_AUDIT).fetchone()):
            return 0
        return await self._sessions.write(work)

    async def audit_entries(self, wanted: AuditFilter, after: int, limit: int, *, newest_first: bool) -> AuditPage:
        def work(db: sqlite3.Connection) -> AuditPage:
            chain = audit.to_chain(db.execute(Sql.AUDIT_CHAIN).fetchone())
            bounds = audit.window(after, chain, newest_first=newest_first)
            statement = Sql.LIST_NEWEST_AUDIT if newest_first else Sql.LIST_AUDIT
            found = audit.to_entries(db.execute(statement, (*bounds, *wanted, limit)).fetchall())
            return audit.page_of(found, limit, bounds, chain, newest_first=newest_first)

        return await self._sessions.read(work)

    async def chain_page(self, after: int, limit: int) -> ChainPage:
        def work(db: sqlite3.Connection) -> ChainPage:
            chain = audit.to_chain(db.execute(Sql.AUDIT_CHAIN).fetchone())
            found = db.execute(Sql.AUDIT_RANGE, (max(after, chain.floor.seq), limit)).fetchall()
            return ChainPage(chain, audit.to_entries(found))

        return await self._sessions.read(work)

    async def forget_audit(self, lead: Lead, before_ms: int) -> int:
        def work(db: sqlite3.Connection) -> int:
            ages = db.execute(Sql.AUDIT_AGES, (audit.MAX_FORGOTTEN,)).fetchall()
            last, count = audit.expired(ages, before_ms)
            if last is not None:
                db.execute(Sql.FORGET_AUDIT, (last.seq,))
                db.execute(Sql.SET_AUDIT_FLOOR, last)
                add_facts(db, [audit.forget_fact(SERVICE, last, count)])
            return count

        return await write_as(self._sessions, lead, work)


def add_facts(db: sqlite3.Connection, facts: Sequence[AuditFact]) -> None:
    """Adds what a transaction has done, within it."""
    db.executemany(Sql.INSERT_AUDIT, facts)
