"""The lead of maintenance in PostgreSQL and CockroachDB."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ringcast_config_service.repository.lead import DUTY, MAX_LEASE_MS, Lead, LeadState, LostLeadError
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql

T = TypeVar("T")


class PostgresLead:
    """:class:`~ringcast_config_service.repository.lead.LeadRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def lead_state(self) -> LeadState:
        async with self._sessions.use("upkeep") as db:
            found = await db.fetchrow(Sql.GET_DUTY, DUTY)
        holder, token, until_ms, _, now_ms = found
        return LeadState(holder, token, until_ms - now_ms)

    async def take_lead(self, holder: str, lease_ms: int) -> Lead | None:
        async def work(db: Connection) -> Lead | None:
            await db.fetchval(Sql.LOCK_DUTY, DUTY)
            token = await db.fetchval(Sql.TAKE_DUTY, DUTY, holder, lease_ms, MAX_LEASE_MS)
            return None if token is None else Lead(holder, token)

        return await self._sessions.transact(work)

    async def keep_lead(self, lead: Lead, lease_ms: int) -> bool:
        async def work(db: Connection) -> bool:
            return await db.fetchval(Sql.KEEP_DUTY, DUTY, *lead, lease_ms) is not None

        return await self._sessions.transact(work)

    async def resign_lead(self, lead: Lead) -> None:
        async def work(db: Connection) -> None:
            await db.fetchval(Sql.LOCK_DUTY, DUTY)
            await db.execute(Sql.RESIGN_DUTY, DUTY, *lead)

        await self._sessions.transact(work)


async def transact_as(sessions: Sessions, lead: Lead | None, work: Callable[[Connection], Awaitable[T]]) -> T:
    """A transaction of a duty. ``lead`` is ``None`` where a caller wants it done, whichever instance leads.

    Raises:
        LostLeadError: the lead is lost; nothing was changed.
    """

    async def checked(db: Connection) -> T:
        if lead is not None and await db.fetchval(Sql.CHECK_DUTY, DUTY, *lead) is None:
            raise LostLeadError
        return await work(db)

    return await sessions.transact(checked)
