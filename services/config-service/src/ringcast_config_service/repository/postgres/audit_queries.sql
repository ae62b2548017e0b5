-- The statements of the audit log that PostgreSQL and CockroachDB have for themselves.

-- INSERT_AUDIT --
-- Adds entries that are chained later. Nothing is locked.
INSERT INTO audit_pending ({entry_columns})
SELECT {stamp_ms}, q.principal, q.action, q.store, q.config_key, q.outcome, q.reason, q.details
FROM unnest($1::TEXT[], $2::TEXT[], $3::TEXT[], $4::TEXT[], $5::TEXT[], $6::TEXT[], $7::TEXT[])
    AS q (principal, action, store, config_key, outcome, reason, details)

-- SEAL_AUDIT --
-- Appends entries to the chain, whose row is locked.
INSERT INTO audit_log (seq, {entry_columns}, hash)
SELECT q.seq, q.at_ms, q.principal, q.action, q.store, q.config_key, q.outcome, q.reason, q.details, q.hash
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::TEXT[], $5::TEXT[], $6::TEXT[], $7::TEXT[], $8::TEXT[],
    $9::TEXT[], $10::TEXT[])
    AS q (seq, at_ms, principal, action, store, config_key, outcome, reason, details, hash)
