"""Every SQL statement of the service.

PostgreSQL and CockroachDB share one dialect here: only what both accept, so no LISTEN, no advisory locks, no
``ON CONFLICT`` on partial indexes, no collations. SQLite shares a statement where its text is the same; its
parameters are then numbered ``?1`` instead of ``$1``. Where the two differ, a comment says why.
"""

from __future__ import annotations

import re
from typing import Final

from ringcast_config_service.repository.sql.as_of import PostgresAsOf, SqliteAsOf
from ringcast_config_service.repository.sql.lifecycle import PostgresLifecycle, SqliteLifecycle
from ringcast_config_service.repository.sql.lifecycle import for_sqlite as _sqlite
from ringcast_config_service.repository.sql.marks import PostgresMarks, SqliteMarks
from ringcast_config_service.repository.sql.upkeep import POSTGRES_STAMP_MS, PostgresUpkeep, SqliteUpkeep

SCHEMA_VERSION: Final = 1


def _at_once(*statements: str) -> str:
    """One statement that does what all of them do, with their parameters one after the other; the last one's result.

    A round trip to the database instead of several. No two of them may write to the same table.
    """
    found, used = [], 0
    for statement in statements:
        shifted = re.sub(r"\$(\d+)", lambda match, by=used: f"${int(match[1]) + by}", statement)  # type: ignore[misc]
        used += max(int(number) for number in re.findall(r"\$(\d+)", statement))
        found.append(shifted)
    before = ",\n".join(f"step_{number} AS ({text})" for number, text in enumerate(found[:-1], 1))
    return f"WITH {before}\n{found[-1]}"


# --- Tables -----------------------------------------------------------------------------------------------------------
# rows and history have no foreign key: their partition's head is locked by whoever writes them, and a check per row
# costs more than the insert. metadata is JSON text, null where there is none. The size of a tombstone is 0.
# Text keys are in the order of their bytes whatever the database's own collation: pages and locks go by that order, as
# Python and SQLite have it, and no index is out of order after an update of the system's collations.
# rows_by_version is on an expression: with the bare column PostgreSQL takes it for a look-up by primary key as long as
# the table has no statistics, as in the first import, and reads the whole partition for each row.
# closed: the key, or its store, is deleted. PostgreSQL's writers learn it from the heads that they lock anyway.
# prev in history is the revision of the row's write before, 0 if there was none.
# Times are by the database's own clock, so that instances whose clocks differ agree on what is old.

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS schema_version (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    version BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS stores (
    name {text} PRIMARY KEY,
    partition_count BIGINT NOT NULL,
    mode TEXT NOT NULL,
    hash TEXT NOT NULL,
    strategy TEXT NOT NULL,
    load_factor DOUBLE PRECISION NOT NULL,
    wire_version BIGINT NOT NULL,
    inline_max_bytes BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    history_id TEXT NOT NULL,
    deleted_at_ms BIGINT,
    expires_at_ms BIGINT
);
CREATE TABLE IF NOT EXISTS config_keys (
    key_id {id},
    store {text} NOT NULL REFERENCES stores (name),
    name {text} NOT NULL,
    history_id TEXT NOT NULL,
    deleted_at_ms BIGINT,
    expires_at_ms BIGINT,
    UNIQUE (store, name)
);
CREATE TABLE IF NOT EXISTS partitions (
    key_id BIGINT NOT NULL REFERENCES config_keys (key_id),
    partition BIGINT NOT NULL,
    head BIGINT NOT NULL,
    floor BIGINT NOT NULL,
    live_rows BIGINT NOT NULL,
    live_bytes BIGINT NOT NULL,
    closed BOOLEAN NOT NULL DEFAULT false,
    PRIMARY KEY (key_id, partition)
);
CREATE TABLE IF NOT EXISTS rows (
    key_id BIGINT NOT NULL,
    partition BIGINT NOT NULL,
    row_id {text} NOT NULL,
    value TEXT NOT NULL,
    version BIGINT NOT NULL,
    deleted BOOLEAN NOT NULL,
    metadata TEXT,
    size BIGINT NOT NULL,
    written_at_ms BIGINT NOT NULL,
    PRIMARY KEY (key_id, partition, row_id)
);
CREATE INDEX IF NOT EXISTS rows_by_version ON rows (key_id, (partition + 0), version);
CREATE INDEX IF NOT EXISTS rows_tombstones ON rows (written_at_ms, version) WHERE deleted;
CREATE TABLE IF NOT EXISTS history (
    key_id BIGINT NOT NULL,
    partition BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    row_id {text} NOT NULL,
    value TEXT NOT NULL,
    deleted BOOLEAN NOT NULL,
    metadata TEXT,
    prev BIGINT NOT NULL,
    written_at_ms BIGINT NOT NULL,
    PRIMARY KEY (key_id, partition, revision)
);
CREATE INDEX IF NOT EXISTS history_by_age ON history (written_at_ms);
CREATE TABLE IF NOT EXISTS outbox (
    id {id},
    store {text} NOT NULL,
    subject TEXT NOT NULL,
    msg_id TEXT NOT NULL,
    payload {bytes} NOT NULL,
    traceparent TEXT,
    created_at_ms BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS outbox_by_store ON outbox (store, id);
CREATE TABLE IF NOT EXISTS outbox_refused (
    id BIGINT PRIMARY KEY,
    subject TEXT NOT NULL,
    msg_id TEXT NOT NULL,
    payload {bytes} NOT NULL,
    traceparent TEXT,
    created_at_ms BIGINT NOT NULL,
    refused_at_ms BIGINT NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS relay_leases (
    store {text} PRIMARY KEY,
    holder TEXT NOT NULL,
    until_ms BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS idempotency_keys (
    store {text} NOT NULL,
    idempotency_key {text} NOT NULL,
    digest TEXT NOT NULL,
    outcomes TEXT NOT NULL,
    written_at_ms BIGINT NOT NULL,
    PRIMARY KEY (store, idempotency_key)
);
CREATE INDEX IF NOT EXISTS idempotency_keys_by_age ON idempotency_keys (written_at_ms);
CREATE TABLE IF NOT EXISTS maintenance (
    duty {text} PRIMARY KEY,
    holder TEXT NOT NULL,
    token BIGINT NOT NULL,
    until_ms BIGINT NOT NULL,
    done_ms BIGINT NOT NULL
);
INSERT INTO schema_version (one, version) VALUES (1, {version}) ON CONFLICT (one) DO NOTHING
"""


_SERVER_IDENTITY: Final = """
CREATE TABLE IF NOT EXISTS server_identity (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL
)
"""


def _tables(**types: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in _TABLES.format(**types, version=SCHEMA_VERSION).split(";"))


# --- Stores -----------------------------------------------------------------------------------------------------------

_STORE_COLUMNS: Final = """
name, partition_count, mode, hash, strategy, load_factor, wire_version, inline_max_bytes, created_at_ms, history_id
"""
_DELETED_COLUMNS: Final = "deleted_at_ms, expires_at_ms"
_DELETIONS: Final = "s.deleted_at_ms, s.expires_at_ms, k.deleted_at_ms, k.expires_at_ms"
_GET_SCHEMA: Final = "SELECT version FROM schema_version WHERE one = 1"
_GET_STORE: Final = f"SELECT {_STORE_COLUMNS}, {_DELETED_COLUMNS} FROM stores WHERE name = $1"  # noqa: S608
_LIST_STORES: Final = f"SELECT {_STORE_COLUMNS}, {_DELETED_COLUMNS} FROM stores ORDER BY name"  # noqa: S608
_COUNT_STORES: Final = "SELECT count(*) FROM stores WHERE deleted_at_ms IS NULL"
_INSERT_STORE: Final = f"INSERT INTO stores ({_STORE_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"  # noqa: S608
# sum() is NUMERIC in PostgreSQL, hence the casts.
_KEY_STATS: Final = """
SELECT
    k.store, k.name,
    CAST(coalesce(sum(p.live_rows), 0) AS BIGINT), CAST(coalesce(sum(p.live_bytes), 0) AS BIGINT),
    k.deleted_at_ms, k.expires_at_ms
FROM config_keys k LEFT JOIN partitions p ON p.key_id = k.key_id
WHERE $1 = '' OR k.store = $1
GROUP BY k.store, k.name, k.deleted_at_ms, k.expires_at_ms ORDER BY k.store, k.name
"""

# --- Reads ------------------------------------------------------------------------------------------------------------

_LOCATE: Final = f"""
SELECT s.partition_count, k.key_id, k.history_id, {_DELETIONS}
FROM stores s LEFT JOIN config_keys k ON k.store = s.name AND k.name = $2
WHERE s.name = $1
"""  # noqa: S608
_LOCATE_PARTITION: Final = f"""
SELECT s.partition_count, k.key_id, k.history_id, p.head, p.floor, p.live_rows, {_DELETIONS}
FROM stores s
LEFT JOIN config_keys k ON k.store = s.name AND k.name = $2
LEFT JOIN partitions p ON p.key_id = k.key_id AND p.partition = $3
WHERE s.name = $1
"""  # noqa: S608
_ROW_COLUMNS: Final = "row_id, value, version, deleted, metadata"
_READ_WHOLE: Final = f"SELECT {_ROW_COLUMNS} FROM rows WHERE key_id = $1 AND partition = $2 AND NOT deleted"  # noqa: S608
_READ_SINCE: Final = f"""
SELECT {_ROW_COLUMNS} FROM rows WHERE key_id = $1 AND partition + 0 = $2 AND version > $3 ORDER BY version
"""  # noqa: S608
_READ_FULL: Final = f"SELECT partition, {_ROW_COLUMNS} FROM rows WHERE key_id = $1 AND NOT deleted"  # noqa: S608
# A head of 0 was created for a write that has not come.
_HEADS: Final = """
SELECT partition, head, live_bytes, live_rows FROM partitions WHERE key_id = $1 AND head > 0 ORDER BY partition
"""
# Keyset paging: a page goes on behind the last row of the one before. The bounds on the first column alone let an index
# be used where the planner does not see through the comparison of pairs.
_LIST_PAGE: Final = f"""
SELECT partition, {_ROW_COLUMNS} FROM rows
WHERE key_id = $1 AND partition BETWEEN $2 AND $3 AND (partition, row_id) > ($2, $4) AND (NOT deleted OR $5)
ORDER BY partition, row_id LIMIT $6
"""  # noqa: S608
_HISTORY_PAGE: Final = """
SELECT h.partition, h.revision, h.row_id, h.value, h.deleted, h.metadata, h.written_at_ms,
    h.prev, p.value, p.deleted, p.metadata
FROM history h
LEFT JOIN history p ON $8 AND p.key_id = h.key_id AND p.partition = h.partition AND p.revision = h.prev
WHERE h.key_id = $1 AND h.partition BETWEEN $2 AND $3 AND (h.partition, h.revision) > ($2, $4) AND h.revision > $5
    AND ($6 = '' OR h.row_id = $6)
ORDER BY h.partition, h.revision LIMIT $7
"""

# --- Writes -----------------------------------------------------------------------------------------------------------

_COUNT_KEYS: Final = "SELECT count(*) FROM config_keys WHERE store = $1 AND deleted_at_ms IS NULL"
_INSERT_KEY: Final = "INSERT INTO config_keys (store, name, history_id) VALUES ($1, $2, $3) RETURNING key_id"

# --- Histories --------------------------------------------------------------------------------------------------------

_SET_STORE_HISTORY: Final = "UPDATE stores SET history_id = $2 WHERE name = $1 AND history_id = $3"
_KEY_IDS: Final = "SELECT key_id FROM config_keys WHERE store = $1"
_SET_KEY_HISTORY: Final = "UPDATE config_keys SET history_id = $2 WHERE key_id = $1"

_FOUND_ROWS: Final = """
CROSS JOIN LATERAL (
    SELECT * FROM rows r WHERE r.key_id = q.key_id AND r.partition = q.partition AND r.row_id = q.row_id LIMIT 1
) AS found
"""


_IDENTITY: Final = "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"


class Postgres(PostgresLifecycle, PostgresUpkeep, PostgresMarks, PostgresAsOf):
    """Statements for PostgreSQL and CockroachDB. Sets travel as arrays, one a column."""

    # The version comes last: when it is there, everything is.
    TABLES = (_SERVER_IDENTITY, *_tables(id=_IDENTITY, bytes="BYTEA", text='TEXT COLLATE "C"'))
    # CockroachDB orders text by its bytes, and its grammar does not take the name of that order.
    COCKROACH_TABLES = (_SERVER_IDENTITY, *_tables(id=_IDENTITY, bytes="BYTEA", text="TEXT"))
    HAS_SCHEMA = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'schema_version'"
    GET_SCHEMA = _GET_SCHEMA
    PING = "SELECT 1"
    SERVER = "SELECT version()"
    IS_READ_ONLY = "SHOW transaction_read_only"  # on, too, in a standby

    GET_STORE = _GET_STORE
    LIST_STORES = _LIST_STORES
    COUNT_STORES = _COUNT_STORES
    INSERT_STORE = _INSERT_STORE
    KEY_STATS = _KEY_STATS.replace("$1", "$1::TEXT")

    LOCATE = _LOCATE
    LOCATE_PARTITION = _LOCATE_PARTITION
    READ_WHOLE = _READ_WHOLE
    READ_SINCE = _READ_SINCE
    READ_FULL = _READ_FULL
    HEADS = _HEADS
    LIST_PAGE = _LIST_PAGE.replace("$5", "$5::BOOLEAN")
    HISTORY_PAGE = _HISTORY_PAGE.replace("$6", "$6::TEXT").replace("$8", "$8::BOOLEAN")
    # Look-ups of many rows: a subquery for each keeps to the primary key, where a join may read the whole table.
    SIZE_OF_ROWS = """
SELECT CAST(coalesce(sum(
    (SELECT r.size FROM rows r WHERE r.key_id = $1 AND r.partition = q.partition AND r.row_id = q.row_id)
), 0) AS BIGINT)
FROM unnest($2::BIGINT[], $3::TEXT[]) AS q (partition, row_id)
"""
    READ_ROWS = """
SELECT found.partition, found.row_id, found.value, found.version, found.deleted, found.metadata
FROM unnest($2::BIGINT[], $3::TEXT[]) AS q (partition, row_id)
CROSS JOIN LATERAL (
    SELECT * FROM rows r WHERE r.key_id = $1 AND r.partition = q.partition AND r.row_id = q.row_id LIMIT 1
) AS found
"""

    LOCATE_MANY = f"""
SELECT s.name, q.name, k.key_id, k.history_id, s.partition_count, {_DELETIONS}
FROM unnest($1::TEXT[], $2::TEXT[]) AS q (store, name)
JOIN stores s ON s.name = q.store
LEFT JOIN config_keys k ON k.store = q.store AND k.name = q.name
"""  # noqa: S608
    COUNT_KEYS = _COUNT_KEYS
    # What identifies the data: the system, and the timeline, which is another after each promotion of a standby.
    SERVER_IDENTITY = """
SELECT CAST(c.system_identifier AS TEXT) || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
    CAST(pg_postmaster_start_time() AS TEXT)
FROM pg_control_system() AS c
"""
    CLUSTER_IDENTITY = "SELECT CAST(crdb_internal.cluster_id() AS TEXT), ''"
    GET_IDENTITY = "SELECT identity FROM server_identity WHERE one = 1"
    INSERT_IDENTITY = "INSERT INTO server_identity (one, identity) VALUES (1, $1) ON CONFLICT (one) DO NOTHING"
    LOCK_IDENTITY = "SELECT identity FROM server_identity WHERE one = 1 FOR UPDATE"
    SET_IDENTITY = "UPDATE server_identity SET identity = $1 WHERE one = 1"
    STORE_NAMES = "SELECT name FROM stores ORDER BY name"
    # Held while stores, or the keys of a store, are counted and one is added. NO KEY: foreign keys of other
    # transactions may go on pointing at the store.
    LOCK_STORE_COUNT = "SELECT version FROM schema_version WHERE one = 1 FOR UPDATE"
    LOCK_STORES = "SELECT name FROM stores WHERE name = ANY ($1::TEXT[]) ORDER BY name FOR NO KEY UPDATE"
    # Locked in one order by everybody: no deadlocks.
    LOCK_HEADS = """
SELECT p.key_id, p.partition, p.head, p.live_rows, p.live_bytes, k.history_id, p.closed
FROM unnest($1::BIGINT[], $2::BIGINT[]) AS q (key_id, partition)
JOIN partitions p ON p.key_id = q.key_id AND p.partition = q.partition
JOIN config_keys k ON k.key_id = q.key_id
ORDER BY p.key_id, p.partition
FOR UPDATE OF p
"""
    ROW_SIZES = f"""
SELECT q.key_id, q.row_id, found.deleted, found.size, found.version
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[]) AS q (key_id, partition, row_id)
{_FOUND_ROWS}
"""  # noqa: S608
    # All at once. Without row_id: the heads as they were locked, and (deleted is true) as the snapshot has them, from
    # which the rows are. postgres_session.py says what the difference means. With row_id: size and version of the row.
    LOCK_HEADS_AND_SIZES = f"""
WITH locked AS ({LOCK_HEADS})
SELECT
    key_id, partition, CAST(NULL AS TEXT) AS row_id, false AS deleted, head AS number, live_rows, live_bytes,
    history_id, closed
FROM locked
UNION ALL
SELECT q.key_id, q.partition, NULL, true, seen.head, 0, 0, NULL, false
FROM unnest($1::BIGINT[], $2::BIGINT[]) AS q (key_id, partition)
CROSS JOIN LATERAL (
    SELECT p.head FROM partitions p WHERE p.key_id = q.key_id AND p.partition = q.partition LIMIT 1
) AS seen
UNION ALL
SELECT q.key_id, q.partition, q.row_id, found.deleted, found.size, found.version, 0, NULL, false
FROM unnest($3::BIGINT[], $4::BIGINT[], $5::TEXT[]) AS q (key_id, partition, row_id)
{_FOUND_ROWS}
"""  # noqa: S608
    ROW_CONTENTS = f"""
SELECT q.key_id, q.row_id, found.deleted, found.size, found.version, found.value, found.metadata
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[]) AS q (key_id, partition, row_id)
{_FOUND_ROWS}
"""  # noqa: S608
    INSERT_KEY = _INSERT_KEY
    SET_STORE_HISTORY = _SET_STORE_HISTORY
    KEY_IDS = _KEY_IDS
    SET_KEY_HISTORY = _SET_KEY_HISTORY
    # Of partitions that were never written; in one order, since it waits for others who insert the same.
    INSERT_HEADS = """
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes)
SELECT q.key_id, q.partition, q.head, 0, q.live_rows, q.live_bytes
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[])
    AS q (key_id, partition, head, live_rows, live_bytes)
ORDER BY q.key_id, q.partition
ON CONFLICT (key_id, partition) DO NOTHING
"""
    # Of partitions whose heads are locked.
    UPSERT_HEADS = """
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes)
SELECT q.key_id, q.partition, q.head, 0, q.live_rows, q.live_bytes
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[])
    AS q (key_id, partition, head, live_rows, live_bytes)
ON CONFLICT (key_id, partition) DO UPDATE
SET head = excluded.head, live_rows = excluded.live_rows, live_bytes = excluded.live_bytes
"""
    # What is new in great numbers is copied, where the database takes that, at half the cost of an insert. The order is
    # that of the lines in copying.py.
    ROW_COLUMNS = (
        "key_id",
        "partition",
        "row_id",
        "value",
        "version",
        "deleted",
        "metadata",
        "written_at_ms",
        "size",
    )
    HISTORY_COLUMNS = (
        "key_id",
        "partition",
        "row_id",
        "value",
        "revision",
        "deleted",
        "metadata",
        "written_at_ms",
        "prev",
    )
    UPSERT_ROWS = f"""
INSERT INTO rows (key_id, partition, row_id, value, version, deleted, metadata, size, written_at_ms)
SELECT q.key_id, q.partition, q.row_id, q.value, q.version, q.deleted, q.metadata, q.size, {POSTGRES_STAMP_MS}
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::TEXT[], $5::BIGINT[], $6::BOOLEAN[], $7::TEXT[], $8::BIGINT[])
    AS q (key_id, partition, row_id, value, version, deleted, metadata, size)
ON CONFLICT (key_id, partition, row_id) DO UPDATE
SET value = excluded.value, version = excluded.version, deleted = excluded.deleted, metadata = excluded.metadata,
    size = excluded.size, written_at_ms = excluded.written_at_ms
"""  # noqa: S608
    INSERT_HISTORY = f"""
INSERT INTO history (key_id, partition, row_id, value, revision, deleted, metadata, prev, written_at_ms)
SELECT q.key_id, q.partition, q.row_id, q.value, q.revision, q.deleted, q.metadata, q.prev, {POSTGRES_STAMP_MS}
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::TEXT[], $5::BIGINT[], $6::BOOLEAN[], $7::TEXT[], $8::BIGINT[])
    AS q (key_id, partition, row_id, value, revision, deleted, metadata, prev)
"""  # noqa: S608
    INSERT_OUTBOX = f"""
INSERT INTO outbox (store, subject, msg_id, payload, traceparent, created_at_ms)
SELECT split_part(q.subject, '.', 3), q.subject, q.msg_id, q.payload, q.traceparent, {POSTGRES_STAMP_MS}
FROM unnest($1::TEXT[], $2::TEXT[], $3::BYTEA[], $4::TEXT[]) AS q (subject, msg_id, payload, traceparent)
RETURNING id, msg_id
"""  # noqa: S608
    # The heads too only where they are there, and locked: nobody says which of these comes first, and a transaction
    # that loses a race for a new partition has to learn it from its head, before its history is in the way.
    WRITE = _at_once(UPSERT_ROWS, INSERT_HISTORY, INSERT_OUTBOX)
    WRITE_WITH_HEADS = _at_once(UPSERT_HEADS, UPSERT_ROWS, INSERT_HISTORY, INSERT_OUTBOX)
    STAMP_MS = f"SELECT {POSTGRES_STAMP_MS}"


class Sqlite(SqliteLifecycle, SqliteUpkeep, SqliteMarks, SqliteAsOf):
    """Statements for SQLite. It has no arrays: sets are written row by row (``executemany``) in the one transaction."""

    # AUTOINCREMENT: an id is never used again, which paging through the outbox relies on.
    TABLES = _tables(id="INTEGER PRIMARY KEY AUTOINCREMENT", bytes="BLOB", text="TEXT")
    HAS_SCHEMA = "SELECT count(*) FROM sqlite_schema WHERE name = 'schema_version'"
    GET_SCHEMA = _GET_SCHEMA
    PING = "SELECT 1"

    GET_STORE = _sqlite(_GET_STORE)
    LIST_STORES = _LIST_STORES
    COUNT_STORES = _COUNT_STORES
    INSERT_STORE = _sqlite(_INSERT_STORE)
    KEY_STATS = _sqlite(_KEY_STATS)

    LOCATE = _sqlite(_LOCATE)
    LOCATE_PARTITION = _sqlite(_LOCATE_PARTITION)
    READ_WHOLE = _sqlite(_READ_WHOLE)
    READ_SINCE = _sqlite(_READ_SINCE)
    READ_FULL = _sqlite(_READ_FULL)
    HEADS = _sqlite(_HEADS)
    LIST_PAGE = _sqlite(_LIST_PAGE)
    HISTORY_PAGE = _sqlite(_HISTORY_PAGE)
    READ_ROW = f"""
SELECT partition, {_ROW_COLUMNS} FROM rows WHERE key_id = ?1 AND partition = ?2 AND row_id = ?3
"""  # noqa: S608

    COUNT_KEYS = _sqlite(_COUNT_KEYS)
    GET_HEAD = "SELECT head, live_rows, live_bytes FROM partitions WHERE key_id = ?1 AND partition = ?2"
    STORED_CONTENT = """
SELECT deleted, version, size, value, metadata FROM rows WHERE key_id = ?1 AND partition = ?2 AND row_id = ?3
"""
    STORED_SIZE = "SELECT deleted, version, size FROM rows WHERE key_id = ?1 AND partition = ?2 AND row_id = ?3"
    INSERT_KEY = _sqlite(_INSERT_KEY)
    SET_STORE_HISTORY = _sqlite(_SET_STORE_HISTORY)
    KEY_IDS = _sqlite(_KEY_IDS)
    SET_KEY_HISTORY = _sqlite(_SET_KEY_HISTORY)
    UPSERT_HEAD = """
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes) VALUES (?1, ?2, ?3, 0, ?4, ?5)
ON CONFLICT (key_id, partition) DO UPDATE
SET head = excluded.head, live_rows = excluded.live_rows, live_bytes = excluded.live_bytes
"""
    UPSERT_ROW = """
INSERT INTO rows (key_id, partition, row_id, value, version, deleted, metadata, size, written_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (key_id, partition, row_id) DO UPDATE
SET value = excluded.value, version = excluded.version, deleted = excluded.deleted, metadata = excluded.metadata,
    size = excluded.size, written_at_ms = excluded.written_at_ms
"""
    INSERT_HISTORY = """
INSERT INTO history (key_id, partition, row_id, value, revision, deleted, metadata, prev, written_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
"""
    INSERT_OUTBOX = """
INSERT INTO outbox (store, subject, msg_id, payload, traceparent, created_at_ms)
VALUES (substr(?1, 15, instr(substr(?1, 15), '.') - 1), ?1, ?2, ?3, ?4, ?5)
"""
