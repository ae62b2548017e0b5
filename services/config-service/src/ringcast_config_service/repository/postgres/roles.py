"""The roles that are granted, in PostgreSQL and CockroachDB."""

from __future__ import annotations

from ringcast_wire import Role

from ringcast_config_service.repository import roles
from ringcast_config_service.repository.base import RoleGrant
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresRoles:
    """:class:`~ringcast_config_service.repository.parts.RoleRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def role_grants(self) -> list[RoleGrant]:
        async with self._sessions.use("fetches") as db:
            return roles.to_grants(await db.fetch(Sql.ROLE_GRANTS))

    async def grant_role(self, grant: RoleGrant) -> bool:
        async def work(db: Connection) -> bool:
            if wanted := roles.may_grant(await _locked(db), grant):
                await db.execute(Sql.INSERT_ROLE, *grant[:3], grant.granted_by)
            return wanted

        return await self._sessions.transact(work)

    async def revoke_role(self, principal: str, store: str, role: Role, by: str) -> bool:
        async def work(db: Connection) -> bool:
            if found := roles.may_revoke(await _locked(db), principal, store, role, by):
                await db.execute(Sql.DELETE_ROLE, principal, store, role)
            return found

        return await self._sessions.transact(work)


async def _locked(db: Connection) -> list[RoleGrant]:
    """All roles; no other instance changes one until the end of the transaction."""
    await db.execute(Sql.LOCK_STORE_COUNT)
    return roles.to_grants(await db.fetch(Sql.ROLE_GRANTS))
