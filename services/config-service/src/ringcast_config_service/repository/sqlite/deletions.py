"""Changing, deleting, restoring and purging stores and keys in SQLite, each within one write transaction.

Writes look at the deletion of store and key in their own transactions (``_read_state``), and transactions come one
after another: none that begins after a deletion can miss it.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ringcast_wire import limits, names

from ringcast_config_service.repository import mapping
from ringcast_config_service.repository.base import Deletion, Expired, KeyStats, StoreInfo
from ringcast_config_service.repository.sql.statements import Sqlite as Sql

_PURGE_ROWS: Final = 5_000


def store_info(db: sqlite3.Connection, name: str, *, include_deleted: bool = False) -> StoreInfo:
    # All rows are fetched: a cursor that an exception keeps alive would hold this connection to its snapshot.
    stores, stats = db.execute(Sql.GET_STORE, (name,)).fetchall(), db.execute(Sql.KEY_STATS, (name,)).fetchall()
    return mapping.only_store(stores, stats, name, include_deleted=include_deleted)


def update_store(db: sqlite3.Connection, name: str, inline_max_bytes: int) -> StoreInfo:
    db.execute(Sql.SET_INLINE, (name, inline_max_bytes))
    return store_info(db, name)


def delete_store(db: sqlite3.Connection, name: str, deletion: Deletion) -> StoreInfo:
    found = mapping.existing_record(db.execute(Sql.GET_STORE, (name,)).fetchone(), name)
    if found.deletion is None and deletion.expires_at_ms:
        count = db.execute(Sql.COUNT_DELETED_STORES).fetchone()[0]
        mapping.check_deleted_count(count, limits.MAX_DELETED_STORES, "stores")
    if (after := mapping.after_delete(found.deletion, deletion)) != found.deletion:
        db.execute(Sql.MARK_STORE, (name, *after))
    return store_info(db, name, include_deleted=True)


def restore_store(db: sqlite3.Connection, name: str, now_ms: int) -> StoreInfo:
    found = mapping.existing_record(db.execute(Sql.GET_STORE, (name,)).fetchone(), name)
    if found.deletion is not None:
        if found.deletion.expires_at_ms <= now_ms:
            raise mapping.store_deleted(name, Deletion(found.deletion.deleted_at_ms, 0))
        mapping.check_store_count(db.execute(Sql.COUNT_STORES).fetchone()[0], name)
        db.execute(Sql.MARK_STORE, (name, None, None))
    return store_info(db, name)


def delete_key(db: sqlite3.Connection, store: str, key: str, deletion: Deletion) -> KeyStats:
    current = _key_deletion(db, store, key)
    if current is None and deletion.expires_at_ms:
        count = db.execute(Sql.COUNT_DELETED_KEYS, (store,)).fetchone()[0]
        mapping.check_deleted_count(count, limits.MAX_DELETED_KEYS_PER_STORE, f"config keys of store {store!r}")
    if (after := mapping.after_delete(current, deletion)) != current:
        db.execute(Sql.MARK_KEY, (store, key, *after))
    return mapping.only_key(db.execute(Sql.KEY_STATS, (store,)).fetchall(), store, key)


def restore_key(db: sqlite3.Connection, store: str, key: str, now_ms: int) -> KeyStats:
    current = _key_deletion(db, store, key)
    if current is not None:
        if current.expires_at_ms <= now_ms:
            raise mapping.key_deleted(store, key, Deletion(current.deleted_at_ms, 0))
        mapping.check_key_count(db.execute(Sql.COUNT_KEYS, (store,)).fetchone()[0], store, key)
        db.execute(Sql.MARK_KEY, (store, key, None, None))
    return mapping.only_key(db.execute(Sql.KEY_STATS, (store,)).fetchall(), store, key)


def _key_deletion(db: sqlite3.Connection, store: str, key: str) -> Deletion | None:
    """The deletion of a key of a store that is there."""
    mapping.only_record(db.execute(Sql.GET_STORE, (store,)).fetchone(), store)
    return mapping.existing_key(db.execute(Sql.GET_KEY, (store, key)).fetchone(), store, key)


def expire_deleted(db: sqlite3.Connection, now_ms: int) -> Expired:
    db.execute(Sql.EXPIRE_STORES, (now_ms,))
    db.execute(Sql.EXPIRE_KEYS, (now_ms,))
    stores = [name for (name,) in db.execute(Sql.EXPIRED_STORES)]
    return Expired(stores, db.execute(Sql.EXPIRED_KEYS).fetchall())


def purge_rows(db: sqlite3.Connection, store: str, key: str | None) -> int:
    for key_id in _expired_key_ids(db, store, key):
        for first, purge in ((Sql.FIRST_ROW, Sql.PURGE_ROWS), (Sql.FIRST_REVISION, Sql.PURGE_HISTORY)):
            if found := db.execute(first, (key_id,)).fetchall():
                return db.execute(purge, (key_id, found[0][0], _PURGE_ROWS)).rowcount
    return 0


def drop_store(db: sqlite3.Connection, name: str) -> None:
    for key_id in _expired_key_ids(db, name, None):
        _drop(db, key_id)
    if db.execute(Sql.DROP_STORE, (name,)).rowcount:
        db.execute(Sql.DROP_MARKS, (name,))
        db.execute(Sql.DROP_EVENTS, (names.notify_stream_subjects(name).removesuffix("*.*"),))


def drop_key(db: sqlite3.Connection, store: str, key: str) -> None:
    for key_id in _expired_key_ids(db, store, key):
        _drop(db, key_id)
        db.execute(Sql.DROP_EVENTS, (mapping.event_subjects(store, key),))


def _drop(db: sqlite3.Connection, key_id: int) -> None:
    db.execute(Sql.DROP_PARTITIONS, (key_id,))
    db.execute(Sql.DROP_KEY, (key_id,))


def _expired_key_ids(db: sqlite3.Connection, store: str, key: str | None) -> list[int]:
    return [key_id for (key_id,) in db.execute(Sql.EXPIRED_KEY_IDS, (store, key or ""))]
