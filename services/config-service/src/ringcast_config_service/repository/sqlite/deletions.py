"""Deleting, restoring and purging stores and keys in SQLite, each within one write transaction.

Writes look at the deletion of store and key in their own transactions (``_read_state`` of ``writer.py``), and
transactions come one after another: none that begins after a deletion can miss it.
"""

from __future__ import annotations

import sqlite3

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
from ringcast_config_service.repository.sql.statements import Sqlite as Sql
from ringcast_config_service.repository.sqlite.audit import add_facts
from ringcast_config_service.repository.sqlite.lead import write_as
from ringcast_config_service.repository.sqlite.session import Sessions
from ringcast_config_service.repository.sqlite.stores import store_info


class SqliteDeletions:
    """:class:`~ringcast_config_service.repository.parts.DeletionRepository`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def delete_store(self, name: str, deletion: Deletion, by: Authorship = SERVICE) -> StoreInfo:
        def work(db: sqlite3.Connection) -> StoreInfo:
            found = mapping.existing_record(db.execute(Sql.GET_STORE, (name,)).fetchone(), name)
            if found.deletion is None and deletion.expires_at_ms:
                mapping.check_deleted_stores(db.execute(Sql.COUNT_DELETED_STORES).fetchone()[0])
            if (after := mapping.after_delete(found.deletion, deletion)) != found.deletion:
                db.execute(Sql.MARK_STORE, (name, *after))
                add_facts(db, [audit.deleted(by, after, name)])
            return store_info(db, name, include_deleted=True)

        return await self._sessions.write(work)

    async def restore_store(self, name: str, now_ms: int, by: Authorship = SERVICE) -> StoreInfo:
        def work(db: sqlite3.Connection) -> StoreInfo:
            found = mapping.existing_record(db.execute(Sql.GET_STORE, (name,)).fetchone(), name)
            if found.deletion is not None:
                mapping.check_store_restorable(name, found.deletion, now_ms)
                mapping.check_store_count(db.execute(Sql.COUNT_STORES).fetchone()[0], name)
                db.execute(Sql.MARK_STORE, (name, None, None))
                add_facts(db, [audit.fact(by, "RestoreStore", name)])
            return store_info(db, name)

        return await self._sessions.write(work)

    async def delete_key(self, store: str, key: str, deletion: Deletion, by: Authorship = SERVICE) -> KeyStats:
        def work(db: sqlite3.Connection) -> KeyStats:
            current = _key_deletion(db, store, key)
            if current is None and deletion.expires_at_ms:
                mapping.check_deleted_keys(db.execute(Sql.COUNT_DELETED_KEYS, (store,)).fetchone()[0], store)
            if (after := mapping.after_delete(current, deletion)) != current:
                db.execute(Sql.MARK_KEY, (store, key, *after))
                add_facts(db, [audit.deleted(by, after, store, key)])
            return mapping.only_key(db.execute(Sql.KEY_STATS, (store,)).fetchall(), store, key)

        return await self._sessions.write(work)

    async def restore_key(self, store: str, key: str, now_ms: int, by: Authorship = SERVICE) -> KeyStats:
        def work(db: sqlite3.Connection) -> KeyStats:
            current = _key_deletion(db, store, key)
            if current is not None:
                mapping.check_key_restorable(store, key, current, now_ms)
                policy = mapping.to_policy(db.execute(Sql.GET_POLICY, (store,)).fetchone()[0])
                check_key_count(db.execute(Sql.COUNT_KEYS, (store,)).fetchone()[0], store, key, policy)
                db.execute(Sql.MARK_KEY, (store, key, None, None))
                add_facts(db, [audit.fact(by, "RestoreKey", store, key)])
            return mapping.only_key(db.execute(Sql.KEY_STATS, (store,)).fetchall(), store, key)

        return await self._sessions.write(work)

    async def expire_deleted(self, lead: Lead, now_ms: int) -> Expired:
        def work(db: sqlite3.Connection) -> Expired:
            db.execute(Sql.EXPIRE_STORES, (now_ms,))
            db.execute(Sql.EXPIRE_KEYS, (now_ms,))
            stores = [name for (name,) in db.execute(Sql.EXPIRED_STORES)]
            return Expired(stores, db.execute(Sql.EXPIRED_KEYS).fetchall())

        return await write_as(self._sessions, lead, work)

    async def purge_rows(self, store: str, key: str | None, lead: Lead | None = None) -> int:
        def work(db: sqlite3.Connection) -> int:
            for key_id in _expired_key_ids(db, store, key):
                for first, purge in ((Sql.FIRST_ROW, Sql.PURGE_ROWS), (Sql.FIRST_REVISION, Sql.PURGE_HISTORY)):
                    if removed := _purge(db, first, purge, key_id):
                        return removed
                if key is not None:  # those of a store go with its record
                    if removed := db.execute(Sql.PURGE_RELEASE_ROWS, (store, key, PURGE_ROWS)).rowcount:
                        return removed
                    return db.execute(Sql.PURGE_MARKS, (store, mapping.mark_of(key), PURGE_ROWS)).rowcount
            if key is None and db.execute(Sql.IS_EXPIRED, (store,)).fetchall():
                return db.execute(Sql.PURGE_RELEASE_ROWS, (store, "", PURGE_ROWS)).rowcount
            return 0

        return await write_as(self._sessions, lead, work)

    async def drop_store(self, name: str, lead: Lead | None = None, *, created_at_ms: int | None = None) -> None:
        def work(db: sqlite3.Connection) -> None:
            if not mapping.is_created_at(db.execute(Sql.GET_STORE, (name,)).fetchone(), created_at_ms):
                return
            for key_id in _expired_key_ids(db, name, None):
                _drop(db, key_id)
            if db.execute(Sql.DROP_STORE, (name,)).rowcount:
                db.execute(Sql.DROP_BUDGET, (name,))
                db.execute(Sql.DROP_MARKS, (name,))
                for duty in (compaction.DUTY, compaction.HORIZON, compaction.TOMBSTONES):
                    db.execute(Sql.DROP_DUTY, (compaction.duty_of(duty, name),))
                for statement in (
                    Sql.DROP_RELEASE_ROWS,
                    Sql.DROP_RELEASE_KEYS,
                    Sql.DROP_RELEASE_PARTITIONS,
                    Sql.DROP_RELEASE_PROOFS,
                    Sql.DROP_APPROVALS,
                    Sql.DROP_RELEASES,
                    Sql.DROP_RELEASE_NUMBERS,
                ):
                    db.execute(statement, (name,))
                _drop_schemas(db, name)
                db.execute(Sql.DROP_EVENTS, (mapping.store_event_subjects(name),))
                add_facts(db, [audit.fact(SERVICE, "PurgeStore", name)])

        await write_as(self._sessions, lead, work)

    async def drop_key(self, store: str, key: str, lead: Lead | None = None) -> None:
        def work(db: sqlite3.Connection) -> None:
            for key_id in _expired_key_ids(db, store, key):
                _drop(db, key_id)
                _drop_schemas(db, store, key)
                db.execute(Sql.DROP_EVENTS, (mapping.event_subjects(store, key),))
                add_facts(db, [audit.fact(SERVICE, "PurgeKey", store, key)])

        await write_as(self._sessions, lead, work)


def _key_deletion(db: sqlite3.Connection, store: str, key: str) -> Deletion | None:
    """The deletion of a key of a store that is there."""
    mapping.only_record(db.execute(Sql.GET_STORE, (store,)).fetchone(), store)
    return mapping.existing_key(db.execute(Sql.GET_KEY, (store, key)).fetchone(), store, key)


def _purge(db: sqlite3.Connection, first: str, purge: str, key_id: int) -> int:
    """Removes the first rows of a key, or revisions, of as many partitions as have so many; returns how many it was."""
    removed, partition = 0, 0
    while removed < PURGE_ROWS and (found := db.execute(first, (key_id, partition)).fetchone()) is not None:
        removed += db.execute(purge, (key_id, found[0], PURGE_ROWS - removed)).rowcount
        partition = found[0] + 1
    return removed


def _drop(db: sqlite3.Connection, key_id: int) -> None:
    db.execute(Sql.DROP_PARTITIONS, (key_id,))
    db.execute(Sql.DROP_KEY, (key_id,))


def _drop_schemas(db: sqlite3.Connection, store: str, key: str = "") -> None:
    """Those of a key, or of all keys of a store."""
    db.execute(Sql.DROP_SCHEMAS, (store, key))
    db.execute(Sql.DROP_SCHEMA_MODES, (store, key))


def _expired_key_ids(db: sqlite3.Connection, store: str, key: str | None) -> list[int]:
    return [key_id for (key_id,) in db.execute(Sql.EXPIRED_KEY_IDS, (store, key or ""))]
