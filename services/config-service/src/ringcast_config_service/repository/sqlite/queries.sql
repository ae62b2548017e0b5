-- The statements that SQLite has for itself. It has no arrays: sets are written row by row (executemany) in the one
-- transaction. ../sql/loader.py describes the format.

---- Fragments ----

-- now_ms --
-- The time, by this machine's clock.
CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)

-- stamp_ms --
-- SQLite has no time of a transaction.
{now_ms}

-- for_update --
-- Nothing: a write transaction is alone.

-- for_share --
-- The same.

-- for_key_share --
-- The same.

-- oldest_event --
-- When the oldest event was written: one file, one clock.
min(created_at_ms)

-- waits_behind --
-- The events of the store $1 above the id $2, in order.
store = $1 AND id > $2 ORDER BY id

-- key_id_beside_time --
-- By the index of times (+): without statistics SQLite would read all that the key ever had.
+key_id

-- write_before --
-- The write b that the write h has replaced, where it is kept.
LEFT JOIN history b ON b.key_id = h.key_id AND b.partition = h.partition AND b.revision = h.prev

-- row_before --
-- The write p that the write h has replaced, where $8.
LEFT JOIN history p ON $8::BOOLEAN AND p.key_id = h.key_id AND p.partition = h.partition AND p.revision = h.prev

-- row_of_other --
-- The row t that the release r has of the row s of another one.
CROSS JOIN release_rows t
    ON t.store = r.store AND t.number = r.number AND t.config_key = s.config_key AND t.row_id = s.row_id

-- first_and_last --
-- The first write h and the last write a of each row c of the partition $2 of the key with the id $1.
JOIN history h ON h.key_id = $1 AND h.partition = $2 AND h.revision = c.first
JOIN history a ON a.key_id = $1 AND a.partition = $2 AND a.revision = c.last

---- Schema ----

-- HAS_SCHEMA --
-- Whether the tables are there: 0 if not.
SELECT count(*) FROM sqlite_schema WHERE name = 'schema_version'

---- Reads ----

-- LIST_PAGE --
-- The page; its reader stops where it gets too large.
{list_page}

-- HISTORY_PAGE --
-- The same of revisions.
{history_page}

-- AS_OF_PAGE --
-- The same of rows as of a revision.
{as_of_page}

-- CHANGES_PAGE --
-- The same of rows that were written between two revisions.
{changes_page}

-- READ_ROW --
-- One row, by key id, partition and row id.
SELECT partition, {row_columns} FROM rows WHERE key_id = ?1 AND partition = ?2 AND row_id = ?3

-- GET_HEAD --
-- The head of the partition ?2 of the key with the id ?1, its schema and its caps.
SELECT head, live_rows, live_bytes, schema_id, cap_rows, cap_bytes FROM partitions WHERE key_id = ?1 AND partition = ?2

-- STORED_SIZE --
-- Size and version of a row, by key id, partition and row id.
SELECT deleted, version, size FROM rows WHERE key_id = ?1 AND partition = ?2 AND row_id = ?3

-- STORED_SIZES --
-- The same of several rows of a partition, with their ids: ?3 is those, an array as JSON text.
-- All at once: a statement for each row takes five times as long. CROSS JOIN: by the primary key for each.
SELECT r.row_id, r.deleted, r.version, r.size
FROM json_each(?3) q CROSS JOIN rows r
WHERE r.key_id = ?1 AND r.partition = ?2 AND r.row_id = q.value

-- STORED_CONTENTS --
-- The same with what the rows hold.
SELECT r.row_id, r.deleted, r.version, r.size, r.value, r.metadata
FROM json_each(?3) q CROSS JOIN rows r
WHERE r.key_id = ?1 AND r.partition = ?2 AND r.row_id = q.value

-- READ_MARK --
-- What is stored of the idempotency key ?2 of the store ?1.
SELECT digest, outcomes FROM idempotency_keys WHERE store = ?1 AND idempotency_key = ?2

---- Writes ----

-- UPSERT_HEAD --
-- Stores the head of a partition.
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes) VALUES (?1, ?2, ?3, 0, ?4, ?5)
ON CONFLICT (key_id, partition) DO UPDATE
SET head = excluded.head, live_rows = excluded.live_rows, live_bytes = excluded.live_bytes

-- FILL_HEAD --
-- The head of a partition with its caps ?3 and ?4, where there is none.
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes, cap_rows, cap_bytes)
VALUES (?1, ?2, 0, 0, 0, 0, ?3, ?4) ON CONFLICT (key_id, partition) DO NOTHING

-- SET_CAP --
-- Gives a partition its caps.
UPDATE partitions SET cap_rows = ?3, cap_bytes = ?4 WHERE key_id = ?1 AND partition = ?2

-- TAKE_BACK --
-- Takes back what partitions of the store ?1 have and do not use.
UPDATE partitions
SET cap_rows = CASE WHEN cap_rows IS NULL THEN NULL ELSE 0 END,
    cap_bytes = CASE WHEN cap_bytes IS NULL THEN NULL ELSE 0 END
WHERE key_id IN (SELECT key_id FROM config_keys WHERE store = ?1)
    AND (cap_rows > live_rows OR cap_bytes > live_bytes)

-- UPSERT_ROW --
-- Stores a row.
INSERT INTO rows (key_id, partition, row_id, value, version, deleted, metadata, size, written_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT (key_id, partition, row_id) DO UPDATE
SET value = excluded.value, version = excluded.version, deleted = excluded.deleted, metadata = excluded.metadata,
    size = excluded.size, written_at_ms = excluded.written_at_ms

-- INSERT_HISTORY --
-- Stores a revision.
INSERT INTO history (key_id, partition, row_id, value, revision, deleted, metadata, prev, author, reason, written_at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)

-- INSERT_OUTBOX --
-- Stores an event.
-- The store is the third token of config.notify.<store>.<key>.<partition>.
INSERT INTO outbox (store, subject, msg_id, payload, traceparent, created_at_ms)
VALUES (substr(?1, 15, instr(substr(?1, 15), '.') - 1), ?1, ?2, ?3, ?4, ?5)

-- INSERT_MARK --
-- Stores an idempotency key.
INSERT INTO idempotency_keys (store, idempotency_key, digest, outcomes, written_at_ms) VALUES (?1, ?2, ?3, ?4, ?5)

---- Outbox and maintenance ----

-- DELETE_OUTBOX --
-- Removes an event.
DELETE FROM outbox WHERE id = ?1

-- RAISE_FLOOR --
-- Raises the floor of a partition to ?3.
UPDATE partitions SET floor = ?3 WHERE key_id = ?1 AND partition = ?2 AND floor < ?3

-- DELETE_TOMBSTONE --
-- Removes a tombstone, by key id, partition, row id and version.
DELETE FROM rows WHERE key_id = ?1 AND partition = ?2 AND row_id = ?3 AND version = ?4

-- DELETE_HISTORY --
-- Removes a revision, by key id, partition and revision.
DELETE FROM history WHERE key_id = ?1 AND partition = ?2 AND revision = ?3
