"""The statements of the relay and of compaction."""

from __future__ import annotations

from typing import Final

from ringcast_config_service.repository.sql.lifecycle import for_sqlite

# --- The database's clock ---------------------------------------------------------------------------------------------

_POSTGRES_NOW_MS: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
SQLITE_NOW_MS: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
POSTGRES_STAMP_MS: Final = "CAST(extract(epoch FROM now()) * 1000 AS BIGINT)"
"""The same throughout a transaction."""

# --- Outbox -----------------------------------------------------------------------------------------------------------

# The store is the third token of ``config.notify.<store>.<key>.<partition>``.

# Bounded, so that looking at a long outbox does not add to the trouble.
_OUTBOX_STATE: Final = """
SELECT count(*), min(created_at_ms) FROM (SELECT created_at_ms FROM outbox ORDER BY id LIMIT 100000) AS oldest
"""
# Two look-ups in the index for each store, however much waits.
_OUTBOX_SPANS: Final = """
SELECT name, oldest, newest FROM (
    SELECT s.name, (SELECT min(o.id) FROM outbox o WHERE o.store = s.name) AS oldest,
        (SELECT max(o.id) FROM outbox o WHERE o.store = s.name) AS newest
    FROM stores s
) AS spans WHERE oldest IS NOT NULL ORDER BY name
"""
# The sizes first: payloads that are too many are not read.
_READ_OUTBOX: Final = """
SELECT o.id, o.subject, o.msg_id, o.payload, o.traceparent
FROM (
    SELECT id, size, sum(size) OVER (ORDER BY id) AS total FROM (
        SELECT id, length(payload) AS size FROM outbox WHERE store = $1 AND id > $2 ORDER BY id LIMIT $3
    ) AS page
) AS counted
JOIN outbox o ON o.id = counted.id
WHERE counted.total <= $4 OR counted.total = counted.size
ORDER BY o.id
"""
_CLAIM_OUTBOX: Final = """
INSERT INTO relay_leases (store, holder, until_ms) VALUES ($1, $2, {now_ms} + $3)
ON CONFLICT (store) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms
WHERE relay_leases.holder = excluded.holder OR relay_leases.until_ms <= {now_ms}
RETURNING holder
"""
_RELEASE_OUTBOX: Final = "DELETE FROM relay_leases WHERE holder = $1"
_REFUSE_OUTBOX: Final = """
INSERT INTO outbox_refused (id, subject, msg_id, payload, traceparent, created_at_ms, refused_at_ms, reason)
SELECT id, subject, msg_id, payload, traceparent, created_at_ms, {now_ms}, $2 FROM outbox WHERE id = $1
ON CONFLICT (id) DO NOTHING
"""
_FORGET_REFUSED: Final = """
DELETE FROM outbox_refused WHERE id <= (SELECT id FROM outbox_refused ORDER BY id DESC LIMIT 1 OFFSET 10000)
"""
_READ_REFUSED: Final = """
SELECT id, subject, msg_id, payload, traceparent, reason FROM outbox_refused WHERE id > $1 ORDER BY id LIMIT $2
"""

# --- Compaction -------------------------------------------------------------------------------------------------------

# One instance at a time: the duty is taken by compare-and-set, and its token is checked by each transaction that does
# something for it. done_ms says up to which time it was done.
_TAKE_DUTY: Final = """
INSERT INTO maintenance (duty, holder, token, until_ms, done_ms) VALUES ($1, $2, 1, {now_ms} + $3, 0)
ON CONFLICT (duty) DO UPDATE
SET holder = excluded.holder, token = maintenance.token + 1, until_ms = excluded.until_ms
WHERE maintenance.until_ms <= {now_ms} OR maintenance.holder = excluded.holder
RETURNING token, done_ms, {now_ms}
"""
_KEEP_DUTY: Final = """
UPDATE maintenance SET until_ms = {now_ms} + $3, done_ms = $4 WHERE duty = $1 AND token = $2 RETURNING token
"""
# By version too: of a million of one moment, a piece would else begin with all that the pieces before it have removed.
_OLD_TOMBSTONES: Final = """
SELECT key_id, partition, row_id, version, written_at_ms FROM rows
WHERE deleted AND (written_at_ms, version) >= ($1, $2) AND written_at_ms < $3 ORDER BY written_at_ms, version LIMIT $4
"""
# A piece of the history by age: where it ends, and what became needless by it.
_END_OF_PIECE: Final = """
SELECT written_at_ms FROM history WHERE written_at_ms >= $1 AND written_at_ms < $2
ORDER BY written_at_ms LIMIT 1 OFFSET $3
"""
_OLD_HISTORY: Final = """
SELECT key_id, partition, revision, prev, deleted FROM history WHERE written_at_ms >= $1 AND written_at_ms < $2
"""


class PostgresUpkeep:
    """For PostgreSQL and CockroachDB."""

    OUTBOX_SPANS = _OUTBOX_SPANS
    READ_OUTBOX = _READ_OUTBOX
    CLAIM_OUTBOX = _CLAIM_OUTBOX.format(now_ms=_POSTGRES_NOW_MS).replace("$3", "$3::BIGINT")
    RELEASE_OUTBOX = _RELEASE_OUTBOX
    REFUSE_OUTBOX = _REFUSE_OUTBOX.format(now_ms=_POSTGRES_NOW_MS)
    FORGET_REFUSED = _FORGET_REFUSED
    READ_REFUSED = _READ_REFUSED
    DELETE_OUTBOX = "DELETE FROM outbox WHERE id = ANY ($1::BIGINT[])"
    OUTBOX_STATE = _OUTBOX_STATE.replace("min(created_at_ms)", f"{POSTGRES_STAMP_MS} - min(created_at_ms)")

    TAKE_DUTY = _TAKE_DUTY.format(now_ms=_POSTGRES_NOW_MS).replace("$3", "$3::BIGINT")
    KEEP_DUTY = _KEEP_DUTY.format(now_ms=_POSTGRES_NOW_MS).replace("$3", "$3::BIGINT")
    OLD_TOMBSTONES = _OLD_TOMBSTONES
    RAISE_FLOORS = """
UPDATE partitions AS p SET floor = q.floor
FROM unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[]) AS q (key_id, partition, floor)
WHERE p.key_id = q.key_id AND p.partition = q.partition AND p.floor < q.floor
"""
    # The version says that it is the tombstone still; asked for as such, the index of all tombstones would be read.
    DELETE_TOMBSTONES = """
DELETE FROM rows AS r USING unnest($1::BIGINT[], $2::BIGINT[], $3::TEXT[], $4::BIGINT[])
    AS q (key_id, partition, row_id, version)
WHERE r.key_id = q.key_id AND r.partition = q.partition AND r.row_id = q.row_id AND r.version = q.version
"""
    END_OF_PIECE = _END_OF_PIECE
    OLD_HISTORY = _OLD_HISTORY
    DELETE_HISTORY = """
DELETE FROM history AS h USING unnest($1::BIGINT[], $2::BIGINT[], $3::BIGINT[]) AS q (key_id, partition, revision)
WHERE h.key_id = q.key_id AND h.partition = q.partition AND h.revision = q.revision
"""


class SqliteUpkeep:
    """For SQLite."""

    OUTBOX_SPANS = _OUTBOX_SPANS
    READ_OUTBOX = for_sqlite(_READ_OUTBOX)
    CLAIM_OUTBOX = for_sqlite(_CLAIM_OUTBOX.format(now_ms=SQLITE_NOW_MS))
    RELEASE_OUTBOX = for_sqlite(_RELEASE_OUTBOX)
    REFUSE_OUTBOX = for_sqlite(_REFUSE_OUTBOX.format(now_ms=SQLITE_NOW_MS))
    FORGET_REFUSED = _FORGET_REFUSED
    READ_REFUSED = for_sqlite(_READ_REFUSED)
    OUTBOX_STATE = _OUTBOX_STATE
    DELETE_OUTBOX = "DELETE FROM outbox WHERE id = ?1"

    TAKE_DUTY = for_sqlite(_TAKE_DUTY.format(now_ms=SQLITE_NOW_MS))
    KEEP_DUTY = for_sqlite(_KEEP_DUTY.format(now_ms=SQLITE_NOW_MS))
    OLD_TOMBSTONES = for_sqlite(_OLD_TOMBSTONES)
    RAISE_FLOOR = "UPDATE partitions SET floor = ?3 WHERE key_id = ?1 AND partition = ?2 AND floor < ?3"
    DELETE_TOMBSTONE = "DELETE FROM rows WHERE key_id = ?1 AND partition = ?2 AND row_id = ?3 AND version = ?4"
    END_OF_PIECE = for_sqlite(_END_OF_PIECE)
    OLD_HISTORY = for_sqlite(_OLD_HISTORY)
    DELETE_HISTORY = "DELETE FROM history WHERE key_id = ?1 AND partition = ?2 AND revision = ?3"
