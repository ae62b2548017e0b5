"""The statements for idempotency keys."""

from __future__ import annotations

from typing import Final

from ringcast_config_service.repository.sql.lifecycle import for_sqlite
from ringcast_config_service.repository.sql.upkeep import POSTGRES_STAMP_MS, SQLITE_NOW_MS

_FORGET_MARKS: Final = """
DELETE FROM idempotency_keys WHERE (store, idempotency_key) IN (
    SELECT store, idempotency_key FROM idempotency_keys
    WHERE written_at_ms < {now_ms} - $1 ORDER BY written_at_ms LIMIT $2
)
"""
_DROP_MARKS: Final = "DELETE FROM idempotency_keys WHERE store = $1"


class PostgresMarks:
    """For PostgreSQL and CockroachDB."""

    READ_MARKS = """
SELECT found.store, found.idempotency_key, found.digest, found.outcomes
FROM unnest($1::TEXT[], $2::TEXT[]) AS q (store, idempotency_key)
CROSS JOIN LATERAL (
    SELECT * FROM idempotency_keys k WHERE k.store = q.store AND k.idempotency_key = q.idempotency_key LIMIT 1
) AS found
"""
    # In one order, since it waits for others who insert the same.
    INSERT_MARKS = f"""
INSERT INTO idempotency_keys (store, idempotency_key, digest, outcomes, written_at_ms)
SELECT q.store, q.idempotency_key, q.digest, q.outcomes, {POSTGRES_STAMP_MS}
FROM unnest($1::TEXT[], $2::TEXT[], $3::TEXT[], $4::TEXT[]) AS q (store, idempotency_key, digest, outcomes)
ORDER BY q.store, q.idempotency_key
ON CONFLICT (store, idempotency_key) DO NOTHING
"""  # noqa: S608
    FORGET_MARKS = _FORGET_MARKS.format(now_ms=POSTGRES_STAMP_MS).replace("$1", "$1::BIGINT")
    DROP_MARKS = _DROP_MARKS


class SqliteMarks:
    """For SQLite."""

    READ_MARK = "SELECT digest, outcomes FROM idempotency_keys WHERE store = ?1 AND idempotency_key = ?2"
    INSERT_MARK = """
INSERT INTO idempotency_keys (store, idempotency_key, digest, outcomes, written_at_ms) VALUES (?1, ?2, ?3, ?4, ?5)
"""
    FORGET_MARKS = for_sqlite(_FORGET_MARKS.format(now_ms=SQLITE_NOW_MS))
    DROP_MARKS = for_sqlite(_DROP_MARKS)
