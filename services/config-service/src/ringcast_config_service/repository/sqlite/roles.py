"""The roles that are granted, in SQLite."""

from __future__ import annotations

import sqlite3

from ringcast_wire import Role

from ringcast_config_service.repository import roles
from ringcast_config_service.repository.base import RoleGrant
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteRoles:
    """:class:`~ringcast_config_service.repository.parts.RoleRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def role_grants(self) -> list[RoleGrant]:
        return await self._sessions.read(_grants)

    async def grant_role(self, grant: RoleGrant) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            if wanted := roles.may_grant(_grants(db), grant):
                db.execute(Sql.INSERT_ROLE, (*grant[:3], grant.granted_by))
            return wanted

        return await self._sessions.write(work)

    async def revoke_role(self, principal: str, store: str, role: Role, by: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            if found := roles.may_revoke(_grants(db), principal, store, role, by):
                db.execute(Sql.DELETE_ROLE, (principal, store, role))
            return found

        return await self._sessions.write(work)


def _grants(db: sqlite3.Connection) -> list[RoleGrant]:
    return roles.to_grants(db.execute(Sql.ROLE_GRANTS).fetchall())
