-- The tables, the same for all databases but for the types of columns: {text}, {bytes} and {id} are the types that
-- statements.py gives, {version} is SCHEMA_VERSION.
--
-- rows and history have no foreign key: the writer holds the lock of their partition's head, and a check per row costs
-- more than the insert. metadata is JSON text, null where there is none. The size of a tombstone is 0.
-- Text keys are in the order of their bytes whatever the database's own collation: pages and locks go by that order, as
-- Python and SQLite have it, and no index is out of order after an update of the system's collations.
-- Times are by the database's own clock, so that instances whose clocks differ agree on what is old.

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
    expires_at_ms BIGINT,
    -- Of a store of exclusive ownership; null in all others.
    lease_ttl_ms BIGINT,
    call_bound_ms BIGINT,
    -- What the store allows: JSON text, null where it has no policies.
    policy TEXT,
    -- The operator's last step of a migration to exclusive ownership: JSON text, null where there never was one. While
    -- there is a migration wire_version is the one that older builds refuse.
    migration TEXT
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
    -- The key, or its store, is deleted. PostgreSQL's writers learn it from the heads that they lock anyway.
    closed BOOLEAN NOT NULL DEFAULT false,
    -- Live rows and bytes up to which the partition may grow without a look at store_budgets; null: the store has no such
    -- limit. In a store with a limit each key has the heads of all its partitions.
    cap_rows BIGINT,
    cap_bytes BIGINT,
    PRIMARY KEY (key_id, partition)
);

-- What a store with limits has to give to its partitions: the limit less the larger of cap and live rows of each, or
-- less than that. Locked after the heads, and only by writes for which the caps of their partitions are too small.
CREATE TABLE IF NOT EXISTS store_budgets (
    store {text} PRIMARY KEY,
    max_rows BIGINT,
    max_bytes BIGINT,
    free_rows BIGINT NOT NULL,
    free_bytes BIGINT NOT NULL
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
-- On an expression: with the bare column PostgreSQL takes it for a look-up by primary key as long as the table has no
-- statistics, as in the first import, and reads the whole partition for each row.
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
    -- The revision of the row's write before, 0 if there was none.
    prev BIGINT NOT NULL,
    written_at_ms BIGINT NOT NULL,
    -- The principal that wrote it, and why; null in what was written before they were kept, and where none was given.
    author TEXT,
    reason TEXT,
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

CREATE TABLE IF NOT EXISTS role_grants (
    principal {text} NOT NULL,
    store {text} NOT NULL,
    role {text} NOT NULL,
    granted_by TEXT NOT NULL,
    granted_at_ms BIGINT NOT NULL,
    PRIMARY KEY (store, principal, role)
);

CREATE TABLE IF NOT EXISTS maintenance (
    duty {text} PRIMARY KEY,
    holder TEXT NOT NULL,
    token BIGINT NOT NULL,
    until_ms BIGINT NOT NULL,
    done_ms BIGINT NOT NULL
);
-- The last statement: when the version is there, everything is.
INSERT INTO schema_version (one, version) VALUES (1, {version}) ON CONFLICT (one) DO NOTHING
