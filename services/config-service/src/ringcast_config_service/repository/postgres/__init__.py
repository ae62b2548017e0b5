"""The system of record in PostgreSQL and CockroachDB."""
