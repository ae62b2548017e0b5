"""The policies of stores in PostgreSQL and CockroachDB."""

from __future__ import annotations

from ringcast_wire import StorePolicy

from ringcast_config_service.repository import audit, budgets, mapping
from ringcast_config_service.repository.base import SERVICE, Authorship, StoreInfo
from ringcast_config_service.repository.policies import PolicyChange, least_schema
from ringcast_config_service.repository.postgres.audit import add_facts
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.postgres.stores import store_info
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_config_service.repository.writes import NO_CAPS


class PostgresPolicies:
    """:class:`~ringcast_config_service.repository.parts.PolicyRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def set_policy(self, name: str, change: PolicyChange, by: Authorship = SERVICE) -> StoreInfo:
        async def fill(db: Connection) -> None:
            """In a transaction of its own: what inserts heads must not wait for those that others have locked."""
            await db.execute(Sql.LOCK_STORES, [name])
            record = mapping.only_record(await db.fetchrow(Sql.GET_STORE, name), name)
            if budgets.needs_heads(change.of(record.policy)):
                await _fill_heads(db, name, record.partition_count)

        async def work(db: Connection) -> StoreInfo:
            await db.execute(Sql.LOCK_STORES, [name])
            record = mapping.only_record(await db.fetchrow(Sql.GET_STORE, name), name)
            policy = change.of(record.policy)
            if policy != record.policy:
                before = await db.fetchval(Sql.GET_POLICY, name)
                await db.execute(Sql.SET_POLICY, name, mapping.from_policy(policy, before))
                await db.execute(Sql.RAISE_USABLE_FROM, least_schema(policy))
                await add_facts(db, [audit.fact(by, "SetStorePolicy", name, **change.details())])
            if budgets.limits_differ(policy, record.policy):
                await _limit(db, name, record.partition_count, policy)
            if "releases_only" in change.details():  # also where it says so already: an older build may have lost it
                await _set_releases_only(db, name, record.partition_count, bool(policy.releases_only))
            return await store_info(db, name, include_deleted=True)

        await self._sessions.transact(fill)
        return await self._sessions.transact(work)


async def _fill_heads(db: Connection, store: str, partition_count: int) -> list[int]:
    """Creates the heads that are missing; the ids of the keys."""
    key_ids = [record[0] for record in await db.fetch(Sql.KEY_IDS, store)]
    for key_id in key_ids:
        await db.execute(Sql.FILL_HEADS, key_id, partition_count, *NO_CAPS)
    return key_ids


async def _set_releases_only(db: Connection, store: str, partition_count: int, releases_only: bool) -> None:
    """Lets the heads of a store say whether it takes direct writes. All are locked until the end: a direct write that
    has locked one commits before, a later one finds what is set."""
    for key_id in await _fill_heads(db, store, partition_count):
        await db.execute(Sql.LOCK_KEY_HEADS, key_id)
        await db.execute(Sql.SET_RELEASES_ONLY, key_id, releases_only)


async def _limit(db: Connection, store: str, partition_count: int, policy: StorePolicy) -> None:
    """Starts over with the limits of a store: no partition has caps to use, and all heads are locked until the end."""
    caps = budgets.least_caps(policy)
    for key_id in await _fill_heads(db, store, partition_count):  # keys that are new since
        await db.execute(Sql.LOCK_KEY_HEADS, key_id)
        await db.execute(Sql.SET_ALL_CAPS, key_id, *caps)
    if not budgets.has_limits(policy):
        await db.execute(Sql.DROP_BUDGET, store)
        return
    use = budgets.StoreUse(*await db.fetchrow(Sql.STORE_USE, store))
    await db.execute(Sql.SET_BUDGET, store, *use.budget(policy))
