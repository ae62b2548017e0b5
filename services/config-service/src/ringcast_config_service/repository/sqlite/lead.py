"""The lead of maintenance in SQLite, whose clock is this machine's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from ringcast_config_service.repository.lead import DUTY, MAX_LEASE_MS, Lead, LeadState, LostLeadError
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.session import Sessions

T = TypeVar("T")


class SqliteLead:
    """:class:`~ringcast_config_service.repository.lead.LeadRepository`; several processes may use one file."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def lead_state(self) -> LeadState:
        found = await self._sessions.read(lambda db: db.execute(Sql.GET_DUTY, (DUTY,)).fetchone())
        holder, token, until_ms, _, now_ms = found
        return LeadState(holder, token, until_ms - now_ms)

    async def take_lead(self, holder: str, lease_ms: int) -> Lead | None:
        params = (DUTY, holder, lease_ms, MAX_LEASE_MS)
        # A write transaction is alone: there is none under way to wait for.
        found = await self._sessions.write(lambda db: db.execute(Sql.TAKE_DUTY, params).fetchall())
        return Lead(holder, found[0][0]) if found else None

    async def keep_lead(self, lead: Lead, lease_ms: int) -> bool:
        params = (DUTY, *lead, lease_ms)
        return bool(await self._sessions.write(lambda db: db.execute(Sql.KEEP_DUTY, params).fetchall()))

    async def resign_lead(self, lead: Lead) -> None:
        await self._sessions.write(lambda db: db.execute(Sql.RESIGN_DUTY, (DUTY, *lead)).rowcount)


async def write_as(sessions: Sessions, lead: Lead | None, work: Callable[[sqlite3.Connection], T]) -> T:
    """A transaction of a duty. ``lead`` is ``None`` where a caller wants it done, whichever instance leads.

    Raises:
        LostLeadError: the lead is lost; nothing was changed.
    """

    def checked(db: sqlite3.Connection) -> T:
        if lead is not None and not db.execute(Sql.CHECK_DUTY, (DUTY, *lead)).fetchall():
            raise LostLeadError
        return work(db)

    return await sessions.write(checked)
