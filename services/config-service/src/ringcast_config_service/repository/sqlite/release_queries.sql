-- The statements of releases that SQLite has for itself, as queries.sql beside this.

-- INSERT_RELEASE_ROW --
-- Stages a row, which the release must not have.
INSERT INTO release_rows (
    store, number, place, config_key, partition, row_id, value, metadata, size, base,
    outcome, version, undo_version, old_size
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 'waiting', 0, 0, 0)

-- INSERT_RELEASE_PARTITION --
-- Notes that the partition ?3 is in the wave ?4 of the release ?2 of the store ?1.
INSERT INTO release_partitions (store, number, partition, wave) VALUES (?1, ?2, ?3, ?4)

-- KEEP_OLD_ROW --
-- Keeps what the row at the place ?3 of a release, which is published now, holds at its base. ?4 is the id of its key.
UPDATE release_rows SET old_value = r.value, old_metadata = r.metadata, old_size = r.size
FROM rows r
WHERE release_rows.store = ?1 AND release_rows.number = ?2 AND release_rows.place = ?3
    AND r.key_id = ?4 AND r.partition = release_rows.partition AND r.row_id = release_rows.row_id
    AND r.version = release_rows.base AND NOT r.deleted

-- SET_PUBLISHED --
-- Notes what became of the row at the place ?3 of a release: ?4, at the version ?5.
UPDATE release_rows SET outcome = ?4, version = ?5 WHERE store = ?1 AND number = ?2 AND place = ?3

-- KEPT_SIZES --
-- Size and version of the rows, as they are now, that the release ?2 of the store ?1 has published from the place ?3 on up to
-- ?4 in the key ?5 with the id ?6.
SELECT r.row_id, r.deleted, r.version, r.size
FROM release_rows s CROSS JOIN rows r
WHERE s.store = ?1 AND s.number = ?2 AND s.place >= ?3 AND s.place <= ?4 AND +s.config_key = ?5 AND s.outcome = 'published'
    AND r.key_id = ?6 AND r.partition = s.partition AND r.row_id = s.row_id

-- SET_UNDONE --
-- Notes that the row at the place ?3 of a release is written back, with the revision ?4.
UPDATE release_rows SET outcome = 'undone', undo_version = ?4 WHERE store = ?1 AND number = ?2 AND place = ?3

-- SET_KEPT --
-- Notes that the others from the place ?3 on up to ?4 are not.
UPDATE release_rows SET outcome = 'kept'
WHERE store = ?1 AND number = ?2 AND place >= ?3 AND place <= ?4 AND outcome = 'published'

-- WRITE_BACK_HISTORY --
-- Stores the revisions of the rows that are noted so from the place ?3 on up to ?4 and are of the key ?5 with the id ?6:
-- what the release has kept of them. ?7 and ?8: author and reason. The rows themselves are as they were before.
INSERT INTO history (key_id, partition, row_id, value, revision, deleted, metadata, prev, author, reason, written_at_ms)
SELECT ?6, s.partition, s.row_id, coalesce(s.old_value, ''), s.undo_version, s.old_value IS NULL, s.old_metadata,
    coalesce(r.version, 0), ?7, ?8, ?9
FROM release_rows s LEFT JOIN rows r ON r.key_id = ?6 AND r.partition = s.partition AND r.row_id = s.row_id
WHERE s.store = ?1 AND s.number = ?2 AND s.place >= ?3 AND s.place <= ?4 AND +s.config_key = ?5 AND s.outcome = 'undone'
ORDER BY s.place DESC

-- WRITE_BACK_ROWS --
-- Stores these rows.
INSERT INTO rows (key_id, partition, row_id, value, version, deleted, metadata, size, written_at_ms)
SELECT ?6, s.partition, s.row_id, coalesce(s.old_value, ''), s.undo_version, s.old_value IS NULL, s.old_metadata,
    s.old_size, ?7
FROM release_rows s
WHERE s.store = ?1 AND s.number = ?2 AND s.place >= ?3 AND s.place <= ?4 AND +s.config_key = ?5 AND s.outcome = 'undone'
ORDER BY s.place DESC
ON CONFLICT (key_id, partition, row_id) DO UPDATE
SET value = excluded.value, version = excluded.version, deleted = excluded.deleted, metadata = excluded.metadata,
    size = excluded.size, written_at_ms = excluded.written_at_ms
