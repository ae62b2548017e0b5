"""The statements that change, delete, restore and purge stores and keys."""

from __future__ import annotations

import re
from typing import Final


def for_sqlite(statement: str) -> str:
    """The statement with SQLite's numbered parameters."""
    return re.sub(r"\$(\d+)", r"?\1", statement)


_SET_INLINE: Final = "UPDATE stores SET inline_max_bytes = $2 WHERE name = $1"
_COUNT_DELETED_STORES: Final = "SELECT count(*) FROM stores WHERE deleted_at_ms IS NOT NULL"
_COUNT_DELETED_KEYS: Final = "SELECT count(*) FROM config_keys WHERE store = $1 AND deleted_at_ms IS NOT NULL"
_MARK_STORE: Final = "UPDATE stores SET deleted_at_ms = $2, expires_at_ms = $3 WHERE name = $1"
_MARK_KEY: Final = "UPDATE config_keys SET deleted_at_ms = $3, expires_at_ms = $4 WHERE store = $1 AND name = $2"
_GET_KEY: Final = "SELECT key_id, deleted_at_ms, expires_at_ms FROM config_keys WHERE store = $1 AND name = $2"
_EXPIRE_STORES: Final = "UPDATE stores SET expires_at_ms = 0 WHERE expires_at_ms > 0 AND expires_at_ms <= $1"
_EXPIRE_KEYS: Final = "UPDATE config_keys SET expires_at_ms = 0 WHERE expires_at_ms > 0 AND expires_at_ms <= $1"
_EXPIRED_STORES: Final = "SELECT name FROM stores WHERE expires_at_ms = 0 ORDER BY name"
_EXPIRED_KEYS: Final = "SELECT store, name FROM config_keys WHERE expires_at_ms = 0 ORDER BY store, name"
# $2 is empty for all keys of a store.
_EXPIRED_KEY_IDS: Final = """
SELECT k.key_id FROM config_keys k JOIN stores s ON s.name = k.store
WHERE k.store = $1 AND (($2 = '' AND s.expires_at_ms = 0) OR (k.name = $2 AND k.expires_at_ms = 0))
ORDER BY k.key_id
"""
# A piece of one partition, in the order of the primary key.
_PURGE_ROWS: Final = """
DELETE FROM rows WHERE key_id = $1 AND partition = $2 AND row_id IN (
    SELECT row_id FROM rows WHERE key_id = $1 AND partition = $2 ORDER BY row_id LIMIT $3
)
"""
_PURGE_HISTORY: Final = """
DELETE FROM history WHERE key_id = $1 AND partition = $2 AND revision IN (
    SELECT revision FROM history WHERE key_id = $1 AND partition = $2 ORDER BY revision LIMIT $3
)
"""
_FIRST_ROW: Final = "SELECT partition FROM rows WHERE key_id = $1 ORDER BY partition LIMIT 1"
_FIRST_REVISION: Final = "SELECT partition FROM history WHERE key_id = $1 ORDER BY partition LIMIT 1"
_DROP_PARTITIONS: Final = "DELETE FROM partitions WHERE key_id = $1"
_DROP_KEY: Final = "DELETE FROM config_keys WHERE key_id = $1"
_DROP_STORE: Final = "DELETE FROM stores WHERE name = $1 AND expires_at_ms = 0"
_DROP_EVENTS: Final = "DELETE FROM outbox WHERE substr(subject, 1, length($1)) = $1"


class PostgresLifecycle:
    """For PostgreSQL and CockroachDB."""

    CLOCK_MS = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
    SET_INLINE = _SET_INLINE
    COUNT_DELETED_STORES = _COUNT_DELETED_STORES
    COUNT_DELETED_KEYS = _COUNT_DELETED_KEYS
    MARK_STORE = _MARK_STORE
    MARK_KEY = _MARK_KEY
    GET_KEY = f"{_GET_KEY} FOR UPDATE"
    EXPIRE_STORES = _EXPIRE_STORES
    EXPIRE_KEYS = _EXPIRE_KEYS
    EXPIRED_STORES = _EXPIRED_STORES
    EXPIRED_KEYS = _EXPIRED_KEYS
    EXPIRED_KEY_IDS = _EXPIRED_KEY_IDS.replace("$2 = ''", "$2::TEXT = ''")
    PURGE_ROWS = _PURGE_ROWS
    PURGE_HISTORY = _PURGE_HISTORY
    FIRST_ROW = _FIRST_ROW
    FIRST_REVISION = _FIRST_REVISION
    DROP_PARTITIONS = _DROP_PARTITIONS
    DROP_KEY = _DROP_KEY
    DROP_STORE = _DROP_STORE
    DROP_EVENTS = _DROP_EVENTS.replace("length($1)", "length($1::TEXT)")
    # A head for every partition of a key, so that each can be closed; in the order in which everybody inserts.
    FILL_HEADS = """
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes)
SELECT $1::BIGINT, n.partition, 0, 0, 0, 0 FROM generate_series(0::BIGINT, $2::BIGINT - 1) AS n (partition)
ORDER BY n.partition
ON CONFLICT (key_id, partition) DO NOTHING
"""
    LOCK_KEY_HEADS = "SELECT partition FROM partitions WHERE key_id = $1 ORDER BY partition FOR UPDATE"
    SET_CLOSED = "UPDATE partitions SET closed = $2 WHERE key_id = $1 AND closed <> $2"
    KEYS_TO_CLOSE = """
SELECT DISTINCT k.key_id, s.partition_count
FROM config_keys k JOIN stores s ON s.name = k.store JOIN partitions p ON p.key_id = k.key_id
WHERE (s.deleted_at_ms IS NOT NULL OR k.deleted_at_ms IS NOT NULL) AND NOT p.closed
ORDER BY k.key_id
"""
    KEYS_TO_OPEN = "SELECT key_id FROM config_keys WHERE store = $1 AND deleted_at_ms IS NULL ORDER BY key_id"


class SqliteLifecycle:
    """For SQLite, where a write transaction is alone: it looks at store and key, and heads need not be closed."""

    SET_INLINE = for_sqlite(_SET_INLINE)
    COUNT_DELETED_STORES = _COUNT_DELETED_STORES
    COUNT_DELETED_KEYS = for_sqlite(_COUNT_DELETED_KEYS)
    MARK_STORE = for_sqlite(_MARK_STORE)
    MARK_KEY = for_sqlite(_MARK_KEY)
    GET_KEY = for_sqlite(_GET_KEY)
    EXPIRE_STORES = for_sqlite(_EXPIRE_STORES)
    EXPIRE_KEYS = for_sqlite(_EXPIRE_KEYS)
    EXPIRED_STORES = _EXPIRED_STORES
    EXPIRED_KEYS = _EXPIRED_KEYS
    EXPIRED_KEY_IDS = for_sqlite(_EXPIRED_KEY_IDS)
    PURGE_ROWS = for_sqlite(_PURGE_ROWS)
    PURGE_HISTORY = for_sqlite(_PURGE_HISTORY)
    FIRST_ROW = for_sqlite(_FIRST_ROW)
    FIRST_REVISION = for_sqlite(_FIRST_REVISION)
    DROP_PARTITIONS = for_sqlite(_DROP_PARTITIONS)
    DROP_KEY = for_sqlite(_DROP_KEY)
    DROP_STORE = for_sqlite(_DROP_STORE)
    DROP_EVENTS = for_sqlite(_DROP_EVENTS)
