-- What PostgreSQL and CockroachDB have beside the tables of ../sql/schema.sql, and before them.

-- The server that the record was written on (history.py).
CREATE TABLE IF NOT EXISTS server_identity (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL
)
