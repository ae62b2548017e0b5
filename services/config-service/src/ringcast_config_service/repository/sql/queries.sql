-- The statements whose text is the same for PostgreSQL, CockroachDB and SQLite, but for the mechanical changes that
-- statements.py names: a parameter is $1 or ?1, its cast ($1::TEXT) is PostgreSQL's alone, and {name} is the fragment
-- of that name, here or in the database's own file. loader.py describes the format.

---- Fragments ----

-- store_columns --
-- What is locked at the creation of a store, and its history.
name, partition_count, mode, hash, strategy, load_factor, wire_version, inline_max_bytes, created_at_ms, history_id,
lease_ttl_ms, call_bound_ms

-- deletions --
-- The deletion of a store and that of a key, as mapping.deleted reads them.
s.deleted_at_ms, s.expires_at_ms, k.deleted_at_ms, k.expires_at_ms

-- row_columns --
-- A row as mapping.to_row reads it.
row_id, value, version, deleted, metadata

-- horizon --
-- Unix time up to which revisions of the key with the id $1 may be removed: each that is gone was replaced by a write
-- older than this. Of the key's store, if that has or had a retention of its own (compaction.py).
coalesce(
    (SELECT m.done_ms FROM config_keys k JOIN maintenance m ON m.duty = 'history-horizon/' || k.store WHERE k.key_id = $1),
    (SELECT done_ms FROM maintenance WHERE duty = 'history-horizon'), 0
)

---- Schema and stores ----

-- PING --
-- Any answer of the database.
SELECT 1

-- GET_SCHEMA --
-- The version of the schema.
SELECT version FROM schema_version WHERE one = 1

-- GET_USABLE_FROM --
-- The version of the schema that a build must know to use a database whose schema is newer.
SELECT usable_from FROM schema_version WHERE one = 1

-- RAISE_USABLE_FROM --
-- From now on a build must know version $1 of the schema at least.
UPDATE schema_version SET usable_from = $1 WHERE one = 1 AND usable_from < $1

-- GET_STORE --
-- The store named $1, deleted or not.
SELECT {store_columns}, policy, migration, wire_pin, deleted_at_ms, expires_at_ms FROM stores WHERE name = $1

-- LIST_STORES --
-- Every store by name, deleted or not.
SELECT {store_columns}, policy, migration, wire_pin, deleted_at_ms, expires_at_ms FROM stores ORDER BY name

-- COUNT_STORES --
-- How many stores there are that are not deleted.
SELECT count(*) FROM stores WHERE deleted_at_ms IS NULL

-- INSERT_STORE --
-- Creates a store from the columns of a record (mapping.from_store).
INSERT INTO stores ({store_columns}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- SET_INLINE --
-- Changes what is not locked of the store $1: its limit for inline values.
UPDATE stores SET inline_max_bytes = $2 WHERE name = $1

-- SET_MIGRATION --
-- Takes a step of the migration of the store $1, with the wire version that goes with it.
UPDATE stores SET migration = $2, wire_version = $3 WHERE name = $1

-- SET_WIRE_PIN --
-- Pins the events of the store $1 to the wire version $2.
UPDATE stores SET wire_pin = $2 WHERE name = $1

-- GET_POLICY --
-- The policies of the store $1 as JSON text, null where it has none.
SELECT policy FROM stores WHERE name = $1

-- SET_POLICY --
-- Gives the store $1 policies.
UPDATE stores SET policy = $2 WHERE name = $1

-- SET_BUDGET --
-- Gives the store $1 limits of $2 live rows and $3 bytes, of which $4 and $5 are free.
INSERT INTO store_budgets (store, max_rows, max_bytes, free_rows, free_bytes) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (store) DO UPDATE
SET max_rows = excluded.max_rows, max_bytes = excluded.max_bytes,
    free_rows = excluded.free_rows, free_bytes = excluded.free_bytes

-- DROP_BUDGET --
-- Removes the limits of the store $1.
DELETE FROM store_budgets WHERE store = $1

-- LOCK_BUDGET --
-- The limits of the store $1, and what is free of them; locked where rows can be.
SELECT max_rows, max_bytes, free_rows, free_bytes FROM store_budgets WHERE store = $1 {for_update}

-- SET_FREE --
-- Notes what is free of the limits of the store $1.
UPDATE store_budgets SET free_rows = $2, free_bytes = $3 WHERE store = $1

-- STORE_USE --
-- What the partitions of the store $1 have of its limits: live rows and bytes, and the same or the caps, where those are
-- larger.
-- sum() is NUMERIC in PostgreSQL, hence the casts.
SELECT
    CAST(coalesce(sum(p.live_rows), 0) AS BIGINT), CAST(coalesce(sum(p.live_bytes), 0) AS BIGINT),
    CAST(coalesce(sum(CASE WHEN p.cap_rows > p.live_rows THEN p.cap_rows ELSE p.live_rows END), 0) AS BIGINT),
    CAST(coalesce(sum(CASE WHEN p.cap_bytes > p.live_bytes THEN p.cap_bytes ELSE p.live_bytes END), 0) AS BIGINT)
FROM config_keys k JOIN partitions p ON p.key_id = k.key_id
WHERE k.store = $1

-- SET_ALL_CAPS --
-- Gives all partitions of a key the same caps.
UPDATE partitions SET cap_rows = $2, cap_bytes = $3 WHERE key_id = $1

-- KEY_STATS --
-- Live rows, bytes and deletion of each key of the store $1, or of all stores where it is ''.
-- sum() is NUMERIC in PostgreSQL, hence the casts.
SELECT
    k.store, k.name,
    CAST(coalesce(sum(p.live_rows), 0) AS BIGINT), CAST(coalesce(sum(p.live_bytes), 0) AS BIGINT),
    k.deleted_at_ms, k.expires_at_ms
FROM config_keys k LEFT JOIN partitions p ON p.key_id = k.key_id
WHERE $1::TEXT = '' OR k.store = $1::TEXT
GROUP BY k.store, k.name, k.deleted_at_ms, k.expires_at_ms ORDER BY k.store, k.name

---- Reads ----

-- LOCATE --
-- The key $2 of the store $1: partition count, id, history and deletions; the id is null where there is no such key.
SELECT s.partition_count, k.key_id, k.history_id, {deletions}
FROM stores s LEFT JOIN config_keys k ON k.store = s.name AND k.name = $2
WHERE s.name = $1

-- LOCATE_PARTITION --
-- The same with the head of the partition $3, null where it was never written.
SELECT s.partition_count, k.key_id, k.history_id, p.head, p.floor, p.live_rows, p.live_bytes, {deletions}
FROM stores s
LEFT JOIN config_keys k ON k.store = s.name AND k.name = $2
LEFT JOIN partitions p ON p.key_id = k.key_id AND p.partition = $3
WHERE s.name = $1

-- READ_WHOLE --
-- The live rows of the partition $2 of the key with the id $1.
SELECT {row_columns} FROM rows WHERE key_id = $1 AND partition = $2 AND NOT deleted

-- READ_SINCE --
-- The rows of a partition, tombstones too, that were written after the revision $3.
-- partition + 0: the expression of the index rows_by_version.
SELECT {row_columns} FROM rows WHERE key_id = $1 AND partition + 0 = $2 AND version > $3 ORDER BY version

-- READ_FULL --
-- The live rows of all partitions of a key, one partition after the other.
SELECT partition, {row_columns} FROM rows WHERE key_id = $1 AND NOT deleted ORDER BY partition

-- HEADS --
-- The heads of all partitions of a key that were ever written.
-- A head of 0 was created for a write that has not come.
SELECT partition, head, live_bytes, live_rows FROM partitions WHERE key_id = $1 AND head > 0 ORDER BY partition

-- list_page --
-- Up to $6 rows of the partitions $2 to $3, behind the row $4 of the first; tombstones too where $5.
-- Keyset paging: a page goes on behind the last row of the one before. The bounds on the first column alone let an
-- index be used where the planner does not see through the comparison of pairs.
SELECT partition, {row_columns} FROM rows
WHERE key_id = $1 AND partition BETWEEN $2 AND $3 AND (partition, row_id) > ($2, $4) AND (NOT deleted OR $5::BOOLEAN)
ORDER BY partition, row_id LIMIT $6

-- history_page --
-- Up to $7 revisions above $5 of the partitions $2 to $3, behind the revision $4 of the first; of the row $6 alone
-- unless it is ''; each with the row before it where $8.
SELECT h.partition, h.revision, h.row_id, h.value, h.deleted, h.metadata, h.written_at_ms,
    h.prev, h.author, h.reason, p.value AS was, p.deleted AS was_deleted, p.metadata AS was_metadata
FROM history h
{row_before}
WHERE h.key_id = $1 AND h.partition BETWEEN $2 AND $3 AND (h.partition, h.revision) > ($2, $4) AND h.revision > $5
    AND ($6::TEXT = '' OR h.row_id = $6::TEXT)
ORDER BY h.partition, h.revision LIMIT $7

---- Reads of an earlier revision ----

-- HORIZON --
-- The horizon alone, of the key with the id $1.
SELECT {horizon}

-- RAISE_HORIZON --
-- Raises the horizon with the name $1 to $2.
-- In the transactions that remove revisions, so that a snapshot without them has the horizon that they were behind. A
-- pass with a longer retention than the one before it goes over revisions again whose predecessors are gone: the horizon
-- stays where it is.
INSERT INTO maintenance (duty, holder, token, until_ms, done_ms) VALUES ($1, '', 1, 0, $2::BIGINT)
ON CONFLICT (duty) DO UPDATE SET done_ms = CASE
    WHEN excluded.done_ms > maintenance.done_ms THEN excluded.done_ms ELSE maintenance.done_ms
END

-- KEPT_REVISIONS --
-- How many revisions above $3 the partition $2 of a key has in the history, and the horizon.
SELECT (SELECT count(*) FROM history WHERE key_id = $1 AND partition = $2 AND revision > $3), {horizon}

-- READ_AS_OF --
-- The rows of a partition as of the revision $3, written after $5; $4 is the horizon; tombstones too where $6.
-- Rows that were not written since, and what the others were before their first write since (prev). No value comes for
-- a write before the horizon whose row is not known any more; after the horizon only a deletion can be gone, which goes
-- by its own age, and then the row was not there.
SELECT row_id, value, version, deleted, metadata FROM rows
WHERE key_id = $1 AND partition = $2 AND version > $5 AND version <= $3 AND (NOT deleted OR $6::BOOLEAN)
UNION ALL
SELECT h.row_id, b.value, coalesce(b.revision, 0), coalesce(b.deleted, false), b.metadata
FROM history h
{write_before}
WHERE h.key_id = $1 AND h.partition = $2 AND h.revision > $3 AND h.prev > $5 AND h.prev <= $3
    AND ((b.revision IS NULL AND h.written_at_ms < $4) OR (b.revision IS NOT NULL AND (NOT b.deleted OR $6::BOOLEAN)))

-- REVISIONS_AT --
-- The revision of each partition of a key at the moment $2, where it was written since.
-- Nothing that was written after the moment is in it, and no partition has a revision without those before it.
SELECT partition, min(revision) - 1 FROM history
WHERE {key_id_beside_time} = $1 AND written_at_ms > $2 GROUP BY partition

-- KEPT_BETWEEN --
-- How many revisions above $3 and up to $4 the partition $2 of a key has in the history.
SELECT count(*) FROM history WHERE key_id = $1 AND partition = $2 AND revision > $3 AND revision <= $4

-- as_of_page --
-- The same rows as READ_AS_OF gives, but tombstones, page by page: up to $6 behind the row $4; $5 is the horizon.
SELECT partition, {row_columns} FROM (
    SELECT partition, {row_columns} FROM rows
    WHERE key_id = $1 AND partition = $2 AND row_id > $4 AND version <= $3 AND NOT deleted
    UNION ALL
    SELECT h.partition, h.row_id, b.value, coalesce(b.revision, 0), coalesce(b.deleted, false), b.metadata
    FROM history h
    {write_before}
    WHERE h.key_id = $1 AND h.partition = $2 AND h.revision > $3 AND h.prev > 0 AND h.prev <= $3 AND h.row_id > $4
        AND ((b.revision IS NULL AND h.written_at_ms < $5) OR (b.revision IS NOT NULL AND NOT b.deleted))
) AS there
ORDER BY row_id LIMIT $6

-- changes_page --
-- Up to $7 rows of the partition $2 that were written above the revision $3 and up to $4, behind the row $5: what each
-- was before the first of these writes and after the last. gone: what it was before is not known any more, for its write
-- is older than the horizon $6.
SELECT c.row_id, b.value AS was, b.revision AS was_version, b.deleted AS was_deleted, b.metadata AS was_metadata,
    a.value, a.revision AS version, a.deleted, a.metadata,
    (h.prev > 0 AND b.revision IS NULL AND h.written_at_ms < $6) AS gone
FROM (
    SELECT row_id, min(revision) AS first, max(revision) AS last FROM history
    WHERE key_id = $1 AND partition = $2 AND revision > $3 AND revision <= $4 AND row_id > $5
    GROUP BY row_id ORDER BY row_id LIMIT $7
) AS c
{first_and_last}
{write_before}
ORDER BY c.row_id

---- Writes and histories ----

-- COUNT_KEYS --
-- How many keys of the store $1 are not deleted.
SELECT count(*) FROM config_keys WHERE store = $1 AND deleted_at_ms IS NULL

-- INSERT_KEY --
-- Creates the key $2 of the store $1 with the history $3; returns its id.
INSERT INTO config_keys (store, name, history_id) VALUES ($1, $2, $3) RETURNING key_id

-- SET_STORE_HISTORY --
-- Gives the store $1 the history $2 in place of $3.
UPDATE stores SET history_id = $2 WHERE name = $1 AND history_id = $3

-- KEY_IDS --
-- The ids of all keys of the store $1, in the order in which their heads are locked.
SELECT key_id FROM config_keys WHERE store = $1 ORDER BY key_id

-- SET_KEY_HISTORY --
-- Gives a key the history $2.
UPDATE config_keys SET history_id = $2 WHERE key_id = $1

---- Deletion and purge ----

-- COUNT_DELETED_STORES --
-- How many stores are deleted.
SELECT count(*) FROM stores WHERE deleted_at_ms IS NOT NULL

-- COUNT_DELETED_KEYS --
-- How many keys of the store $1 are deleted.
SELECT count(*) FROM config_keys WHERE store = $1 AND deleted_at_ms IS NOT NULL

-- MARK_STORE --
-- Deletes the store $1, or restores it with nulls.
UPDATE stores SET deleted_at_ms = $2, expires_at_ms = $3 WHERE name = $1

-- MARK_KEY --
-- Deletes the key $2 of the store $1, or restores it with nulls.
UPDATE config_keys SET deleted_at_ms = $3, expires_at_ms = $4 WHERE store = $1 AND name = $2

-- GET_KEY --
-- Id and deletion of the key $2 of the store $1, locked where rows can be.
SELECT key_id, deleted_at_ms, expires_at_ms FROM config_keys WHERE store = $1 AND name = $2 {for_update}

-- EXPIRE_STORES --
-- Ends the restoring of stores whose retention is over at $1.
UPDATE stores SET expires_at_ms = 0 WHERE expires_at_ms > 0 AND expires_at_ms <= $1

-- EXPIRE_KEYS --
-- The same for keys.
UPDATE config_keys SET expires_at_ms = 0 WHERE expires_at_ms > 0 AND expires_at_ms <= $1

-- EXPIRED_STORES --
-- Stores that are to be purged.
SELECT name FROM stores WHERE expires_at_ms = 0 ORDER BY name

-- EXPIRED_KEYS --
-- Keys that are to be purged.
SELECT store, name FROM config_keys WHERE expires_at_ms = 0 ORDER BY store, name

-- EXPIRED_KEY_IDS --
-- The id of the expired key $2 of the store $1; where $2 is '', of all keys of an expired store.
SELECT k.key_id FROM config_keys k JOIN stores s ON s.name = k.store
WHERE k.store = $1 AND (($2::TEXT = '' AND s.expires_at_ms = 0) OR (k.name = $2 AND k.expires_at_ms = 0))
ORDER BY k.key_id

-- FIRST_ROW --
-- The first partition of a key, from $2 on, that has rows.
SELECT partition FROM rows WHERE key_id = $1 AND partition >= $2 ORDER BY partition LIMIT 1

-- FIRST_REVISION --
-- The first partition of a key, from $2 on, that has revisions.
SELECT partition FROM history WHERE key_id = $1 AND partition >= $2 ORDER BY partition LIMIT 1

-- PURGE_ROWS --
-- Removes up to $3 rows of a partition, in the order of the primary key.
-- By all columns of the key: with the partition as a constant PostgreSQL, without statistics, reads all of it first, and
-- compares each row with each of these.
DELETE FROM rows WHERE (key_id, partition, row_id) IN (
    SELECT key_id, partition, row_id FROM rows WHERE key_id = $1 AND partition = $2 ORDER BY row_id LIMIT $3
)

-- PURGE_HISTORY --
-- Removes up to $3 revisions of a partition, in the order of the primary key; by all columns of it, as PURGE_ROWS.
DELETE FROM history WHERE (key_id, partition, revision) IN (
    SELECT key_id, partition, revision FROM history WHERE key_id = $1 AND partition = $2 ORDER BY revision LIMIT $3
)

-- DROP_PARTITIONS --
-- Removes the heads of a key.
DELETE FROM partitions WHERE key_id = $1

-- DROP_KEY --
-- Removes a key.
DELETE FROM config_keys WHERE key_id = $1

-- DROP_STORE --
-- Removes the store $1, if it is expired.
DELETE FROM stores WHERE name = $1 AND expires_at_ms = 0

-- DROP_MARKS --
-- Removes the idempotency keys of the store $1.
DELETE FROM idempotency_keys WHERE store = $1

-- PURGE_MARKS --
-- Removes up to $3 idempotency keys of the store $1 whose digests have $2, the name of a config key between slashes.
DELETE FROM idempotency_keys WHERE store = $1 AND idempotency_key IN (
    SELECT idempotency_key FROM idempotency_keys WHERE store = $1 AND replace(digest, $2::TEXT, '') <> digest LIMIT $3
)

-- DROP_EVENTS --
-- Removes the events whose subjects begin with $1.
DELETE FROM outbox WHERE substr(subject, 1, length($1::TEXT)) = $1

---- Outbox ----

-- OUTBOX_SPANS --
-- The lowest and the highest id that wait, for each store that has any.
-- Two look-ups in the index for each store, however much waits.
SELECT name, oldest, newest FROM (
    SELECT s.name, (SELECT min(o.id) FROM outbox o WHERE o.store = s.name) AS oldest,
        (SELECT max(o.id) FROM outbox o WHERE o.store = s.name) AS newest
    FROM stores s
) AS spans WHERE oldest IS NOT NULL ORDER BY name

-- OUTBOX_STATE --
-- How many events wait, and when the oldest was written: in SQLite as Unix time, in PostgreSQL as its age.
-- Bounded, so that looking at a long outbox does not add to the trouble.
SELECT count(*), {oldest_event}
FROM (SELECT created_at_ms FROM outbox ORDER BY id LIMIT 100000) AS oldest

-- READ_OUTBOX --
-- Up to $3 events of the store $1 above the id $2, with payloads of up to $4 bytes together, and always the first.
-- The sizes first: payloads that are too many are not read.
SELECT o.id, o.subject, o.msg_id, o.payload, o.traceparent
FROM (
    SELECT id, size, sum(size) OVER (ORDER BY id) AS total FROM (
        SELECT id, length(payload) AS size FROM outbox WHERE {waits_behind} LIMIT $3
    ) AS page
) AS counted
JOIN outbox o ON o.id = counted.id
WHERE counted.total <= $4 OR counted.total = counted.size
ORDER BY o.id

-- CLAIM_OUTBOX --
-- Lets $2 publish the leftover events of the store $1 for $3 ms, unless another instance does; a row if it may.
INSERT INTO relay_leases (store, holder, until_ms) VALUES ($1, $2, {now_ms} + $3::BIGINT)
ON CONFLICT (store) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms
WHERE relay_leases.holder = excluded.holder OR relay_leases.until_ms <= {now_ms}
RETURNING holder

-- RELEASE_OUTBOX --
-- Ends the claims of $1.
DELETE FROM relay_leases WHERE holder = $1

-- REFUSE_OUTBOX --
-- Copies the event $1 to those that can't be published, with the reason $2.
INSERT INTO outbox_refused (id, subject, msg_id, payload, traceparent, created_at_ms, refused_at_ms, reason)
SELECT id, subject, msg_id, payload, traceparent, created_at_ms, {now_ms}, $2 FROM outbox WHERE id = $1
ON CONFLICT (id) DO NOTHING

-- FORGET_REFUSED --
-- Keeps the newest 10,000 events that can't be published.
DELETE FROM outbox_refused WHERE id <= (SELECT id FROM outbox_refused ORDER BY id DESC LIMIT 1 OFFSET 10000)

-- READ_REFUSED --
-- Up to $2 events that can't be published, above the id $1.
SELECT id, subject, msg_id, payload, traceparent, reason FROM outbox_refused WHERE id > $1 ORDER BY id LIMIT $2

---- Maintenance ----

-- GET_DUTY --
-- Who has the duty $1, with which token and until when, how far it is done, and the time; zeros where nobody had it.
SELECT coalesce(d.holder, ''), coalesce(d.token, 0), coalesce(d.until_ms, 0), coalesce(d.done_ms, 0), {now_ms}
FROM (SELECT 1 AS one) AS one_row LEFT JOIN maintenance d ON d.duty = $1

-- TAKE_DUTY --
-- Gives the duty $1 to the instance $2 for $3 ms, unless another has it; its token.
-- An end that is further away than the longest that may be given ($4 ms) is of another clock: of a database that was
-- restored, or of the server before this one.
INSERT INTO maintenance (duty, holder, token, until_ms, done_ms) VALUES ($1, $2, 1, {now_ms} + $3::BIGINT, 0)
ON CONFLICT (duty) DO UPDATE
SET holder = excluded.holder, token = maintenance.token + 1, until_ms = excluded.until_ms
WHERE maintenance.until_ms <= {now_ms} OR maintenance.until_ms > {now_ms} + $4::BIGINT
    OR maintenance.holder = excluded.holder
RETURNING token

-- KEEP_DUTY --
-- Keeps the duty $1, which the instance $2 has with the token $3, for $4 ms; no row if it is another's.
UPDATE maintenance SET until_ms = {now_ms} + $4::BIGINT WHERE duty = $1 AND holder = $2 AND token = $3 RETURNING token

-- RESIGN_DUTY --
-- Ends that; what still comes with this token is refused.
UPDATE maintenance SET until_ms = 0, token = token + 1 WHERE duty = $1 AND holder = $2 AND token = $3

-- CHECK_DUTY --
-- A row if the instance $2 has the duty $1 with the token $3; nobody else gets it before the transaction ends.
-- By holder and token: in a database that was restored tokens come again, which another instance had before.
SELECT token FROM maintenance WHERE duty = $1 AND holder = $2 AND token = $3 {for_key_share}

-- DUTY_DONE --
-- Notes that the duty $1 is done up to $2.
INSERT INTO maintenance (duty, holder, token, until_ms, done_ms) VALUES ($1, '', 0, 0, $2)
ON CONFLICT (duty) DO UPDATE SET done_ms = excluded.done_ms

-- OLD_TOMBSTONES --
-- Up to $4 tombstones from the moment ($1, $2) on that were written before $3, the oldest first; of stores without a
-- retention of their own.
-- By version too: of a million of one moment, a piece would else begin with all that the pieces before it have removed.
SELECT key_id, partition, row_id, version, written_at_ms FROM rows
WHERE deleted AND (written_at_ms, version) >= ($1, $2) AND written_at_ms < $3 AND key_id NOT IN (
    SELECT k.key_id FROM config_keys k JOIN maintenance m ON m.duty = 'tombstones/' || k.store
) ORDER BY written_at_ms, version LIMIT $4

-- OLD_TOMBSTONES_OF_STORE --
-- The same of the store $5.
SELECT key_id, partition, row_id, version, written_at_ms FROM rows
WHERE deleted AND (written_at_ms, version) >= ($1, $2) AND written_at_ms < $3
    AND {key_id_beside_time} IN (SELECT k.key_id FROM config_keys k WHERE k.store = $5)
ORDER BY written_at_ms, version LIMIT $4

-- END_OF_PIECE --
-- When the first revision beyond a piece of $3 was written, of those from $1 on and before $2.
SELECT written_at_ms FROM history WHERE written_at_ms >= $1 AND written_at_ms < $2
ORDER BY written_at_ms LIMIT 1 OFFSET $3

-- OLD_HISTORY --
-- The revisions of stores without a retention of their own that were written from $1 on and before $2, with those that
-- they replaced.
SELECT key_id, partition, revision, prev, deleted FROM history
WHERE written_at_ms >= $1 AND written_at_ms < $2 AND key_id NOT IN (
    SELECT k.key_id FROM config_keys k JOIN maintenance m ON m.duty = 'history-horizon/' || k.store
)

-- OLD_HISTORY_OF_STORE --
-- The same of the store $3.
SELECT key_id, partition, revision, prev, deleted FROM history
WHERE written_at_ms >= $1 AND written_at_ms < $2
    AND {key_id_beside_time} IN (SELECT k.key_id FROM config_keys k WHERE k.store = $3)

-- OWN_RETENTIONS --
-- Every store, with its policies, whether its history has a horizon of its own, whether its tombstones are left out
-- of the pass for all others, and when its pinned release was staged.
SELECT s.name, s.policy, h.duty IS NOT NULL, t.duty IS NOT NULL, (
    SELECT r.staged_at_ms FROM release_numbers n JOIN releases r ON r.store = n.store AND r.number = n.pinned
    WHERE n.store = s.name
)
FROM stores s LEFT JOIN maintenance h ON h.duty = 'history-horizon/' || s.name
LEFT JOIN maintenance t ON t.duty = 'tombstones/' || s.name ORDER BY s.name

-- COPY_DUTY --
-- Lets the duty $1 be as far as the duty $2 is; nothing changes where it is there.
INSERT INTO maintenance (duty, holder, token, until_ms, done_ms)
VALUES ($1, '', 0, 0, coalesce((SELECT d.done_ms FROM maintenance d WHERE d.duty = $2), 0))
ON CONFLICT (duty) DO NOTHING

-- DROP_DUTY --
-- Removes the duty $1.
DELETE FROM maintenance WHERE duty = $1

-- COUNTED_KEYS --
-- Store, name, id and partition count of each key that is not deleted.
SELECT k.store, k.name, k.key_id, s.partition_count FROM config_keys k JOIN stores s ON s.name = k.store
WHERE k.deleted_at_ms IS NULL AND s.deleted_at_ms IS NULL ORDER BY k.key_id

-- WRONG_COUNTS --
-- The partitions $2 to $3 of a key whose heads count other live rows or bytes than there are.
SELECT p.partition FROM partitions p LEFT JOIN (
    SELECT partition, count(*) AS live_rows, sum(size) AS live_bytes FROM rows
    WHERE key_id = $1 AND partition BETWEEN $2 AND $3 AND NOT deleted GROUP BY partition
) AS r ON r.partition = p.partition
WHERE p.key_id = $1 AND p.partition BETWEEN $2 AND $3
    AND (p.live_rows <> coalesce(r.live_rows, 0) OR p.live_bytes <> coalesce(r.live_bytes, 0))
ORDER BY p.partition

-- RECOUNT --
-- Counts the live rows of the partition $2 of a key that is not deleted.
UPDATE partitions
SET live_rows = (SELECT count(*) FROM rows r WHERE r.key_id = $1 AND r.partition = $2 AND NOT r.deleted),
    live_bytes = (
        SELECT CAST(coalesce(sum(r.size), 0) AS BIGINT) FROM rows r
        WHERE r.key_id = $1 AND r.partition = $2 AND NOT r.deleted
    )
WHERE key_id = $1 AND partition = $2 AND EXISTS (
    SELECT 1 FROM config_keys k JOIN stores s ON s.name = k.store
    WHERE k.key_id = $1 AND k.deleted_at_ms IS NULL AND s.deleted_at_ms IS NULL
)

-- DRAIN_BUDGET --
-- Has the next write that needs something of the budget of the store $1 count what is free.
UPDATE store_budgets SET free_rows = 0, free_bytes = 0 WHERE store = $1

-- FORGET_MARKS --
-- Removes up to $2 idempotency keys that are older than $1 ms, the oldest first.
DELETE FROM idempotency_keys WHERE (store, idempotency_key) IN (
    SELECT store, idempotency_key FROM idempotency_keys
    WHERE written_at_ms < {stamp_ms} - $1::BIGINT ORDER BY written_at_ms LIMIT $2
)

---- Roles ----

-- ROLE_GRANTS --
-- Every role that is granted.
SELECT principal, store, role, granted_at_ms, granted_by FROM role_grants ORDER BY store, principal, role

-- COUNT_ROLES --
-- How many roles are granted.
SELECT count(*) FROM role_grants

-- ROLES_TO_CHECK --
-- What decides whether a role for the store $1 may be granted to the principal $2, or taken from it: the roles $3 and $4
-- for this store and for all, and its own for this store.
SELECT principal, store, role, granted_at_ms, granted_by FROM role_grants
WHERE store IN ('*', $1) AND role IN ($3, $4) OR store = $1 AND principal = $2

-- INSERT_ROLE --
-- Grants the role $3 for the store $2 to the principal $1; $4 grants it.
INSERT INTO role_grants (principal, store, role, granted_by, granted_at_ms) VALUES ($1, $2, $3, $4, {now_ms})
RETURNING granted_at_ms

-- DELETE_ROLE --
-- Takes it away.
DELETE FROM role_grants WHERE principal = $1 AND store = $2 AND role = $3
