-- The statements of releases that PostgreSQL and CockroachDB have for themselves, as queries.sql beside this.

-- INSERT_RELEASE_ROWS --
-- Stages rows, which the release must not have.
INSERT INTO release_rows (
    store, number, place, config_key, partition, row_id, value, metadata, size, base,
    outcome, version, undo_version, old_size
)
SELECT q.store, q.number, q.place, q.config_key, q.partition, q.row_id, q.value, q.metadata, q.size, q.base,
    'waiting', 0, 0, 0
FROM unnest($1::TEXT[], $2::BIGINT[], $3::BIGINT[], $4::TEXT[], $5::BIGINT[], $6::TEXT[], $7::TEXT[], $8::TEXT[],
    $9::BIGINT[], $10::BIGINT[])
    AS q (store, number, place, config_key, partition, row_id, value, metadata, size, base)

-- INSERT_RELEASE_PARTITIONS --
-- Notes in which wave of a release each partition is.
INSERT INTO release_partitions (store, number, partition, wave)
SELECT q.store, q.number, q.partition, q.wave
FROM unnest($1::TEXT[], $2::BIGINT[], $3::BIGINT[], $4::BIGINT[]) AS q (store, number, partition, wave)

-- PUBLISH_ROWS --
-- Publishes rows of the release $2 of the store $1, with their history: $3 to $6 are place, key, id and revision of each; one
-- of revision 0 is skipped. $7 and $8: the keys, and their ids. $9 and $10: author and reason of all, '' for none.
-- What rows hold at their base is kept. Values stay in the database.
-- The rows of the release are found by the columns of both keys of their table: whichever index PostgreSQL takes it finds one
-- row for each. A release of which it has no statistics counts as one row, so by the place alone it takes the other index, and
-- reads the whole release for each. What became of them is noted by an upsert, that always goes by the primary key: an
-- update may read the whole release, and does so where there are statistics of one that is not large.
WITH noted AS (
    INSERT INTO release_rows AS s (
        store, number, place, config_key, partition, row_id, size, base, outcome, version, undo_version,
        old_value, old_metadata, old_size
    )
    SELECT $1::TEXT, $2::BIGINT, q.place, p.config_key, p.partition, p.row_id, p.size, p.base,
        CASE WHEN q.revision > 0 THEN 'published' ELSE 'skipped' END, q.revision, 0,
        old.value, old.metadata, coalesce(old.size, 0)
    FROM unnest($3::BIGINT[], $4::TEXT[], $5::TEXT[], $6::BIGINT[]) AS q (place, config_key, row_id, revision)
    CROSS JOIN LATERAL (
        SELECT * FROM release_rows r
        WHERE r.store = $1 AND r.number = $2 AND r.place = q.place AND r.config_key = q.config_key AND r.row_id = q.row_id
        LIMIT 1
    ) AS p
    LEFT JOIN LATERAL (
        SELECT * FROM rows r
        WHERE r.key_id = ($8::BIGINT[])[array_position($7::TEXT[], p.config_key)] AND r.partition = p.partition
            AND r.row_id = p.row_id AND r.version = p.base AND NOT r.deleted AND q.revision > 0
        LIMIT 1
    ) AS old ON true
    ON CONFLICT (store, number, place) DO UPDATE
    SET outcome = excluded.outcome, version = excluded.version,
        old_value = excluded.old_value, old_metadata = excluded.old_metadata, old_size = excluded.old_size
    RETURNING ($8::BIGINT[])[array_position($7::TEXT[], s.config_key)] AS key_id, s.partition, s.row_id,
        coalesce(s.value, '') AS value, s.version AS revision, s.value IS NULL AS deleted, s.metadata,
        CASE WHEN s.value IS NULL THEN 0 ELSE s.size END AS size
), written AS (
    INSERT INTO rows (key_id, partition, row_id, value, version, deleted, metadata, size, written_at_ms)
    SELECT key_id, partition, row_id, value, revision, deleted, metadata, size, {stamp_ms} FROM noted WHERE revision > 0
    ON CONFLICT (key_id, partition, row_id) DO UPDATE
    SET value = excluded.value, version = excluded.version, deleted = excluded.deleted, metadata = excluded.metadata,
        size = excluded.size, written_at_ms = excluded.written_at_ms
)
INSERT INTO history (key_id, partition, row_id, value, revision, deleted, metadata, prev, author, reason, written_at_ms)
SELECT key_id, partition, row_id, value, revision, deleted, metadata,
    coalesce((
        SELECT r.version FROM rows r
        WHERE r.key_id = n.key_id AND r.partition = n.partition AND r.row_id = n.row_id
    ), 0),
    nullif($9::TEXT, ''), nullif($10::TEXT, ''), {stamp_ms}
FROM noted n WHERE revision > 0

-- KEPT_SIZES --
-- Size and version of the rows, as they are now, that the release $2 of the store $1 has published from the place $3 on up to
-- $4 in the key $5 with the id $6.
SELECT q.row_id, found.deleted, found.size, found.version
FROM (
    SELECT $6::BIGINT AS key_id, s.partition, s.row_id, s.config_key FROM release_rows s
    WHERE s.store = $1 AND s.number = $2 AND s.place >= $3 AND s.place <= $4 AND s.outcome = 'published'
    ORDER BY s.place
) AS q
{found_rows}
WHERE q.config_key = $5

-- WRITE_BACK --
-- Writes the published rows of the release $2 of the store $1 from the place $3 on up to $4 back, as the release has kept
-- them, with their history. $5 to $7 have an entry a place: key id, revision, and version before; a row without a revision
-- stays. $8 and $9: author and reason of all, '' for none. Values stay in the database.
-- What became of the rows is noted by an upsert: that always goes by the primary key. An update may read the whole release
-- (PUBLISH_ROWS).
WITH kept AS (
    INSERT INTO release_rows AS s (
        store, number, place, config_key, partition, row_id, size, base, outcome, version, undo_version, old_size
    )
    SELECT f.store, f.number, f.place, f.config_key, f.partition, f.row_id, f.size, f.base,
        CASE WHEN f.revision > 0 THEN 'undone' ELSE 'kept' END, f.version, f.revision, f.old_size
    FROM (
        SELECT p.*, ($6::BIGINT[])[CAST(p.place - $3 + 1 AS INTEGER)] AS revision
        FROM release_rows p
        WHERE p.store = $1 AND p.number = $2 AND p.place >= $3 AND p.place <= $4 AND p.outcome = 'published'
        ORDER BY p.place DESC
    ) AS f
    ON CONFLICT (store, number, place) DO UPDATE SET outcome = excluded.outcome, undo_version = excluded.undo_version
    RETURNING ($5::BIGINT[])[CAST(s.place - $3 + 1 AS INTEGER)] AS key_id, s.partition, s.row_id,
        coalesce(s.old_value, '') AS value, s.undo_version AS revision, s.old_value IS NULL AS deleted,
        s.old_metadata AS metadata, s.old_size AS size, ($7::BIGINT[])[CAST(s.place - $3 + 1 AS INTEGER)] AS prev
), written AS (
    INSERT INTO rows (key_id, partition, row_id, value, version, deleted, metadata, size, written_at_ms)
    SELECT key_id, partition, row_id, value, revision, deleted, metadata, size, {stamp_ms} FROM kept WHERE revision > 0
    ON CONFLICT (key_id, partition, row_id) DO UPDATE
    SET value = excluded.value, version = excluded.version, deleted = excluded.deleted, metadata = excluded.metadata,
        size = excluded.size, written_at_ms = excluded.written_at_ms
)
INSERT INTO history (key_id, partition, row_id, value, revision, deleted, metadata, prev, author, reason, written_at_ms)
SELECT key_id, partition, row_id, value, revision, deleted, metadata, prev,
    nullif($8::TEXT, ''), nullif($9::TEXT, ''), {stamp_ms}
FROM kept WHERE revision > 0
