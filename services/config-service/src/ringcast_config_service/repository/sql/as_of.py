"""The statements for reads of an earlier revision, and for how far back such reads may go."""

from __future__ import annotations

from typing import Final

from ringcast_config_service.repository.sql.lifecycle import for_sqlite

# The horizon: every revision that was removed had become needless by a write that is older than this. It is raised in
# the transactions that remove revisions, so that a snapshot that misses some knows the horizon that they were behind.
_RAISE_HORIZON: Final = """
INSERT INTO maintenance (duty, holder, token, until_ms, done_ms) VALUES ('history-horizon', '', 1, 0, $1)
ON CONFLICT (duty) DO UPDATE SET done_ms = excluded.done_ms WHERE maintenance.done_ms < excluded.done_ms
"""
_HORIZON: Final = "coalesce((SELECT done_ms FROM maintenance WHERE duty = 'history-horizon'), 0)"
_KEPT_REVISIONS: Final = f"""
SELECT (SELECT count(*) FROM history WHERE key_id = $1 AND partition = $2 AND revision > $3), {_HORIZON}
"""  # noqa: S608
# Rows that were not written since, and what the others were before their first write since (prev). No value comes for
# a write before the horizon whose row can't be told any more; after the horizon only a deletion can be gone, which goes
# by its own age, and then the row was not there.
_READ_AS_OF: Final = """
SELECT row_id, value, version, deleted, metadata FROM rows
WHERE key_id = $1 AND partition = $2 AND version > $5 AND version <= $3 AND (NOT deleted OR $6)
UNION ALL
SELECT h.row_id, b.value, coalesce(b.revision, 0), coalesce(b.deleted, false), b.metadata
FROM history h
LEFT JOIN history b ON b.key_id = h.key_id AND b.partition = h.partition AND b.revision = h.prev
WHERE h.key_id = $1 AND h.partition = $2 AND h.revision > $3 AND h.prev > $5 AND h.prev <= $3
    AND ((b.revision IS NULL AND h.written_at_ms < $4) OR (b.revision IS NOT NULL AND (NOT b.deleted OR $6)))
"""
# Nothing that was written after the moment is in it, and no partition has a revision without those before it.
_REVISIONS_AT: Final = """
SELECT partition, min(revision) - 1 FROM history WHERE key_id = $1 AND written_at_ms > $2 GROUP BY partition
"""


class PostgresAsOf:
    """For PostgreSQL and CockroachDB."""

    RAISE_HORIZON = _RAISE_HORIZON.replace("$1", "$1::BIGINT")
    KEPT_REVISIONS = _KEPT_REVISIONS
    READ_AS_OF = _READ_AS_OF.replace("$6", "$6::BOOLEAN")
    HORIZON = f"SELECT {_HORIZON}"
    REVISIONS_AT = _REVISIONS_AT


class SqliteAsOf:
    """For SQLite."""

    RAISE_HORIZON = for_sqlite(_RAISE_HORIZON)
    KEPT_REVISIONS = for_sqlite(_KEPT_REVISIONS)
    READ_AS_OF = for_sqlite(_READ_AS_OF)
    HORIZON = PostgresAsOf.HORIZON
    # By the index of times: without statistics SQLite would read all that the key ever had.
    REVISIONS_AT = for_sqlite(_REVISIONS_AT).replace("key_id =", "+key_id =")
