"""Deleting, restoring and purging stores and keys in PostgreSQL and CockroachDB.

How a deletion is exact. Writers keep the ids of keys in memory and lock nothing but the heads of what they write
(:mod:`~ringcast_config_service.repository.postgres.session`), so a deletion goes to the heads as well:

- First the store or key is marked, with the row of the store locked, as it is where keys are created: from the commit
  on nobody creates a key there, and nobody reads.
- Then a head is made for each partition of each key that has none, and all are locked and closed, a transaction a key.
  A writer that holds one of them commits before; a later one finds it closed, and is refused. Once the deletion
  returns, nothing is written any more.
- If that breaks off, the mark is there and heads may be open: deleting again, or the next :func:`expire_deleted` of any
  instance, closes the rest.

A purge removes rows and history in pieces while the heads are closed, and then heads and key in one transaction. A
writer that still knows the key's id can't make new heads for it: the foreign key refuses them, and it looks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ringcast_config_service.repository import audit, compaction, mapping
from ringcast_config_service.repository.base import (
    PURGE_ROWS,
    SERVICE,
    Authorship,
    Deletion,
    Expired,
    KeyStats,
    StoreInfo,
)
from ringcast_config_service.repository.lead import Lead
from ringcast_config_service.repository.policies import check_key_count
from ringcast_config_service.repository.postgres.audit import add_facts
from ringcast_config_service.repository.postgres.lead import transact_as
from ringcast_config_service.repository.postgres.session import Connection, Sessions
from ringcast_config_service.repository.postgres.stores import store_info
from ringcast_config_service.repository.postgres.write import count
from ringcast_config_service.repository.sql.statements import Postgres as Sql
from ringcast_config_service.repository.writes import NO_CAPS


class PostgresDeletions:
    """:class:`~ringcast_config_service.repository.parts.DeletionRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def delete_store(self, name: str, deletion: Deletion, by: Authorship = SERVICE) -> StoreInfo:
        async def mark(db: Connection) -> None:
            await db.execute(Sql.LOCK_STORE_COUNT)
            await db.execute(Sql.LOCK_STORES, [name])
            found = mapping.existing_record(await db.fetchrow(Sql.GET_STORE, name), name)
            if found.deletion is None and deletion.expires_at_ms:
                deleted = await db.fetchval(Sql.COUNT_DELETED_STORES)
                mapping.check_deleted_stores(deleted)
            if (after := mapping.after_delete(found.deletion, deletion)) != found.deletion:
                await db.execute(Sql.MARK_STORE, name, *after)
                await add_facts(db, [audit.deleted(by, after, name)])

        await self._sessions.transact(mark)
        await self._close_heads()
        return await self._sessions.transact(lambda db: store_info(db, name, include_deleted=True))

    async def restore_store(self, name: str, now_ms: int, by: Authorship = SERVICE) -> StoreInfo:
        async def work(db: Connection) -> StoreInfo:
            await db.execute(Sql.LOCK_STORE_COUNT)
            await db.execute(Sql.LOCK_STORES, [name])
            found = mapping.existing_record(await db.fetchrow(Sql.GET_STORE, name), name)
            if found.deletion is not None:
                mapping.check_store_restorable(name, found.deletion, now_ms)
                mapping.check_store_count(await db.fetchval(Sql.COUNT_STORES), name)
                await db.execute(Sql.MARK_STORE, name, None, None)
                await add_facts(db, [audit.fact(by, "RestoreStore", name)])
                for record in await db.fetch(Sql.KEYS_TO_OPEN, name):
                    await _set_closed(db, record[0], closed=False)
            return await store_info(db, name)

        return await self._sessions.transact(work)

    async def delete_key(self, store: str, key: str, deletion: Deletion, by: Authorship = SERVICE) -> KeyStats:
        async def mark(db: Connection) -> None:
            await db.execute(Sql.LOCK_STORES, [store])
            _, current = await _key(db, store, key)
            if current is None and deletion.expires_at_ms:
                deleted = await db.fetchval(Sql.COUNT_DELETED_KEYS, store)
                mapping.check_deleted_keys(deleted, store)
            if (after := mapping.after_delete(current, deletion)) != current:
                await db.execute(Sql.MARK_KEY, store, key, *after)
                await add_facts(db, [audit.deleted(by, after, store, key)])

        await self._sessions.transact(mark)
        await self._close_heads()
        return await self._sessions.transact(lambda db: _key_stats(db, store, key))

    async def restore_key(self, store: str, key: str, now_ms: int, by: Authorship = SERVICE) -> KeyStats:
        async def work(db: Connection) -> KeyStats:
            await db.execute(Sql.LOCK_STORES, [store])
            key_id, current = await _key(db, store, key)
            if current is not None:
                mapping.check_key_restorable(store, key, current, now_ms)
                policy = mapping.to_policy(await db.fetchval(Sql.GET_POLICY, store))
                check_key_count(await db.fetchval(Sql.COUNT_KEYS, store), store, key, policy)
                await db.execute(Sql.MARK_KEY, store, key, None, None)
                await add_facts(db, [audit.fact(by, "RestoreKey", store, key)])
                await _set_closed(db, key_id, closed=False)
            return await _key_stats(db, store, key)

        return await self._sessions.transact(work)

    async def expire_deleted(self, lead: Lead, now_ms: int) -> Expired:
        async def work(db: Connection) -> Expired:
            await db.execute(Sql.EXPIRE_STORES, now_ms)
            await db.execute(Sql.EXPIRE_KEYS, now_ms)
            stores = [record[0] for record in await db.fetch(Sql.EXPIRED_STORES)]
            return Expired(stores, [(store, key) for store, key in await db.fetch(Sql.EXPIRED_KEYS)])

        await self._close_heads()
        return await transact_as(self._sessions, lead, work)

    async def purge_rows(self, store: str, key: str | None, lead: Lead | None = None) -> int:
        async def work(db: Connection) -> int:
            for key_id in await _expired_key_ids(db, store, key):
                for first, purge in ((Sql.FIRST_ROW, Sql.PURGE_ROWS), (Sql.FIRST_REVISION, Sql.PURGE_HISTORY)):
                    if removed := await _purge(db, first, purge, key_id):
                        return removed
                if key is not None:  # those of a store go with its record
                    if removed := count(await db.execute(Sql.PURGE_RELEASE_ROWS, store, key, PURGE_ROWS)):
                        return removed
                    return count(await db.execute(Sql.PURGE_MARKS, store, mapping.mark_of(key), PURGE_ROWS))
            if key is None and await db.fetchval(Sql.IS_EXPIRED, store) is not None:
                return count(await db.execute(Sql.PURGE_RELEASE_ROWS, store, "", PURGE_ROWS))
            return 0

        return await transact_as(self._sessions, lead, work)

    async def drop_store(self, name: str, lead: Lead | None = None, *, created_at_ms: int | None = None) -> None:
        async def work(db: Connection) -> None:
            await db.execute(Sql.LOCK_STORES, [name])
            if not mapping.is_created_at(await db.fetchrow(Sql.GET_STORE, name), created_at_ms):
                return
            for key_id in await _expired_key_ids(db, name, None):
                await _drop(db, key_id)
            if count(await db.execute(Sql.DROP_STORE, name)):
                await db.execute(Sql.DROP_BUDGET, name)
                await db.execute(Sql.DROP_MARKS, name)
                for duty in (compaction.DUTY, compaction.HORIZON, compaction.TOMBSTONES):
                    await db.execute(Sql.DROP_DUTY, compaction.duty_of(duty, name))
                for statement in (
                    Sql.DROP_RELEASE_ROWS,
                    Sql.DROP_RELEASE_KEYS,
                    Sql.DROP_RELEASE_PARTITIONS,
                    Sql.DROP_RELEASE_PROOFS,
                    Sql.DROP_APPROVALS,
                    Sql.DROP_RELEASES,
                    Sql.DROP_RELEASE_NUMBERS,
                ):
                    await db.execute(statement, name)
                await _drop_schemas(db, name)
                await db.execute(Sql.DROP_EVENTS, mapping.store_event_subjects(name))
                await add_facts(db, [audit.fact(SERVICE, "PurgeStore", name)])

        await transact_as(self._sessions, lead, work)

    async def drop_key(self, store: str, key: str, lead: Lead | None = None) -> None:
        async def work(db: Connection) -> None:
            await db.execute(Sql.LOCK_STORES, [store])
            for key_id in await _expired_key_ids(db, store, key):
                await _drop(db, key_id)
                await _drop_schemas(db, store, key)
                await db.execute(Sql.DROP_EVENTS, mapping.event_subjects(store, key))
                await add_facts(db, [audit.fact(SERVICE, "PurgeKey", store, key)])

        await transact_as(self._sessions, lead, work)

    async def _close_heads(self) -> None:
        """Closes the heads of everything that is marked and not closed yet."""
        while found := await self._transact(lambda db: db.fetch(Sql.KEYS_TO_CLOSE)):
            for key_id, partition_count in found:
                fill = (Sql.FILL_HEADS, key_id, partition_count, *NO_CAPS)
                await self._transact(lambda db, words=fill: db.execute(*words))  # type: ignore[misc]
                await self._transact(lambda db, key=key_id: _set_closed(db, key, closed=True))  # type: ignore[misc]

    async def _transact(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        return await self._sessions.transact(work)


async def _key_stats(db: Connection, store: str, key: str) -> KeyStats:
    return mapping.only_key(await db.fetch(Sql.KEY_STATS, store), store, key)


async def _key(db: Connection, store: str, key: str) -> tuple[int, Deletion | None]:
    """The id and the deletion of a key of a store that is there."""
    mapping.only_record(await db.fetchrow(Sql.GET_STORE, store), store)
    found = await db.fetchrow(Sql.GET_KEY, store, key)
    return (found[0] if found else 0), mapping.existing_key(found, store, key)


async def _set_closed(db: Connection, key_id: int, *, closed: bool) -> None:
    await db.execute(Sql.LOCK_KEY_HEADS, key_id)
    await db.execute(Sql.SET_CLOSED, key_id, closed)


async def _purge(db: Connection, first: str, purge: str, key_id: int) -> int:
    """Removes the first rows of a key, or revisions, of as many partitions as have so many; returns how many it was."""
    removed, partition = 0, 0
    while removed < PURGE_ROWS and (found := await db.fetchval(first, key_id, partition)) is not None:
        removed += count(await db.execute(purge, key_id, found, PURGE_ROWS - removed))
        partition = found + 1
    return removed


async def _drop(db: Connection, key_id: int) -> None:
    await db.execute(Sql.DROP_PARTITIONS, key_id)
    await db.execute(Sql.DROP_KEY, key_id)


async def _drop_schemas(db: Connection, store: str, key: str = "") -> None:
    """Those of a key, or of all keys of a store."""
    await db.execute(Sql.DROP_SCHEMAS, store, key)
    await db.execute(Sql.DROP_SCHEMA_MODES, store, key)


async def _expired_key_ids(db: Connection, store: str, key: str | None) -> list[int]:
    return [record[0] for record in await db.fetch(Sql.EXPIRED_KEY_IDS, store, key or "")]
