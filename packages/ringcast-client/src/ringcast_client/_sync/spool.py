"""Compares the rows that a key should have with those it has, on disk: memory stays bounded however many there are.

Both sides go into a private temporary database of SQLite, in the directory for temporary files (TMPDIR), which is gone
when the process ends, however it ends. It takes about twice the size of the input. Encrypted
values are sealed there too.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from ringcast_core import row_partitions

from ringcast_client._common.records import RowRecord, RowWrite

_CACHE_KIB: Final = 32 * 1024
_PAGE_ROWS: Final = 500
_UNCHANGED, _CHANGED, _DELETED = 0, 1, 2

_TABLES: Final = f"""
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -{_CACHE_KIB};
CREATE TABLE input (
    place INTEGER PRIMARY KEY, partition INTEGER NOT NULL, row_id TEXT NOT NULL, value TEXT, metadata TEXT
);
CREATE TABLE wanted (
    partition INTEGER, row_id TEXT, value TEXT, metadata TEXT, PRIMARY KEY (partition, row_id)
) WITHOUT ROWID;
CREATE TABLE current (
    partition INTEGER, row_id TEXT, version INTEGER, state INTEGER, PRIMARY KEY (partition, row_id)
) WITHOUT ROWID;
CREATE TABLE plan (
    place INTEGER PRIMARY KEY, partition INTEGER, row_id TEXT, version INTEGER, deleted INTEGER
);
"""
_ADD_INPUT: Final = "INSERT INTO input (partition, row_id, value, metadata) VALUES (?, ?, ?, ?)"
# The sorter merges on disk, which a look-up a row would not. Of two rows with one id the later replaces the earlier.
_SORT_INPUT: Final = (
    "INSERT OR REPLACE INTO wanted SELECT partition, row_id, value, metadata FROM input"
    " ORDER BY partition, row_id, place"
)
_DROP_DELETES: Final = "DELETE FROM wanted WHERE value IS NULL"
_GET_WANTED: Final = "SELECT value, metadata FROM wanted WHERE partition = ? AND row_id = ?"
_ADD_CURRENT: Final = "INSERT INTO current (partition, row_id, version, state) VALUES (?, ?, ?, ?)"
_COUNT_WANTED: Final = "SELECT count(*) FROM wanted"
_COUNT_CURRENT: Final = "SELECT state, count(*) FROM current GROUP BY state"
_FIRST_ADDED: Final = (
    "SELECT row_id FROM wanted LEFT JOIN current USING (partition, row_id) WHERE version IS NULL LIMIT ?"
)
_FIRST_OF_STATE: Final = "SELECT row_id FROM current WHERE state = ? LIMIT ?"
# By partition; what is deleted comes first, and makes room in the partition.
_MAKE_PLAN: Final = """
INSERT INTO plan (partition, row_id, version, deleted)
SELECT partition, row_id, version, 1 AS deleted FROM current WHERE state = ?
UNION ALL
SELECT wanted.partition, wanted.row_id, version, 0 FROM wanted LEFT JOIN current USING (partition, row_id)
WHERE version IS NULL OR state = ?
ORDER BY partition, deleted DESC, row_id
"""
_PLANNED: Final = """
SELECT place, plan.row_id, version, deleted, value, metadata FROM plan LEFT JOIN wanted USING (partition, row_id)
WHERE place > ? ORDER BY place LIMIT ?
"""

_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


class PlannedWrite(NamedTuple):
    """A row to write. ``place`` counts from 1; ``version`` is that of the row that was there, or ``None``."""

    place: int
    row: RowWrite
    version: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How many rows are only wanted, differ, are only there, and are the same."""

    added: int
    changed: int
    deleted: int
    unchanged: int

    @property
    def current(self) -> int:
        """Live rows that the key has."""
        return self.changed + self.deleted + self.unchanged

    @property
    def wanted(self) -> int:
        """Rows that it should have."""
        return self.added + self.changed + self.unchanged

    @property
    def writes(self) -> int:
        """Rows that have to be written."""
        return self.added + self.changed + self.deleted


class Spool:
    """Takes the wanted rows, then :meth:`sort`, then the current rows; answers what differs.

    May be used from several threads, one after another; :meth:`close` waits for a step under way.
    """

    def __init__(self, partition_count: int) -> None:
        self._partition_count = partition_count
        self._lock = threading.Lock()
        self._closed = False
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(_TABLES)

    def close(self) -> None:
        """Frees the disk; harmless when called again."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._database.interrupt()  # a long step in another thread ends at once
        with self._lock:
            self._database.close()

    def add_wanted(self, rows: Sequence[RowWrite]) -> None:
        """Takes checked rows of the input."""
        partitions = row_partitions([row.row_id for row in rows], self._partition_count)
        self._many(_ADD_INPUT, [_input(row, place) for row, place in zip(rows, partitions, strict=True)])

    def sort(self) -> None:
        """Ends the input."""
        with self._lock:
            self._check_open()
            self._database.execute(_SORT_INPUT)
            self._database.execute("DROP TABLE input")
            self._database.execute(_DROP_DELETES)

    def add_current(self, rows: Sequence[RowRecord]) -> None:
        """Takes live rows of the key and compares each."""
        with self._lock:
            self._check_open()
            found = [self._compare(row) for row in rows]
            self._database.execute("BEGIN")
            self._database.executemany(_ADD_CURRENT, found)
            self._database.execute("COMMIT")

    def difference(self) -> Difference:
        """What differs, once both sides are complete."""
        wanted = self._all(_COUNT_WANTED)[0][0]
        states = dict(self._all(_COUNT_CURRENT))
        changed, unchanged = states.get(_CHANGED, 0), states.get(_UNCHANGED, 0)
        return Difference(wanted - changed - unchanged, changed, states.get(_DELETED, 0), unchanged)

    def first(self, limit: int) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The first row ids by partition and row id: of those added, changed, deleted."""
        added = self._all(_FIRST_ADDED, (limit,))
        changed, deleted = (self._all(_FIRST_OF_STATE, (state, limit)) for state in (_CHANGED, _DELETED))
        return _ids(added), _ids(changed), _ids(deleted)

    def plan(self) -> None:
        """Puts what has to be written into an order: see :meth:`planned`."""
        with self._lock:
            self._check_open()
            self._database.execute(_MAKE_PLAN, (_DELETED, _CHANGED))

    def planned(self, after: int = 0, limit: int | None = None) -> Iterator[PlannedWrite]:
        """What makes the key equal to the input, from behind a place on."""
        while limit is None or limit > 0:
            page = self._all(_PLANNED, (after, _PAGE_ROWS if limit is None else min(limit, _PAGE_ROWS)))
            for place, row_id, version, deleted, value, metadata in page:
                row = RowWrite(row_id, value or "", _decode(metadata) if metadata else {}, bool(deleted))
                yield PlannedWrite(place, row, version)
            if not page:
                return
            after = page[-1][0]
            limit = None if limit is None else limit - len(page)

    def _compare(self, row: RowRecord) -> tuple[int, str, int, int]:
        wanted = self._database.execute(_GET_WANTED, (row.partition, row.row_id)).fetchone()
        if wanted is None:
            state = _DELETED
        elif wanted == (row.value, _metadata(row)):
            state = _UNCHANGED
        else:
            state = _CHANGED
        return row.partition, row.row_id, row.version, state

    def _many(self, statement: str, words: list[tuple[Any, ...]]) -> None:
        with self._lock:
            self._check_open()
            self._database.execute("BEGIN")
            self._database.executemany(statement, words)
            self._database.execute("COMMIT")

    def _all(self, statement: str, words: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            self._check_open()
            return self._database.execute(statement, words).fetchall()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the comparison has ended")


def _input(row: RowWrite, partition: int) -> tuple[int, str, str | None, str | None]:
    return partition, row.row_id, None if row.delete else row.value, _metadata(row)


def _metadata(row: RowWrite | RowRecord) -> str | None:
    return _encode(dict(row.metadata)).decode() if row.metadata else None


def _ids(rows: list[tuple[Any, ...]]) -> tuple[str, ...]:
    return tuple(row_id for (row_id,) in rows)
