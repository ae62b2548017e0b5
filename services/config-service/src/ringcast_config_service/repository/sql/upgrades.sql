-- What leads from one version of the schema to the next, the same for all databases: a block for each version, that ends
-- with the version. schema.sql has the tables as they are after all of them. {if_not_exists} is for databases whose
-- changes of tables are not in one transaction: an upgrade that broke off is done again from the beginning. An older
-- instance that runs meanwhile goes on, and one is started again after its upgrade was taken back: a step only adds, and
-- a column that is added may be null. One that can't, raises usable_from (statements.py). loader.py describes the format.

-- UPGRADE_2 --
-- Revisions have an author and a reason.
ALTER TABLE history ADD COLUMN {if_not_exists} author TEXT;
ALTER TABLE history ADD COLUMN {if_not_exists} reason TEXT;
UPDATE schema_version SET version = 2 WHERE version = 1

-- UPGRADE_3 --
-- Principals have roles.
CREATE TABLE IF NOT EXISTS role_grants (
    principal {text} NOT NULL,
    store {text} NOT NULL,
    role {text} NOT NULL,
    granted_by TEXT NOT NULL,
    granted_at_ms BIGINT NOT NULL,
    PRIMARY KEY (store, principal, role)
);
UPDATE schema_version SET version = 3 WHERE version = 2

-- UPGRADE_4 --
-- There is an audit log, and tokens can be revoked.
CREATE TABLE IF NOT EXISTS audit_pending (
    id {id},
    at_ms BIGINT NOT NULL,
    principal TEXT NOT NULL,
    action TEXT NOT NULL,
    store TEXT NOT NULL,
    config_key TEXT NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS audit_log (
    seq BIGINT PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    principal TEXT NOT NULL,
    action TEXT NOT NULL,
    store TEXT NOT NULL,
    config_key TEXT NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    details TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS audit_chain (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    seq BIGINT NOT NULL,
    hash TEXT NOT NULL,
    floor_seq BIGINT NOT NULL,
    floor_hash TEXT NOT NULL
);
INSERT INTO audit_chain (one, seq, hash, floor_seq, floor_hash) VALUES (1, 0, '{genesis}', 0, '{genesis}')
ON CONFLICT (one) DO NOTHING;
CREATE TABLE IF NOT EXISTS revoked_tokens (
    digest {text} PRIMARY KEY,
    principal TEXT NOT NULL,
    revoked_by TEXT NOT NULL,
    revoked_at_ms BIGINT NOT NULL
);
UPDATE schema_version SET version = 4 WHERE version = 3

-- UPGRADE_5 --
-- Stores of exclusive ownership have times.
ALTER TABLE stores ADD COLUMN {if_not_exists} lease_ttl_ms BIGINT;
ALTER TABLE stores ADD COLUMN {if_not_exists} call_bound_ms BIGINT;
UPDATE schema_version SET version = 5 WHERE version = 4

-- UPGRADE_6 --
-- Stores have policies. Heads have no caps as long as no store has a limit.
ALTER TABLE stores ADD COLUMN {if_not_exists} policy TEXT;
ALTER TABLE partitions ADD COLUMN {if_not_exists} cap_rows BIGINT;
ALTER TABLE partitions ADD COLUMN {if_not_exists} cap_bytes BIGINT;
CREATE TABLE IF NOT EXISTS store_budgets (
    store {text} PRIMARY KEY,
    max_rows BIGINT,
    max_bytes BIGINT,
    free_rows BIGINT NOT NULL,
    free_bytes BIGINT NOT NULL
);
UPDATE schema_version SET version = 6 WHERE version = 5

-- UPGRADE_7 --
-- Stores can migrate to exclusive ownership.
ALTER TABLE stores ADD COLUMN {if_not_exists} migration TEXT;
UPDATE schema_version SET version = 7 WHERE version = 6

-- UPGRADE_8 --
-- There are releases.
CREATE TABLE IF NOT EXISTS release_numbers (
    store {text} PRIMARY KEY,
    last BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS releases (
    store {text} NOT NULL,
    number BIGINT NOT NULL,
    stage_id {text} NOT NULL,
    state TEXT NOT NULL,
    work TEXT NOT NULL,
    kept BOOLEAN NOT NULL,
    row_count BIGINT NOT NULL,
    byte_count BIGINT NOT NULL,
    batches BIGINT NOT NULL,
    reached BIGINT NOT NULL,
    published BIGINT NOT NULL,
    undone BIGINT NOT NULL,
    skipped BIGINT NOT NULL,
    author TEXT NOT NULL,
    reason TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    change_reason TEXT NOT NULL,
    problem TEXT NOT NULL,
    staged_at_ms BIGINT NOT NULL,
    changed_at_ms BIGINT NOT NULL,
    worked_at_ms BIGINT NOT NULL,
    PRIMARY KEY (store, number),
    UNIQUE (store, stage_id)
);
CREATE TABLE IF NOT EXISTS release_keys (
    store {text} NOT NULL,
    number BIGINT NOT NULL,
    config_key {text} NOT NULL,
    key_id BIGINT,
    added BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    deleted BIGINT NOT NULL,
    PRIMARY KEY (store, number, config_key)
);
CREATE TABLE IF NOT EXISTS release_rows (
    store {text} NOT NULL,
    number BIGINT NOT NULL,
    place BIGINT NOT NULL,
    config_key {text} NOT NULL,
    partition BIGINT NOT NULL,
    row_id {text} NOT NULL,
    value TEXT,
    metadata TEXT,
    size BIGINT NOT NULL,
    base BIGINT NOT NULL,
    outcome TEXT NOT NULL,
    version BIGINT NOT NULL,
    undo_version BIGINT NOT NULL,
    old_value TEXT,
    old_metadata TEXT,
    old_size BIGINT NOT NULL,
    PRIMARY KEY (store, number, place),
    UNIQUE (store, number, config_key, row_id)
) {sparse};
UPDATE schema_version SET version = 8 WHERE version = 7

-- UPGRADE_9 --
-- Releases are proven.
CREATE TABLE IF NOT EXISTS release_proofs (
    store {text} NOT NULL,
    stage_id {text} NOT NULL,
    config_key {text} NOT NULL,
    proven_at_ms BIGINT NOT NULL,
    instance TEXT NOT NULL,
    certificate TEXT NOT NULL,
    PRIMARY KEY (store, stage_id, config_key)
);
UPDATE schema_version SET version = 9 WHERE version = 8

-- UPGRADE_10 --
-- Releases are published in waves.
ALTER TABLE releases ADD COLUMN {if_not_exists} rollout TEXT;
CREATE TABLE IF NOT EXISTS release_partitions (
    store {text} NOT NULL,
    number BIGINT NOT NULL,
    partition BIGINT NOT NULL,
    wave BIGINT NOT NULL,
    PRIMARY KEY (store, number, partition)
);
UPDATE schema_version SET version = 10 WHERE version = 9

-- UPGRADE_11 --
-- The schema says which builds may use it.
ALTER TABLE schema_version ADD COLUMN {if_not_exists} usable_from BIGINT;
UPDATE schema_version SET version = 11, usable_from = 11 WHERE version = 10

-- UPGRADE_12 --
-- Stores may take releases only, and want them approved.
ALTER TABLE partitions ADD COLUMN {if_not_exists} releases_only BOOLEAN;
ALTER TABLE releases ADD COLUMN {if_not_exists} digest TEXT;
CREATE TABLE IF NOT EXISTS release_approvals (
    store {text} NOT NULL,
    stage_id {text} NOT NULL,
    principal {text} NOT NULL,
    digest TEXT NOT NULL,
    reason TEXT NOT NULL,
    approved_at_ms BIGINT NOT NULL,
    PRIMARY KEY (store, stage_id, principal)
);
UPDATE schema_version SET version = 12 WHERE version = 11

-- UPGRADE_13 --
-- Values have schemas.
ALTER TABLE partitions ADD COLUMN {if_not_exists} schema_id BIGINT;
CREATE TABLE IF NOT EXISTS value_schemas (
    schema_id {id},
    store {text} NOT NULL,
    config_key {text} NOT NULL,
    version BIGINT NOT NULL,
    kind TEXT NOT NULL,
    definition TEXT NOT NULL,
    author TEXT NOT NULL,
    reason TEXT NOT NULL,
    registered_at_ms BIGINT NOT NULL,
    UNIQUE (store, config_key, version)
);
CREATE TABLE IF NOT EXISTS schema_modes (
    store {text} NOT NULL,
    config_key {text} NOT NULL,
    schema_id BIGINT NOT NULL,
    mode TEXT NOT NULL,
    changed_at_ms BIGINT NOT NULL,
    PRIMARY KEY (store, config_key)
);
UPDATE schema_version SET version = 13 WHERE version = 12

-- UPGRADE_14 --
-- Releases can be pinned.
ALTER TABLE release_numbers ADD COLUMN {if_not_exists} pinned BIGINT;
UPDATE schema_version SET version = 14 WHERE version = 13

-- UPGRADE_15 --
-- Releases are held to more policies. Nothing is stored in another way: builds that do not know them have a lower number.
UPDATE schema_version SET version = 15 WHERE version = 14

-- UPGRADE_16 --
-- Versions of schemas of values are held to a compatibility.
ALTER TABLE schema_modes ADD COLUMN {if_not_exists} compatibility TEXT;
UPDATE schema_version SET version = 16 WHERE version = 15

-- UPGRADE_17 --
-- Schemas of values may be Protobuf messages. Nothing is stored in another way: builds that do not know them have a lower number.
UPDATE schema_version SET version = 17 WHERE version = 16

-- UPGRADE_18 --
-- The events of a store are pinned to a wire version.
ALTER TABLE stores ADD COLUMN {if_not_exists} wire_pin BIGINT;
UPDATE schema_version SET version = 18 WHERE version = 17
