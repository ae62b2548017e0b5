-- The statements that PostgreSQL and CockroachDB have for themselves: only what both accept, so no LISTEN, no advisory
-- locks, no ON CONFLICT on partial indexes. Sets travel as arrays, one a column. Statements of several of these are
-- put together in ../sql/statements.py, whose format ../sql/loader.py describes.

---- Fragments ----

-- now_ms --
-- The time, by the database's clock.
CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)

-- stamp_ms --
-- The time at which the transaction began: the same throughout.
CAST(extract(epoch FROM now()) * 1000 AS BIGINT)

-- for_update --
-- Locks the row: other instances may be about to change it.
FOR UPDATE

-- for_share --
-- Locks the row against all changes, but not against others that only look.
FOR SHARE

-- for_key_share --
-- Locks the row against FOR UPDATE, but not against updates that leave its primary key alone.
FOR KEY SHARE

-- oldest_event --
-- The age of the oldest event: the clock of an instance may differ from the database's.
{stamp_ms} - min(created_at_ms)

-- waits_behind --
-- The events of the store $1 above the id $2, in order. By a range of both columns: with `store = $1` PostgreSQL reads
-- and sorts all that waits of the store, as long as it has no statistics of that, or steps over what waits of others.
(store, id) > ($1, $2) AND (store, id) <= ($1, 9223372036854775807) ORDER BY store, id

-- key_id_beside_time --
-- PostgreSQL chooses by its statistics between the indexes of keys and of times.
key_id

-- found_rows --
-- The stored row of each of the rows asked for. A subquery for each keeps to the primary key, where a join may read the
-- whole table.
CROSS JOIN LATERAL (
    SELECT * FROM rows r WHERE r.key_id = q.key_id AND r.partition = q.partition AND r.row_id = q.row_id LIMIT 1
) AS found

-- write_before --
-- The write b that the write h has replaced, where it is kept. By subqueries for the reason of found_rows: a partition of
-- which there are no statistics yet counts as one row, and would be read as a whole for each.
LEFT JOIN LATERAL (
    SELECT * FROM history p WHERE p.key_id = h.key_id AND p.partition = h.partition AND p.revision = h.prev LIMIT 1
) AS b ON true

-- row_before --
-- The write p that the write h has replaced, where $8; in the same way.
LEFT JOIN LATERAL (
    SELECT * FROM history b
    WHERE $8::BOOLEAN AND b.key_id = h.key_id AND b.partition = h.partition AND b.revision = h.prev LIMIT 1
) AS p ON true

-- row_of_other --
-- The row t that the release r has of the row s of another one; in the way of found_rows.
CROSS JOIN LATERAL (
    SELECT * FROM release_rows o
    WHERE o.store = r.store AND o.number = r.number AND o.config_key = s.config_key AND o.row_id = s.row_id LIMIT 1
) AS t

-- first_and_last --
-- The first write h and the last write a of each row c of the partition $2 of the key with the id $1.
CROSS JOIN LATERAL (
    SELECT * FROM history p WHERE p.key_id = $1 AND p.partition = $2 AND p.revision = c.first LIMIT 1
) AS h
CROSS JOIN LATERAL (
    SELECT * FROM history p WHERE p.key_id = $1 AND p.partition = $2 AND p.revision = c.last LIMIT 1
) AS a

---- Schema, server and clock ----

-- HAS_SCHEMA --
-- Whether the tables may be there: 0 if not.
SELECT count(*) FROM information_schema.tables WHERE table_name = 'schema_version'

-- SERVER --
-- The name and version of the server.
SELECT version()

-- IS_READ_ONLY --
-- "on" where nothing can be written, in a standby too.
SHOW transaction_read_only

-- CLOCK_MS --
-- The time alone.
SELECT {now_ms}

-- STAMP_MS --
-- The time of the transaction alone.
SELECT {stamp_ms}

-- SERVER_IDENTITY --
-- What identifies PostgreSQL's data, and its process.
-- The system, and the timeline, which is another after each promotion of a standby.
SELECT CAST(c.system_identifier AS TEXT) || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
    CAST(pg_postmaster_start_time() AS TEXT)
FROM pg_control_system() AS c

-- CLUSTER_IDENTITY --
-- The same of CockroachDB, whose processes come and go.
SELECT CAST(crdb_internal.cluster_id() AS TEXT), ''

-- GET_IDENTITY --
-- The server that the record was written on.
SELECT identity FROM server_identity WHERE one = 1

-- INSERT_IDENTITY --
-- Notes the first server.
INSERT INTO server_identity (one, identity) VALUES (1, $1) ON CONFLICT (one) DO NOTHING

-- LOCK_IDENTITY --
-- The same as GET_IDENTITY, locked: one instance begins new histories.
SELECT identity FROM server_identity WHERE one = 1 FOR UPDATE

-- SET_IDENTITY --
-- Notes another server.
UPDATE server_identity SET identity = $1 WHERE one = 1

-- STORE_NAMES --
-- The names of all stores.
SELECT name FROM stores ORDER BY name

---- Reads ----

-- LIST_PAGE --
-- The page as long as the rows before have less than $7 bytes. The length of a value is known without reading it.
SELECT partition, {row_columns} FROM (
    SELECT page.*, sum(octet_length(value) + coalesce(octet_length(metadata), 0)) OVER (
        ORDER BY partition, row_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS bytes_before
    FROM ({list_page}) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $7::BIGINT ORDER BY partition, row_id

-- HISTORY_PAGE --
-- The same of revisions, of which each may have the row before it.
SELECT partition, revision, row_id, value, deleted, metadata, written_at_ms,
    prev, author, reason, was, was_deleted, was_metadata
FROM (
    SELECT page.*, sum(
        octet_length(value) + coalesce(octet_length(metadata), 0)
        + coalesce(octet_length(was), 0) + coalesce(octet_length(was_metadata), 0)
    ) OVER (ORDER BY partition, revision ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM ({history_page}) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $9::BIGINT ORDER BY partition, revision

-- AS_OF_PAGE --
-- The same of rows as of a revision.
SELECT partition, {row_columns} FROM (
    SELECT page.*, sum(coalesce(octet_length(value), 0) + coalesce(octet_length(metadata), 0)) OVER (
        ORDER BY row_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS bytes_before
    FROM ({as_of_page}) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $7::BIGINT ORDER BY row_id

-- CHANGES_PAGE --
-- The same of rows that were written between two revisions.
SELECT row_id, was, was_version, was_deleted, was_metadata, value, version, deleted, metadata, gone FROM (
    SELECT page.*, sum(
        octet_length(value) + coalesce(octet_length(metadata), 0)
        + coalesce(octet_length(was), 0) + coalesce(octet_length(was_metadata), 0)
    ) OVER (ORDER BY row_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM ({changes_page}) AS page
) AS measured
WHERE coalesce(bytes_before, 0) < $8::BIGINT ORDER BY row_id

-- SIZE_OF_ROWS --
-- How many bytes the named rows of a key have: $2 their partitions, $3 their ids.
SELECT CAST(coalesce(sum(
    (SELECT r.size FROM rows r WHERE r.key_id = $1 AND r.partition = q.partition AND r.row_id = q.row_id)
), 0) AS BIGINT)
FROM unnest($2::BIGINT[], $3::TEXT[]) AS q (partition, row_id)

-- READ_ROWS --
-- The named rows of a key: $2 their partitions, $3 their ids.
SELECT found.partition, found.row_id, found.value, found.version, found.deleted, found.metadata
FROM unnest($2::BIGINT[], $3::TEXT[]) AS q (partition, row_id)
CROSS JOIN LATERAL (
    SELECT * FROM rows r WHERE r.key_id = $1 AND r.partition = q.partition AND r.row_id = q.row_id LIMIT 1
) AS found

---- Writes ----

-- LOCATE_MANY --
-- The stores $1 and keys $2 that requests name.
SELECT s.name, q.name, k.key_id, k.history_id, s.partition_count, {deletions}
FROM unnest($1::TEXT[], $2::TEXT[]) AS q (store, name)
JOIN stores s ON s.name = q.store
LEFT JOIN config_keys k ON k.store = q.store AND k.name = q.name

-- LOCK_STORE_COUNT --
-- Locked while stores are counted and one is added.
SELECT version FROM schema_version WHERE one = 1 FOR UPDATE

-- LOCK_STORES --
-- Locks the stores $1 while their keys are counted and one is added.
-- NO KEY: foreign keys of other transactions may go on pointing at the store.
SELECT name FROM stores WHERE name = ANY ($1::TEXT[]) ORDER BY name FOR NO KEY UPDATE

-- LOCK_HEADS --
-- The heads of the partitions $2 of the keys with the ids $1, locked.
-- All transactions lock them in this order: no deadlocks. The history by a subquery: with a join of the keys PostgreSQL
-- may read every partition of a key for each one that is asked for, as long as the table has no statistics.
SELECT p.key_id, p.partition, p.head, p.live_rows, p.live_bytes,
    (SELECT k.history_id FROM config_keys k WHERE k.key_id = p.key_id) AS history_id, p.closed, p.releases_only,
    p.schema_id, p.cap_rows, p.cap_bytes
FROM unnest($1::BIGINT[], $2::BIGINT[]) AS q (key_id, partition)
JOIN partitions p ON p.key_id = q.key_id AND p.partition = q.partition
ORDER BY p.key_id, p.partition
FOR UPDATE OF p

-- ROW_SIZES --
-- Size and version of rows: $1 key ids, $2 partitions, $3 row ids.
SELECT q.key_id, q.row_id, found.deleted, found.size, found.version
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[]) AS q (key_id, partition, row_id)
{found_rows}

-- ROW_CONTENTS --
-- The same with what the rows hold.
SELECT q.key_id, q.row_id, found.deleted, found.size, found.version, found.value, found.metadata
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[]) AS q (key_id, partition, row_id)
{found_rows}

-- LOCK_HEADS_AND_SIZES --
-- LOCK_HEADS of $1 and $2, and ROW_SIZES of $3 to $5, at once.
-- Without row_id: the heads as they were locked, and (deleted is true) as the snapshot has them, from which the rows
-- are. session.py says what the difference means. With row_id: size and version of the row.
WITH locked AS ({LOCK_HEADS})
SELECT
    key_id, partition, CAST(NULL AS TEXT) AS row_id, false AS deleted, head AS number, live_rows, live_bytes,
    history_id, closed, releases_only, schema_id, cap_rows, cap_bytes
FROM locked
UNION ALL
SELECT q.key_id, q.partition, NULL, true, seen.head, 0, 0, NULL, false, NULL, NULL, NULL, NULL
FROM unnest($1::BIGINT[], $2::BIGINT[]) AS q (key_id, partition)
CROSS JOIN LATERAL (
    SELECT p.head FROM partitions p WHERE p.key_id = q.key_id AND p.partition = q.partition LIMIT 1
) AS seen
UNION ALL
SELECT q.key_id, q.partition, q.row_id, found.deleted, found.size, found.version, 0, NULL, false, NULL, NULL, NULL, NULL
FROM unnest($3::BIGINT[], $4::BIGINT[], $5::TEXT[]) AS q (key_id, partition, row_id)
{found_rows}

-- INSERT_HEADS --
-- Creates the heads of partitions that were never written; fewer than wanted where another transaction was first.
-- In one order, since it waits for other transactions that insert the same.
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes)
SELECT q.key_id, q.partition, q.head, 0, q.live_rows, q.live_bytes
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[])
    AS q (key_id, partition, head, live_rows, live_bytes)
ORDER BY q.key_id, q.partition
ON CONFLICT (key_id, partition) DO NOTHING

-- UPSERT_HEADS --
-- Stores heads that are locked.
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes)
SELECT q.key_id, q.partition, q.head, 0, q.live_rows, q.live_bytes
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[], $5::BIGINT[])
    AS q (key_id, partition, head, live_rows, live_bytes)
ON CONFLICT (key_id, partition) DO UPDATE
SET head = excluded.head, live_rows = excluded.live_rows, live_bytes = excluded.live_bytes

-- SET_CAPS --
-- Gives partitions caps: $1 key ids, $2 partitions, $3 rows, $4 bytes.
UPDATE partitions AS p SET cap_rows = q.cap_rows, cap_bytes = q.cap_bytes
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[]) AS q (key_id, partition, cap_rows, cap_bytes)
WHERE p.key_id = q.key_id AND p.partition = q.partition

-- TAKE_BACK --
-- Takes back what partitions of the store $1 have and do not use, but for those that other transactions have locked.
-- It waits for no lock: this transaction has locked heads out of order.
UPDATE partitions AS p
SET cap_rows = CASE WHEN p.cap_rows IS NULL THEN NULL ELSE 0 END,
    cap_bytes = CASE WHEN p.cap_bytes IS NULL THEN NULL ELSE 0 END
FROM (
    SELECT f.key_id, f.partition
    FROM config_keys k JOIN partitions f ON f.key_id = k.key_id
    WHERE k.store = $1 AND (f.cap_rows > f.live_rows OR f.cap_bytes > f.live_bytes)
    FOR UPDATE OF f SKIP LOCKED
) AS found
WHERE p.key_id = found.key_id AND p.partition = found.partition

-- UPSERT_ROWS --
-- Stores rows.
INSERT INTO rows (key_id, partition, row_id, value, version, deleted, metadata, size, written_at_ms)
SELECT q.key_id, q.partition, q.row_id, q.value, q.version, q.deleted, q.metadata, q.size, {stamp_ms}
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::TEXT[], $5::BIGINT[], $6::BOOLEAN[], $7::TEXT[], $8::BIGINT[])
    AS q (key_id, partition, row_id, value, version, deleted, metadata, size)
ON CONFLICT (key_id, partition, row_id) DO UPDATE
SET value = excluded.value, version = excluded.version, deleted = excluded.deleted, metadata = excluded.metadata,
    size = excluded.size, written_at_ms = excluded.written_at_ms

-- INSERT_HISTORY --
-- Stores revisions. $9, their authors, and $10, their reasons, have an entry a revision, or one for all of them; '' is none.
-- unnest fills shorter arrays up with nulls.
INSERT INTO history (key_id, partition, row_id, value, revision, deleted, metadata, prev, author, reason, written_at_ms)
SELECT q.key_id, q.partition, q.row_id, q.value, q.revision, q.deleted, q.metadata, q.prev,
    nullif(coalesce(q.author, ($9::TEXT[])[1]), ''), nullif(coalesce(q.reason, ($10::TEXT[])[1]), ''), {stamp_ms}
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::TEXT[], $5::BIGINT[], $6::BOOLEAN[], $7::TEXT[], $8::BIGINT[],
    $9::TEXT[], $10::TEXT[])
    AS q (key_id, partition, row_id, value, revision, deleted, metadata, prev, author, reason)

-- INSERT_OUTBOX --
-- Stores events; returns the id of each.
-- The store is the third token of config.notify.<store>.<key>.<partition>.
INSERT INTO outbox (store, subject, msg_id, payload, traceparent, created_at_ms)
SELECT split_part(q.subject, '.', 3), q.subject, q.msg_id, q.payload, q.traceparent, {stamp_ms}
FROM unnest($1::TEXT[], $2::TEXT[], $3::BYTEA[], $4::TEXT[]) AS q (subject, msg_id, payload, traceparent)
RETURNING id, msg_id

-- READ_MARKS --
-- What is stored of the idempotency keys $2 of the stores $1.
SELECT found.store, found.idempotency_key, found.digest, found.outcomes
FROM unnest($1::TEXT[], $2::TEXT[]) AS q (store, idempotency_key)
CROSS JOIN LATERAL (
    SELECT * FROM idempotency_keys k WHERE k.store = q.store AND k.idempotency_key = q.idempotency_key LIMIT 1
) AS found

-- INSERT_MARKS --
-- Stores idempotency keys; fewer than wanted where another transaction was first.
-- In one order, since it waits for other transactions that insert the same.
INSERT INTO idempotency_keys (store, idempotency_key, digest, outcomes, written_at_ms)
SELECT q.store, q.idempotency_key, q.digest, q.outcomes, {stamp_ms}
FROM unnest($1::TEXT[], $2::TEXT[], $3::TEXT[], $4::TEXT[]) AS q (store, idempotency_key, digest, outcomes)
ORDER BY q.store, q.idempotency_key
ON CONFLICT (store, idempotency_key) DO NOTHING

---- Deletion ----

-- FILL_HEADS --
-- A head for each of the $2 partitions of a key, with the caps $3 and $4, so that each can be closed and has its caps; in
-- the order in which all insert.
INSERT INTO partitions (key_id, partition, head, floor, live_rows, live_bytes, cap_rows, cap_bytes)
SELECT $1::BIGINT, n.partition, 0, 0, 0, 0, $3::BIGINT, $4::BIGINT FROM generate_series(0::BIGINT, $2::BIGINT - 1) AS n (partition)
ORDER BY n.partition
ON CONFLICT (key_id, partition) DO NOTHING

-- LOCK_KEY_HEADS --
-- Locks all heads of a key.
SELECT partition FROM partitions WHERE key_id = $1 ORDER BY partition FOR UPDATE

-- SET_CLOSED --
-- Closes or opens all heads of a key.
UPDATE partitions SET closed = $2 WHERE key_id = $1 AND closed <> $2

-- SET_RELEASES_ONLY --
-- Notes in all heads of a key whether its store takes releases only.
UPDATE partitions SET releases_only = $2 WHERE key_id = $1

-- KEYS_TO_CLOSE --
-- Deleted keys whose heads are open: a deletion broke off.
SELECT DISTINCT k.key_id, s.partition_count
FROM config_keys k JOIN stores s ON s.name = k.store JOIN partitions p ON p.key_id = k.key_id
WHERE (s.deleted_at_ms IS NOT NULL OR k.deleted_at_ms IS NOT NULL) AND NOT p.closed
ORDER BY k.key_id

-- KEYS_TO_OPEN --
-- The ids of the keys of the store $1 that are not deleted by themselves.
SELECT key_id FROM config_keys WHERE store = $1 AND deleted_at_ms IS NULL ORDER BY key_id

---- Outbox and maintenance ----

-- LOCK_DUTY --
-- Waits for the transactions that have checked the duty $1, and keeps others from that.
SELECT token FROM maintenance WHERE duty = $1 FOR UPDATE

-- RAISE_MARK --
-- Raises the mark of the record, the token of the duty $1, and returns it.
INSERT INTO maintenance (duty, holder, token, until_ms, done_ms) VALUES ($1, '', 1, 0, 0)
ON CONFLICT (duty) DO UPDATE SET token = maintenance.token + 1 RETURNING token

-- SET_MARK --
-- Sets that mark to $2.
UPDATE maintenance SET token = $2 WHERE duty = $1

-- DELETE_OUTBOX --
-- Removes the events $1.
DELETE FROM outbox WHERE id = ANY ($1::BIGINT[])

-- RAISE_FLOORS --
-- Raises the floors of partitions: $1 key ids, $2 partitions, $3 floors.
UPDATE partitions AS p SET floor = q.floor
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[]) AS q (key_id, partition, floor)
WHERE p.key_id = q.key_id AND p.partition = q.partition AND p.floor < q.floor

-- DELETE_TOMBSTONES --
-- Removes tombstones: $1 key ids, $2 partitions, $3 row ids, $4 versions.
-- The version shows that it is the tombstone still; a condition on deleted would read the index of all tombstones.
DELETE FROM rows AS r USING unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::BIGINT[])
    AS q (key_id, partition, row_id, version)
WHERE r.key_id = q.key_id AND r.partition = q.partition AND r.row_id = q.row_id AND r.version = q.version

-- DELETE_HISTORY --
-- Removes revisions: $1 key ids, $2 partitions, $3 revisions.
DELETE FROM history AS h USING unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[]) AS q (key_id, partition, revision)
WHERE h.key_id = q.key_id AND h.partition = q.partition AND h.revision = q.revision
