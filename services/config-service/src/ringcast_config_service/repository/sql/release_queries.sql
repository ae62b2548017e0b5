-- The statements of releases, the same for all databases. loader.py describes the format.

---- Fragments ----

-- release_columns --
-- A release as releases.to_release reads it.
store, number, stage_id, state, work, kept, row_count, byte_count, batches, reached, published, undone, skipped,
author, reason, changed_by, change_reason, problem, staged_at_ms, changed_at_ms, worked_at_ms, rollout, digest

-- found_version --
-- The version of the live row that a row of a release is about, 0 if there is none. A subquery for each row keeps to the
-- primary key.
coalesce((
    SELECT r.version FROM rows r
    WHERE r.key_id = k.key_id AND r.partition = s.partition AND r.row_id = s.row_id AND NOT r.deleted
), 0)

-- found_size --
-- Its size, 0 if there is none.
coalesce((
    SELECT r.size FROM rows r
    WHERE r.key_id = k.key_id AND r.partition = s.partition AND r.row_id = s.row_id AND NOT r.deleted
), 0)

---- Releases ----

-- LOCK_STORE_NAME --
-- The store $1, which can't be purged before the transaction ends.
SELECT name FROM stores WHERE name = $1 {for_key_share}

-- LOCK_POLICY --
-- The store $1, whose policies can't change before the transaction ends.
SELECT name FROM stores WHERE name = $1 {for_share}

-- NEXT_RELEASE --
-- The next number of a release of the store $1, and the one that is pinned; others wait until the transaction ends.
INSERT INTO release_numbers (store, last) VALUES ($1, 1)
ON CONFLICT (store) DO UPDATE SET last = release_numbers.last + 1 RETURNING last, pinned

-- LOCK_RELEASE_PIN --
-- The release of the store $1 that is pinned. It stays so, and none is added or expires, before the transaction ends.
-- Where policies want unique ids none begins to be published before that either.
SELECT pinned FROM release_numbers WHERE store = $1 {for_update}

-- GET_RELEASE_PIN --
-- The release of the store $1 that is pinned.
SELECT pinned FROM release_numbers WHERE store = $1

-- SET_RELEASE_PIN --
-- Pins the release $2 of the store $1, null for none.
UPDATE release_numbers SET pinned = $2::BIGINT WHERE store = $1

-- FIRST_REMOVED_RELEASE --
-- The first release of the store $1 with a number from $2 on that was published and has its rows no longer.
SELECT min(number) FROM releases
WHERE store = $1 AND number >= $2 AND state IN ('published', 'stopped', 'undone') AND (NOT kept OR work = 'remove')

-- COUNT_OPEN_RELEASES --
-- How many releases of the store $1 are neither done nor dropped.
SELECT count(*) FROM releases WHERE store = $1 AND state IN ('staging', 'staged', 'publishing', 'undoing')

-- BEGUN_RELEASES --
-- The releases of the store $1 but for $2 that have begun to be published, and what has become of each.
SELECT number, state FROM releases
WHERE store = $1 AND number <> $2 AND state NOT IN ('staging', 'staged', 'dropped', 'expired')

-- INSERT_RELEASE --
-- Creates the release $2 of the store $1 with the stage id $3; $4 stages it, because of $5.
INSERT INTO releases ({release_columns})
VALUES ($1, $2, $3, 'staging', '', true, 0, 0, 0, 0, 0, 0, 0, $4, $5, '', '', '', {now_ms}, {now_ms}, {now_ms}, NULL, NULL)

-- FIND_STAGE --
-- The release of the store $1 with the stage id $2, locked.
SELECT {release_columns} FROM releases WHERE store = $1 AND stage_id = $2 {for_update}

-- GET_RELEASE --
-- The release $2 of the store $1.
SELECT {release_columns} FROM releases WHERE store = $1 AND number = $2

-- LOCK_RELEASE --
-- The same, locked.
SELECT {release_columns} FROM releases WHERE store = $1 AND number = $2 {for_update}

-- LIST_RELEASES --
-- Up to $3 releases of the store $1 with a number below $2, the newest first.
SELECT {release_columns} FROM releases WHERE store = $1 AND number < $2 ORDER BY number DESC LIMIT $3

-- SET_RELEASE --
-- Stores what changes of the release $2 of the store $1.
UPDATE releases
SET state = $3, work = $4, kept = $5, row_count = $6, byte_count = $7, batches = $8, reached = $9, published = $10,
    undone = $11, skipped = $12, changed_by = $13, change_reason = $14, problem = $15, rollout = $16, digest = $17,
    worked_at_ms = {now_ms},
    changed_at_ms = CASE WHEN state <> $3 THEN {now_ms} ELSE changed_at_ms END
WHERE store = $1 AND number = $2

-- SET_PROBLEM --
-- Notes why the work at the release $2 of the store $1 has halted.
UPDATE releases SET problem = $3, worked_at_ms = {now_ms} WHERE store = $1 AND number = $2 AND work <> ''

-- DUE_RELEASES --
-- Releases at which nobody has worked for $1 ms although there is something to do.
SELECT store, number FROM releases
WHERE work <> '' AND worked_at_ms <= {now_ms} - $1::BIGINT ORDER BY worked_at_ms LIMIT 100

-- COUNT_RELEASES --
-- How many releases of all stores are in each state; those that have halted are in none of them.
SELECT found.state, count(*) FROM (
    SELECT CASE WHEN work <> '' AND problem <> '' THEN 'halted' ELSE state END AS state FROM releases
) AS found GROUP BY found.state

-- OLD_RELEASES --
-- Releases that have been staged for $1 ms, or done for $2 ms, or are done and older than the newest $3 of their store,
-- and still have their rows. Those that are done stay from the pinned one on.
SELECT store, number FROM releases
WHERE kept AND work = '' AND (
    (state IN ('staging', 'staged') AND staged_at_ms <= {now_ms} - $1::BIGINT)
    OR (state IN ('published', 'stopped', 'undone') AND (
        changed_at_ms <= {now_ms} - $2::BIGINT
        OR number <= (SELECT n.last FROM release_numbers n WHERE n.store = releases.store) - $3::BIGINT
    ) AND NOT EXISTS (
        SELECT 1 FROM release_numbers n WHERE n.store = releases.store AND n.pinned <= releases.number
    ))
)
ORDER BY changed_at_ms LIMIT 100

-- IS_STAGED_LONG --
-- A row if the release $2 of the store $1 has been staged for $3 ms.
SELECT number FROM releases WHERE store = $1 AND number = $2 AND staged_at_ms <= {now_ms} - $3::BIGINT

-- FORGET_RELEASES --
-- Forgets releases of the store $1 up to the number $2 that are done and have no rows.
DELETE FROM releases WHERE store = $1 AND number <= $2 AND NOT kept AND work = ''

-- FORGET_RELEASE_KEYS --
-- Forgets the keys of releases up to the number $2 that are not there.
DELETE FROM release_keys WHERE store = $1 AND number <= $2
    AND number NOT IN (SELECT r.number FROM releases r WHERE r.store = $1 AND r.number <= $2)

-- FORGET_RELEASE_PARTITIONS --
-- Forgets the waves of releases of the store $1 up to the number $2 that are not there.
DELETE FROM release_partitions WHERE store = $1 AND number <= $2
    AND number NOT IN (SELECT r.number FROM releases r WHERE r.store = $1 AND r.number <= $2)

-- FORGET_RELEASE_PROOFS --
-- Forgets what proves releases of the store $1 that are not there.
DELETE FROM release_proofs WHERE store = $1 AND stage_id NOT IN (SELECT r.stage_id FROM releases r WHERE r.store = $1)

-- FORGET_APPROVALS --
-- Forgets the approvals of releases of the store $1 that are not there.
DELETE FROM release_approvals
WHERE store = $1 AND stage_id NOT IN (SELECT r.stage_id FROM releases r WHERE r.store = $1)

---- Approvals ----

-- INSERT_APPROVAL --
-- Notes that $3 approves what the release with the stage id $2 of the store $1 has, which is $4, because of $5.
INSERT INTO release_approvals (store, stage_id, principal, digest, reason, approved_at_ms)
VALUES ($1, $2, $3, $4, $5, {now_ms})
ON CONFLICT (store, stage_id, principal) DO UPDATE
SET digest = excluded.digest, reason = excluded.reason, approved_at_ms = excluded.approved_at_ms

-- DELETE_APPROVAL --
-- Takes that of $3 back.
DELETE FROM release_approvals WHERE store = $1 AND stage_id = $2 AND principal = $3 RETURNING principal

-- RELEASE_APPROVALS --
-- Who else than its author has approved what the release $2 of the store $1 has, and when; the first first.
SELECT a.principal, a.approved_at_ms, a.reason
FROM releases r JOIN release_approvals a ON a.store = r.store AND a.stage_id = r.stage_id
WHERE r.store = $1 AND r.number = $2 AND a.digest = r.digest AND a.principal <> r.author
ORDER BY a.approved_at_ms, a.principal

---- Proofs ----

-- RELEASE_REVISIONS --
-- The first and the last revision that the release $2 of the store $1 has given to each partition, with its key and the
-- history that it has now.
SELECT s.config_key, k.history_id, s.partition, min(s.version), max(s.version)
FROM release_rows s JOIN config_keys k ON k.store = s.store AND k.name = s.config_key
WHERE s.store = $1 AND s.number = $2 AND s.outcome = 'published'
GROUP BY s.config_key, k.history_id, s.partition ORDER BY s.config_key, s.partition

-- RELEASE_PUBLISHED_AT --
-- When the last row was written that the release $2 of the store $1 has published; null where the history has none of
-- its rows any more. Of each partition only the last one is looked at.
SELECT max(h.written_at_ms)
FROM (
    SELECT config_key, partition, max(version) AS version FROM release_rows
    WHERE store = $1 AND number = $2 AND version > 0 GROUP BY config_key, partition
) AS s
JOIN config_keys k ON k.store = $1 AND k.name = s.config_key
JOIN history h ON h.key_id = k.key_id AND h.partition = s.partition AND h.revision = s.version

-- RELEASE_HEADS --
-- The last revision that the release $2 of the store $1 has given to each partition of the key $3.
SELECT partition, max(version) FROM release_rows
WHERE store = $1 AND number = $2 AND config_key = $3 AND version > 0 GROUP BY partition

-- RELEASE_HISTORIES --
-- The history that each key of the release $2 of the store $1 has now.
SELECT r.config_key, k.history_id
FROM release_keys r JOIN config_keys k ON k.store = r.store AND k.name = r.config_key
WHERE r.store = $1 AND r.number = $2

-- RELEASE_VERSION --
-- The version that the release $2 of the store $1 has given to the row $4 of the key $3, 0 for none.
SELECT version FROM release_rows WHERE store = $1 AND number = $2 AND config_key = $3 AND row_id = $4

-- ROW_RELEASES --
-- Up to $4 releases of the store $1 that have the row $3 of the key $2, the newest first, and when each was proven; the
-- wave in which the row is, and how far the waves are; how many have approved it.
SELECT r.number, r.state, s.outcome, s.version, s.undo_version, coalesce((
    SELECT max(p.proven_at_ms) FROM release_proofs p WHERE p.store = r.store AND p.stage_id = r.stage_id
), 0), coalesce((
    SELECT w.wave FROM release_partitions w WHERE w.store = r.store AND w.number = r.number AND w.partition = s.partition
), 0), r.rollout, (
    SELECT count(*) FROM release_approvals a
    WHERE a.store = r.store AND a.stage_id = r.stage_id AND a.digest = r.digest AND a.principal <> r.author
)
FROM releases r JOIN release_rows s ON s.store = r.store AND s.number = r.number
WHERE r.store = $1 AND s.config_key = $2 AND s.row_id = $3 ORDER BY r.number DESC LIMIT $4

-- INSERT_RELEASE_PROOF --
-- Stores what proves the release with the stage id $2 of the store $1 for the key $3: $5, found by the instance $4.
INSERT INTO release_proofs (store, stage_id, config_key, proven_at_ms, instance, certificate)
VALUES ($1, $2, $3, {now_ms}, $4, $5)

-- RELEASE_PROOFS --
-- What proves the release $2 of the store $1.
SELECT p.proven_at_ms, p.instance, p.certificate
FROM releases r JOIN release_proofs p ON p.store = r.store AND p.stage_id = r.stage_id
WHERE r.store = $1 AND r.number = $2 ORDER BY p.config_key

-- IS_PROVEN --
-- When the release $2 of the store $1 was proven, and by which instance.
SELECT p.proven_at_ms, p.instance
FROM releases r JOIN release_proofs p ON p.store = r.store AND p.stage_id = r.stage_id
WHERE r.store = $1 AND r.number = $2 LIMIT 1

---- Waves ----

-- RELEASE_PARTITIONS --
-- The partitions that the release $2 of the store $1 has rows for.
SELECT DISTINCT partition FROM release_rows WHERE store = $1 AND number = $2 ORDER BY partition

-- RELEASE_KEY_PARTITIONS --
-- The same of each of its keys.
SELECT DISTINCT config_key, partition FROM release_rows WHERE store = $1 AND number = $2

-- CLEAR_RELEASE_PARTITIONS --
-- Removes the waves of the release $2 of the store $1: of another one, in a store of that name that was purged.
DELETE FROM release_partitions WHERE store = $1 AND number = $2

---- Rows of releases ----

-- INSERT_RELEASE_KEYS --
-- Notes the keys of the release $2 of the store $1, all of whose rows are there.
INSERT INTO release_keys (store, number, config_key, key_id, added, changed, deleted)
SELECT s.store, s.number, s.config_key, max(k.key_id),
    count(CASE WHEN s.base = 0 THEN 1 END), count(CASE WHEN s.base > 0 AND s.value IS NOT NULL THEN 1 END),
    count(CASE WHEN s.value IS NULL THEN 1 END)
FROM release_rows s LEFT JOIN config_keys k ON k.store = s.store AND k.name = s.config_key
WHERE s.store = $1 AND s.number = $2 GROUP BY s.store, s.number, s.config_key

-- RELEASE_KEYS --
-- The keys of the release $2 of the store $1, with the id that each had and the id that it has, and its deletion.
SELECT r.config_key, r.added, r.changed, r.deleted, r.key_id, k.key_id, k.deleted_at_ms, k.expires_at_ms
FROM release_keys r LEFT JOIN config_keys k ON k.store = r.store AND k.name = r.config_key
WHERE r.store = $1 AND r.number = $2 ORDER BY r.config_key

-- RELEASE_SHARES --
-- The keys of the release $2 of the store $1: how many rows it adds, changes and deletes, and how many each has now.
SELECT r.config_key, r.added, r.changed, r.deleted, CAST(coalesce((
    SELECT sum(p.live_rows) FROM config_keys k JOIN partitions p ON p.key_id = k.key_id
    WHERE k.store = r.store AND k.name = r.config_key
), 0) AS BIGINT)
FROM release_keys r WHERE r.store = $1 AND r.number = $2 ORDER BY r.config_key

-- RELEASE_BYTE_SHARES --
-- The keys of the release $2 of the store $1: how many bytes it adds to each, below 0 for fewer, and how many each has now.
SELECT d.config_key, d.difference, CAST(coalesce((
    SELECT sum(p.live_bytes) FROM config_keys k JOIN partitions p ON p.key_id = k.key_id
    WHERE k.store = $1 AND k.name = d.config_key
), 0) AS BIGINT)
FROM (
    SELECT f.config_key, CAST(sum(f.size - f.found) AS BIGINT) AS difference FROM (
        SELECT s.config_key, CASE WHEN s.value IS NULL THEN 0 ELSE s.size END AS size, {found_size} AS found
        FROM release_rows s LEFT JOIN config_keys k ON k.store = s.store AND k.name = s.config_key
        WHERE s.store = $1 AND s.number = $2
    ) AS f GROUP BY f.config_key
) AS d ORDER BY d.config_key

-- RELEASE_PARTITION_SHARES --
-- The first partition of a key with rows to which the release $2 of the store $1 adds more than $3 rows, and more than $4
-- percent of those that it has, or takes away more than $3, and more than $5 percent. Without $4 or $5 there is no such limit.
SELECT d.config_key, d.partition, d.difference, d.live FROM (
    SELECT c.config_key, c.partition, c.difference, k.key_id, coalesce((
        SELECT p.live_rows FROM partitions p WHERE p.key_id = k.key_id AND p.partition = c.partition
    ), 0) AS live
    FROM (
        SELECT s.config_key, s.partition,
            count(CASE WHEN s.base = 0 THEN 1 END) - count(CASE WHEN s.value IS NULL THEN 1 END) AS difference
        FROM release_rows s WHERE s.store = $1 AND s.number = $2 GROUP BY s.config_key, s.partition
    ) AS c JOIN config_keys k ON k.store = $1 AND k.name = c.config_key
) AS d
WHERE (
    (d.difference > $3::BIGINT AND d.difference * 100 > $4::BIGINT * d.live)
    OR (-d.difference > $3::BIGINT AND -d.difference * 100 > $5::BIGINT * d.live)
) AND EXISTS (SELECT 1 FROM partitions p WHERE p.key_id = d.key_id AND p.live_rows > 0)
ORDER BY d.config_key, d.partition LIMIT 1

-- ADDED_IDS --
-- Up to $5 rows that the release $2 of the store $1 adds to the key $3, behind the row $4, in the order of their ids.
SELECT row_id FROM release_rows
WHERE store = $1 AND number = $2 AND config_key = $3 AND row_id > $4 AND base = 0 AND value IS NOT NULL
ORDER BY row_id LIMIT $5

-- WAITING_IDS --
-- The same of those that it is still to add.
SELECT row_id FROM release_rows
WHERE store = $1 AND number = $2 AND config_key = $3 AND row_id > $4 AND base = 0 AND value IS NOT NULL
    AND outcome = 'waiting'
ORDER BY row_id LIMIT $5

-- DELETED_IDS --
-- The same of rows that it deletes.
SELECT row_id FROM release_rows
WHERE store = $1 AND number = $2 AND config_key = $3 AND row_id > $4 AND value IS NULL
ORDER BY row_id LIMIT $5

-- IDS_THERE --
-- Up to $4 live rows of the key $1 behind the row $3 of the partition $2.
SELECT partition, row_id FROM rows
WHERE key_id = $1 AND partition >= $2 AND (partition, row_id) > ($2, $3) AND NOT deleted
ORDER BY partition, row_id LIMIT $4

-- SET_RELEASE_KEY --
-- Notes the id of the key $3, which the release $2 of the store $1 has created.
UPDATE release_keys SET key_id = (SELECT k.key_id FROM config_keys k WHERE k.store = $1 AND k.name = $3)
WHERE store = $1 AND number = $2 AND config_key = $3 AND key_id IS NULL

-- RELEASE_CONFLICTS --
-- Up to $3 rows of the release $2 of the store $1 that were written since it was staged, and how many they are.
SELECT f.config_key, f.row_id, count(*) OVER () AS many FROM (
    SELECT s.place, s.config_key, s.row_id, s.base, {found_version} AS found
    FROM release_rows s LEFT JOIN config_keys k ON k.store = s.store AND k.name = s.config_key
    WHERE s.store = $1 AND s.number = $2
) AS f
WHERE f.found <> f.base ORDER BY f.place LIMIT $3

-- PUBLISH_PAGE --
-- Up to $4 rows of the release $2 of the store $1 behind the place $3, of up to $5 bytes together, and always the first.
SELECT place, config_key, partition, row_id, value, metadata, size, base FROM (
    SELECT page.*, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total FROM (
        SELECT place, config_key, partition, row_id, value, metadata, size, base FROM release_rows
        WHERE store = $1 AND number = $2 AND place > $3 ORDER BY place LIMIT $4
    ) AS page
) AS measured
WHERE total <= $5::BIGINT OR total = size ORDER BY place

-- WAVE_PAGE --
-- The same of rows in partitions of the wave $7, up to the place $6. A subquery, as of found_version: a join reads all
-- partitions of the release for each row as long as PostgreSQL has no statistics.
SELECT place, config_key, partition, row_id, value, metadata, size, base FROM (
    SELECT page.*, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total FROM (
        SELECT s.place, s.config_key, s.partition, s.row_id, s.value, s.metadata, s.size, s.base
        FROM release_rows s
        WHERE s.store = $1 AND s.number = $2 AND s.place > $3 AND s.place <= $6 AND (
            SELECT p.wave FROM release_partitions p
            WHERE p.store = s.store AND p.number = s.number AND p.partition = s.partition
        ) = $7
        ORDER BY s.place LIMIT $4
    ) AS page
) AS measured
WHERE total <= $5::BIGINT OR total = size ORDER BY place

-- UNDO_PAGE --
-- The same of rows before the place $3 that were published, the last first: what each was before.
SELECT place, config_key, partition, row_id, deletes, version, base, old_value, old_metadata, old_size FROM (
    SELECT page.*, sum(old_size) OVER (ORDER BY place DESC ROWS UNBOUNDED PRECEDING) AS total FROM (
        SELECT place, config_key, partition, row_id, value IS NULL AS deletes, version, base, old_value, old_metadata,
            old_size
        FROM release_rows
        WHERE store = $1 AND number = $2 AND place < $3 AND outcome = 'published' ORDER BY place DESC LIMIT $4
    ) AS page
) AS measured
WHERE total <= $5::BIGINT OR total = old_size ORDER BY place DESC

-- OTHER_UNDONE --
-- A row if other releases of the store $1 than $2 are undone, or are being undone.
SELECT number FROM releases WHERE store = $1 AND number <> $2 AND undone > 0 LIMIT 1

-- SAME_AGAIN --
-- Of the rows before the place $3 and from $4 on that the release $2 of the store $1 has published: the version at which
-- each is as that has left it. Another one than it was published with where later releases have changed the row and are
-- undone: the first of them found it at that version, the next one at the version that this undo has written. One that
-- was deleted has no version that a release could find: no other release may have deleted it in between.
-- CROSS JOIN: so SQLite joins in this order, by the keys. ORDER BY: so PostgreSQL takes the primary key, as PUBLISH_ROWS
-- says.
WITH RECURSIVE same (place, config_key, row_id, deletes, version) AS (
    SELECT place, config_key, row_id, deletes, version FROM (
        SELECT place, config_key, row_id, value IS NULL AS deletes, version FROM release_rows
        WHERE store = $1 AND number = $2 AND place < $3 AND place >= $4 AND outcome = 'published' ORDER BY place
    ) AS page
    UNION
    SELECT s.place, s.config_key, s.row_id, s.deletes, t.undo_version
    FROM same s CROSS JOIN releases r {row_of_other}
    WHERE r.store = $1 AND r.number <> $2 AND r.undone > 0
        AND t.outcome = 'undone' AND t.undo_version > s.version AND t.base = CASE WHEN s.deletes THEN 0 ELSE s.version END
        AND NOT (s.deletes AND EXISTS (
            SELECT 1 FROM releases q CROSS JOIN release_rows x
            WHERE q.store = $1 AND x.store = q.store AND x.number = q.number AND x.config_key = s.config_key
                AND x.row_id = s.row_id AND x.outcome IN ('published', 'kept')
                AND x.version > s.version AND x.version < t.version
        ))
)
SELECT place, max(version) FROM same GROUP BY place

-- STAGED_PAGE --
-- Up to $6 rows that the release $2 of the store $1 has for the key $3, behind the place $4, of up to $7 bytes together,
-- and always the first. Only of the partitions whose character in $5 is a 1.
SELECT place, partition, row_id, value, metadata, base
FROM (
    SELECT page.*, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total FROM (
        SELECT place, partition, row_id, value, metadata, base, size FROM release_rows
        WHERE store = $1 AND number = $2 AND config_key = $3 AND place > $4 AND outcome = 'waiting'
            AND substr($5::TEXT, CAST(partition + 1 AS INTEGER), 1) = '1'
        ORDER BY place LIMIT $6
    ) AS page
) AS measured
WHERE total <= $7::BIGINT OR total = size ORDER BY place

-- RELEASE_PAGE --
-- Up to $4 rows of the release $2 of the store $1 behind the place $3, of up to $5 bytes together, and always the first;
-- where $6 only those that others have written. With each what it was before: as it is now, or as it was published.
SELECT place, config_key, partition, row_id, value, metadata, base, had_value, had_metadata, found, outcome, version,
    undo_version
FROM (
    SELECT page.*, sum(all_bytes) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total FROM (
        SELECT joined.*, joined.size + joined.had_size AS all_bytes FROM (
            SELECT s.place, s.config_key, s.partition, s.row_id, s.value, s.metadata, s.size, s.base, s.outcome,
                s.version, s.undo_version, coalesce(n.version, 0) AS found,
                CASE WHEN s.outcome IN ('waiting', 'skipped') THEN n.value ELSE s.old_value END AS had_value,
                CASE WHEN s.outcome IN ('waiting', 'skipped') THEN n.metadata ELSE s.old_metadata END AS had_metadata,
                CASE WHEN s.outcome IN ('waiting', 'skipped') THEN coalesce(n.size, 0) ELSE s.old_size END AS had_size
            FROM release_rows s
            LEFT JOIN config_keys k ON k.store = s.store AND k.name = s.config_key
            LEFT JOIN rows n ON n.key_id = k.key_id AND n.partition = s.partition AND n.row_id = s.row_id
                AND NOT n.deleted
            WHERE s.store = $1 AND s.number = $2 AND s.place > $3
        ) AS joined
        WHERE NOT $6::BOOLEAN OR outcome IN ('skipped', 'kept') OR (outcome = 'waiting' AND found <> base)
            OR (outcome = 'published' AND found <> CASE WHEN value IS NULL THEN 0 ELSE version END)
        ORDER BY place LIMIT $4
    ) AS page
) AS measured
WHERE total <= $5::BIGINT OR total = all_bytes ORDER BY place

-- REMOVE_RELEASE_ROWS --
-- Removes up to $3 rows of the release $2 of the store $1, the first first.
-- By the columns of both keys of the table: whichever index PostgreSQL takes it finds one row for each. A release of which it
-- has no statistics counts as one row, so by the primary key alone it may take the other index, and read the whole release for each.
DELETE FROM release_rows WHERE (store, number, place, config_key, row_id) IN (
    SELECT store, number, place, config_key, row_id FROM release_rows
    WHERE store = $1 AND number = $2 ORDER BY place LIMIT $3
)

---- Purge ----

-- PURGE_RELEASE_ROWS --
-- Removes up to $3 rows of releases of the store $1: of the key $2, or of all keys where it is ''.
-- By both keys of the table, as REMOVE_RELEASE_ROWS.
DELETE FROM release_rows WHERE (store, number, place, config_key, row_id) IN (
    SELECT store, number, place, config_key, row_id FROM release_rows
    WHERE store = $1 AND ($2::TEXT = '' OR config_key = $2::TEXT) LIMIT $3
)

-- IS_EXPIRED --
-- A row if the store $1 is being purged.
SELECT name FROM stores WHERE name = $1 AND expires_at_ms = 0

-- DROP_RELEASE_ROWS --
-- Removes the rows of all releases of the store $1.
DELETE FROM release_rows WHERE store = $1

-- DROP_RELEASE_KEYS --
-- Removes their keys.
DELETE FROM release_keys WHERE store = $1

-- DROP_RELEASE_PARTITIONS --
-- Removes their waves.
DELETE FROM release_partitions WHERE store = $1

-- DROP_RELEASE_PROOFS --
-- Removes what proves them.
DELETE FROM release_proofs WHERE store = $1

-- DROP_APPROVALS --
-- Removes their approvals.
DELETE FROM release_approvals WHERE store = $1

-- DROP_RELEASES --
-- Removes the releases.
DELETE FROM releases WHERE store = $1

-- DROP_RELEASE_NUMBERS --
-- Removes the number of the last one.
DELETE FROM release_numbers WHERE store = $1
