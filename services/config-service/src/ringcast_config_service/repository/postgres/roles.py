"""The roles that are granted, in PostgreSQL and CockroachDB."""

from __future__ import annotations

from collections.abc import Sequence

from ringcast_wire import Role
from ringcast_wire.tokens import KnownToken

from ringcast_config_service.repository import roles
from ringcast_config_service.repository.base import ALL, Authorship, RoleGrant
from ringcast_config_service.repository.postgres.audit import add_facts
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.sql.statements import Postgres as Sql


class PostgresRoles:
    """:class:`~ringcast_config_service.repository.parts.RoleRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def role_grants(self) -> list[RoleGrant]:
        async with self._sessions.use("fetches") as db:
            return roles.to_grants(await db.fetch(Sql.ROLE_GRANTS))

    async def grant_role(self, grant: RoleGrant, reason: str = "", groups: Sequence[str] = ()) -> RoleGrant | None:
        async def work(db: Connection) -> RoleGrant | None:
            if not roles.may_grant(await _locked(db, grant.store, grant.principal), grant, reason, groups):
                return None
            at_ms = await db.fetchval(Sql.INSERT_ROLE, *grant[:3], grant.granted_by)
            await add_facts(db, [roles.granted_fact(grant, reason)])
            return grant._replace(granted_at_ms=at_ms)

        return await self._sessions.transact(work)

    async def revoke_role(
        self, principal: str, store: str, role: Role, by: Authorship, groups: Sequence[str] = ()
    ) -> bool:
        async def work(db: Connection) -> bool:
            if found := roles.may_revoke(await _locked(db, store, principal), principal, store, role, by, groups):
                await db.execute(Sql.DELETE_ROLE, principal, store, role)
                await add_facts(db, [roles.revoked_fact(principal, store, role, by)])
            return found

        return await self._sessions.transact(work)

    async def revoked_tokens(self) -> frozenset[bytes]:
        async with self._sessions.use("fetches") as db:
            return roles.to_digests(await db.fetch(Sql.REVOKED_TOKENS))

    async def revoke_tokens(
        self,
        tokens: Sequence[KnownToken],
        known: Sequence[KnownToken] | None,
        by: Authorship,
        groups: Sequence[str] = (),
        issuers: Sequence[str] = (),
    ) -> int:
        async def work(db: Connection) -> int:
            granted = await _locked(db, ALL, ALL)
            revoked = roles.to_digests(await db.fetch(Sql.REVOKED_TOKENS))
            new = roles.revocable(granted, revoked, tokens, known, by, groups, issuers)
            for token in new:
                await db.execute(Sql.INSERT_REVOKED_TOKEN, token.digest.hex(), token.principal, by.author)
            if new:
                await add_facts(db, [roles.tokens_fact(new, by)])
            return len(new)

        return await self._sessions.transact(work)


async def _locked(db: Connection, store: str, principal: str) -> roles.Granted:
    """What decides on a role of a principal for a store; no other instance changes one until the end of the
    transaction."""
    await db.execute(Sql.LOCK_STORE_COUNT)
    found = roles.to_grants(await db.fetch(Sql.ROLES_TO_CHECK, store, principal, *roles.GRANTING))
    return roles.Granted(await db.fetchval(Sql.COUNT_ROLES), found)
