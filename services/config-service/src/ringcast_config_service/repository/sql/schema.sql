-- The tables, the same for all databases but for the types of columns: {text}, {bytes} and {id} are the types that
-- statements.py gives, {sparse} is a property by which PostgreSQL leaves room in the pages of a table, {version} is
-- SCHEMA_VERSION, {usable_from} is USABLE_FROM.
--
-- rows and history have no foreign key: the writer holds the lock of their partition's head, and a check per row costs
-- more than the insert. metadata is JSON text, null where there is none. The size of a tombstone is 0.
-- Text keys are in the order of their bytes whatever the database's own collation: pages and locks go by that order, as
-- Python and SQLite have it, and no index is out of order after an update of the system's collations.
-- Times are by the database's own clock, so that instances whose clocks differ agree on what is old.

CREATE TABLE IF NOT EXISTS schema_version (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    version BIGINT NOT NULL,
    -- The oldest build that may use the database, by the version that it knows.
    usable_from BIGINT
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
    migration TEXT,
    -- The newest wire version that events may be of; null: the first.
    wire_pin BIGINT
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
    -- The store takes releases only, null for no. In such a store each key has the heads of all its partitions. For
    -- PostgreSQL's writers alone, as closed is.
    releases_only BOOLEAN,
    -- The id of the schema that every value written keeps to, null where none is enforced. With one the key has the heads
    -- of all its partitions.
    schema_id BIGINT,
    PRIMARY KEY (key_id, partition)
);

-- The schemas of the values of keys, which may not be there yet. What is stored of one never changes. Ids are random: none
-- is used again, whatever is purged, or restored from a backup.
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

-- The schema of a key that is in force, and what becomes of values that break it: 'enforce', 'warn' or 'off'. Null as
-- compatibility is 'none'.
CREATE TABLE IF NOT EXISTS schema_modes (
    store {text} NOT NULL,
    config_key {text} NOT NULL,
    schema_id BIGINT NOT NULL,
    mode TEXT NOT NULL,
    changed_at_ms BIGINT NOT NULL,
    compatibility TEXT,
    PRIMARY KEY (store, config_key)
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
-- The last number of a release that each store has given. Its row is locked while a release is added, pinned or expires.
-- pinned: the release whose rows are kept, with those of all after it; null for none.
CREATE TABLE IF NOT EXISTS release_numbers (
    store {text} PRIMARY KEY,
    last BIGINT NOT NULL,
    pinned BIGINT
);

-- Releases. state is how far one is, work what is to be done with its rows ('publish', 'undo' or 'remove', '' for
-- nothing) and reached the place of the last row that it has been done with. kept: its rows are still there. Publishing,
-- undoing and removing go on in transactions that lock the row of the release, then the heads.
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
    -- How far its waves are: JSON text, null where it has none. work is 'wave' then, which older builds leave alone, and
    -- '' while it is paused.
    rollout TEXT,
    -- Of the rows that are staged: how many, and a hash. Null, or with another number than row_count, where an older
    -- build has staged some.
    digest TEXT,
    PRIMARY KEY (store, number),
    UNIQUE (store, stage_id)
);

-- Who has approved what a release has, which is its digest. By the stage id, as release_proofs.
CREATE TABLE IF NOT EXISTS release_approvals (
    store {text} NOT NULL,
    stage_id {text} NOT NULL,
    principal {text} NOT NULL,
    digest TEXT NOT NULL,
    reason TEXT NOT NULL,
    approved_at_ms BIGINT NOT NULL,
    PRIMARY KEY (store, stage_id, principal)
);

-- In which wave of a release each partition is that it writes to: 1 is the first.
CREATE TABLE IF NOT EXISTS release_partitions (
    store {text} NOT NULL,
    number BIGINT NOT NULL,
    partition BIGINT NOT NULL,
    wave BIGINT NOT NULL,
    PRIMARY KEY (store, number, partition)
);

-- The keys of releases that are staged. key_id: of the key that their rows were compared with, null as long as the key
-- is not there; a key that was purged and created again is another one.
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

-- The rows of releases, in the order in which they are published. value is null for a delete. base: the version of the
-- live row that the change was made for, 0 if there was none. old_*: what the row held at that version, kept when the
-- row is published. version and undo_version: what it was published and written back with, 0 if it was not. sparse: so that
-- a row stays in its page when that is noted. One that moves to another page gets new entries in both indexes.
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

-- What proves that the workers of a key have applied a release: a KeyCertificate as JSON text. By the stage id: a store
-- that an older build has purged leaves it, and the numbers of the next store of that name begin with 1 again.
CREATE TABLE IF NOT EXISTS release_proofs (
    store {text} NOT NULL,
    stage_id {text} NOT NULL,
    config_key {text} NOT NULL,
    proven_at_ms BIGINT NOT NULL,
    instance TEXT NOT NULL,
    certificate TEXT NOT NULL,
    PRIMARY KEY (store, stage_id, config_key)
);

-- The last statement: when the version is there, everything is.
INSERT INTO schema_version (one, version, usable_from) VALUES (1, {version}, {usable_from}) ON CONFLICT (one) DO NOTHING
