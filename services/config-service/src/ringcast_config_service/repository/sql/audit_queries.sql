-- The statements of the audit log whose text is the same for all databases; queries.sql beside it describes the form.

---- Audit ----

-- entry_columns --
-- What an entry has before it is chained.
at_ms, principal, action, store, config_key, outcome, reason, details

-- HAS_PENDING_AUDIT --
-- Whether an entry waits to be chained: a row if so.
SELECT 1 FROM audit_pending LIMIT 1

-- AUDIT_CHAIN --
-- The two ends of the chain.
SELECT seq, hash, floor_seq, floor_hash FROM audit_chain WHERE one = 1

-- LOCK_AUDIT_CHAIN --
-- The same, locked: one instance at a time appends or removes.
SELECT seq, hash, floor_seq, floor_hash FROM audit_chain WHERE one = 1 {for_update}

-- TAKE_PENDING_AUDIT --
-- Removes up to $1 entries that wait, the oldest first, and returns them in any order.
DELETE FROM audit_pending WHERE id IN (SELECT id FROM audit_pending ORDER BY id LIMIT $1)
RETURNING id, {entry_columns}

-- SET_AUDIT_HEAD --
-- Notes the last entry.
UPDATE audit_chain SET seq = $1, hash = $2 WHERE one = 1

-- SET_AUDIT_FLOOR --
-- Notes the last entry that was removed.
UPDATE audit_chain SET floor_seq = $1, floor_hash = $2 WHERE one = 1

-- AUDIT_RANGE --
-- Up to $2 entries behind the entry $1.
SELECT seq, {entry_columns}, hash FROM audit_log WHERE seq > $1 ORDER BY seq LIMIT $2

-- audit_wanted --
-- Those above $1 and up to $2: of the store $3, the principal $4 and the action $5 (each '' for all), since $6.
seq > $1 AND seq <= $2 AND ($3::TEXT = '' OR store = $3::TEXT) AND ($4::TEXT = '' OR principal = $4::TEXT)
    AND ($5::TEXT = '' OR action = $5::TEXT) AND at_ms >= $6

-- LIST_AUDIT --
-- Up to $7 of them, the oldest first.
SELECT seq, {entry_columns}, hash FROM audit_log WHERE {audit_wanted} ORDER BY seq LIMIT $7

-- LIST_NEWEST_AUDIT --
-- The same, the newest first.
SELECT seq, {entry_columns}, hash FROM audit_log WHERE {audit_wanted} ORDER BY seq DESC LIMIT $7

-- AUDIT_AGES --
-- The times of up to $1 entries, the oldest first.
SELECT seq, at_ms, hash FROM audit_log ORDER BY seq LIMIT $1

-- FORGET_AUDIT --
-- Removes the entries up to $1.
DELETE FROM audit_log WHERE seq <= $1

---- Revoked tokens ----

-- REVOKED_TOKENS --
-- The digest of every token that is revoked.
SELECT digest FROM revoked_tokens

-- INSERT_REVOKED_TOKEN --
-- Revokes the token with the digest $1, of the principal $2; $3 does it.
INSERT INTO revoked_tokens (digest, principal, revoked_by, revoked_at_ms) VALUES ($1, $2, $3, {now_ms})
