-- The audit log (../audit.py): what was done and is not chained yet, the chain, and its two ends.
--
-- Nothing refers to these tables, and nothing but audit.py's statements changes them.

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

-- The last entry, and the last one that was removed since it was past the retention.
CREATE TABLE IF NOT EXISTS audit_chain (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    seq BIGINT NOT NULL,
    hash TEXT NOT NULL,
    floor_seq BIGINT NOT NULL,
    floor_hash TEXT NOT NULL
);
INSERT INTO audit_chain (one, seq, hash, floor_seq, floor_hash) VALUES (1, 0, '{genesis}', 0, '{genesis}')
ON CONFLICT (one) DO NOTHING;

-- Digests of tokens that are refused although they may stand in the service's file.
CREATE TABLE IF NOT EXISTS revoked_tokens (
    digest {text} PRIMARY KEY,
    principal TEXT NOT NULL,
    revoked_by TEXT NOT NULL,
    revoked_at_ms BIGINT NOT NULL
)
