-- The statements of the schemas of values that are the same for all databases. loader.py describes the format.

---- Fragments ----

-- schema_columns --
-- A version of the schema of a key, in the order of KeySchema, without its definition, which comes last. Mode and
-- compatibility are those of the newest version, null of all others.
s.config_key, s.version, s.kind, s.author, s.reason, s.registered_at_ms, m.mode, m.changed_at_ms, m.compatibility

-- schemas_and_modes --
-- Each version, with what is in force.
value_schemas s LEFT JOIN schema_modes m ON m.store = s.store AND m.config_key = s.config_key AND m.schema_id = s.schema_id

---- Reads ----

-- SCHEMAS_IN_FORCE --
-- The schemas of the store $1 that are looked at: key, id, version and mode.
SELECT s.config_key, s.schema_id, s.version, m.mode
FROM schema_modes m JOIN value_schemas s ON s.schema_id = m.schema_id
WHERE m.store = $1 AND m.mode <> 'off'

-- ENFORCED_SCHEMA --
-- The id of the schema that is enforced for the key $2 of the store $1.
SELECT schema_id FROM schema_modes WHERE store = $1 AND config_key = $2 AND mode = 'enforce'

-- SCHEMA_TEXT --
-- Version, kind and definition of the schema with the id $1.
SELECT version, kind, definition FROM value_schemas WHERE schema_id = $1

-- SCHEMA_ID --
-- The id of the newest schema of the key $2 of the store $1.
SELECT schema_id FROM schema_modes WHERE store = $1 AND config_key = $2

-- KEY_SCHEMAS --
-- The newest schema of each key of the store $1; where $2 is not '', of this key alone, and with its definition.
SELECT {schema_columns}, CASE WHEN $2::TEXT = '' THEN '' ELSE s.definition END
FROM schema_modes m JOIN value_schemas s ON s.schema_id = m.schema_id
WHERE m.store = $1 AND ($2::TEXT = '' OR m.config_key = $2) ORDER BY m.config_key

-- SCHEMA_VERSIONS --
-- The versions of the schema of the key $2 of the store $1, the newest first; where $3 is not 0, this one alone, and
-- with its definition.
SELECT {schema_columns}, CASE WHEN $3::BIGINT = 0 THEN '' ELSE s.definition END
FROM {schemas_and_modes}
WHERE s.store = $1 AND s.config_key = $2 AND ($3::BIGINT = 0 OR s.version = $3) ORDER BY s.version DESC

-- SCHEMAS_SINCE --
-- The schemas that are enforced for keys of the release $2 of the store $1, and were put in force since it was staged: key,
-- version, kind and definition.
SELECT s.config_key, s.version, s.kind, s.definition
FROM releases r
JOIN release_keys k ON k.store = r.store AND k.number = r.number
JOIN schema_modes m ON m.store = k.store AND m.config_key = k.config_key AND m.mode = 'enforce'
JOIN value_schemas s ON s.schema_id = m.schema_id
WHERE r.store = $1 AND r.number = $2 AND m.changed_at_ms >= r.staged_at_ms

-- COUNT_SCHEMA_KEYS --
-- How many keys of the store $1 have a schema, but for $2.
SELECT count(*) FROM schema_modes WHERE store = $1 AND config_key <> $2

-- CHANGED_VALUES --
-- Up to $4 live rows of the partition $2 of the key with the id $1 that were written after the revision $3.
SELECT row_id, value, metadata FROM rows
WHERE key_id = $1 AND partition + 0 = $2 AND version > $3 AND NOT deleted ORDER BY version LIMIT $4

---- Writes ----

-- INSERT_SCHEMA --
-- Adds a version with the id $1.
INSERT INTO value_schemas (schema_id, store, config_key, version, kind, definition, author, reason, registered_at_ms)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {now_ms})

-- FORGET_SCHEMAS --
-- Removes the versions up to $3 of the schema of the key $2 of the store $1.
DELETE FROM value_schemas WHERE store = $1 AND config_key = $2 AND version <= $3

-- SET_SCHEMA_MODE --
-- Puts the schema with the id $3 in force for the key $2 of the store $1, with the mode $4 and the compatibility $5.
INSERT INTO schema_modes (store, config_key, schema_id, mode, changed_at_ms, compatibility)
VALUES ($1, $2, $3, $4, {now_ms}, $5)
ON CONFLICT (store, config_key) DO UPDATE
SET schema_id = excluded.schema_id, mode = excluded.mode, changed_at_ms = excluded.changed_at_ms,
    compatibility = excluded.compatibility

-- SET_SCHEMA --
-- Notes in all heads of a key the schema that is enforced for it.
UPDATE partitions SET schema_id = $2 WHERE key_id = $1

-- DROP_SCHEMAS --
-- Removes the schemas of the store $1; where $2 is not '', those of this key alone.
DELETE FROM value_schemas WHERE store = $1 AND ($2::TEXT = '' OR config_key = $2)

-- DROP_SCHEMA_MODES --
-- The same of their modes.
DELETE FROM schema_modes WHERE store = $1 AND ($2::TEXT = '' OR config_key = $2)
