"""The roles that are granted, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ringcast_wire import Role
from ringcast_wire.tokens import KnownToken

from ringcast_config_service.repository import roles
from ringcast_config_service.repository.base import Authorship, RoleGrant
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.audit import add_facts
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteRoles:
    """:class:`~ringcast_config_service.repository.parts.RoleRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def role_grants(self) -> list[RoleGrant]:
        return await self._sessions.read(_grants)

    async def grant_role(self, grant: RoleGrant, reason: str = "", groups: Sequence[str] = ()) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            if wanted := roles.may_grant(_grants(db), grant, reason, groups):
                db.execute(Sql.INSERT_ROLE, (*grant[:3], grant.granted_by))
                add_facts(db, [roles.granted_fact(grant, reason)])
            return wanted

        return await self._sessions.write(work)

    async def revoke_role(
        self, principal: str, store: str, role: Role, by: Authorship, groups: Sequence[str] = ()
    ) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            if found := roles.may_revoke(_grants(db), principal, store, role, by, groups):
                db.execute(Sql.DELETE_ROLE, (principal, store, role))
                add_facts(db, [roles.revoked_fact(principal, store, role, by)])
            return found

        return await self._sessions.write(work)

    async def revoked_tokens(self) -> frozenset[bytes]:
        return await self._sessions.read(_revoked)

    async def revoke_tokens(
        self,
        tokens: Sequence[KnownToken],
        known: Sequence[KnownToken] | None,
        by: Authorship,
        groups: Sequence[str] = (),
        issuers: Sequence[str] = (),
    ) -> int:
        def work(db: sqlite3.Connection) -> int:
            new = roles.revocable(_grants(db), _revoked(db), tokens, known, by, groups, issuers)
            db.executemany(
                Sql.INSERT_REVOKED_TOKEN, [(token.digest.hex(), token.principal, by.author) for token in new]
            )
            if new:
                add_facts(db, [roles.tokens_fact(new, by)])
            return len(new)

        return await self._sessions.write(work)


def _revoked(db: sqlite3.Connection) -> frozenset[bytes]:
    return roles.to_digests(db.execute(Sql.REVOKED_TOKENS).fetchall())


def _grants(db: sqlite3.Connection) -> list[RoleGrant]:
    return roles.to_grants(db.execute(Sql.ROLE_GRANTS).fetchall())
