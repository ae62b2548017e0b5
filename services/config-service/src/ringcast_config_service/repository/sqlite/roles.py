"""The roles that are granted, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ringcast_wire import Role
from ringcast_wire.tokens import KnownToken

from ringcast_config_service.repository import roles
from ringcast_config_service.repository.base import ALL, Authorship, RoleGrant
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.audit import add_facts
from ringcast_config_service.repository.sqlite.session import Sessions


class SqliteRoles:
    """:class:`~ringcast_config_service.repository.parts.RoleRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def role_grants(self) -> list[RoleGrant]:
        return await self._sessions.read(lambda db: roles.to_grants(db.execute(Sql.ROLE_GRANTS).fetchall()))

    async def grant_role(self, grant: RoleGrant, reason: str = "", groups: Sequence[str] = ()) -> RoleGrant | None:
        def work(db: sqlite3.Connection) -> RoleGrant | None:
            if not roles.may_grant(_to_check(db, grant.store, grant.principal), grant, reason, groups):
                return None
            ((at_ms,),) = db.execute(Sql.INSERT_ROLE, (*grant[:3], grant.granted_by)).fetchall()
            add_facts(db, [roles.granted_fact(grant, reason)])
            return grant._replace(granted_at_ms=at_ms)

        return await self._sessions.write(work)

    async def revoke_role(
        self, principal: str, store: str, role: Role, by: Authorship, groups: Sequence[str] = ()
    ) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            if found := roles.may_revoke(_to_check(db, store, principal), principal, store, role, by, groups):
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
            new = roles.revocable(_to_check(db, ALL, ALL), _revoked(db), tokens, known, by, groups, issuers)
            db.executemany(
                Sql.INSERT_REVOKED_TOKEN, [(token.digest.hex(), token.principal, by.author) for token in new]
            )
            if new:
                add_facts(db, [roles.tokens_fact(new, by)])
            return len(new)

        return await self._sessions.write(work)


def _revoked(db: sqlite3.Connection) -> frozenset[bytes]:
    return roles.to_digests(db.execute(Sql.REVOKED_TOKENS).fetchall())


def _to_check(db: sqlite3.Connection, store: str, principal: str) -> roles.Granted:
    """What decides on a role of a principal for a store."""
    found = roles.to_grants(db.execute(Sql.ROLES_TO_CHECK, (store, principal, *roles.GRANTING)).fetchall())
    ((count,),) = db.execute(Sql.COUNT_ROLES).fetchall()
    return roles.Granted(count, found)
