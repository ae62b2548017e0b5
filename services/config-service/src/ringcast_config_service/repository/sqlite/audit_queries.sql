-- The statements of the audit log that SQLite has for itself: row by row.

-- INSERT_AUDIT --
-- Adds an entry that is chained later.
INSERT INTO audit_pending ({entry_columns}) VALUES ({stamp_ms}, ?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- SEAL_AUDIT --
-- Appends an entry to the chain.
INSERT INTO audit_log (seq, {entry_columns}, hash) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
