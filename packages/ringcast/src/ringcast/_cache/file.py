"""The cache in an SQLite file: what stands where, and how damage shows. Every function runs in one transaction.

Each row and each partition carries a checksum, each partition the number of its rows, and each row has to belong to the
partition that it stands in. SQLite keeps a transaction whole; this finds what happens to the file behind its back.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from ringcast_core import row_partitions
from ringcast_wire import Row, StoreSettings

from ringcast._protocol.snapshots import PartitionSave

FORMAT: Final = 2
_TABLES: Final = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE keys (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, as_of_ms INTEGER NOT NULL)",
    "CREATE TABLE partitions (key INTEGER, number INTEGER, state BLOB NOT NULL, checksum INTEGER NOT NULL, "
    "PRIMARY KEY (key, number)) WITHOUT ROWID",
    "CREATE TABLE rows (key INTEGER, number INTEGER, row_id TEXT, row BLOB NOT NULL, checksum INTEGER NOT NULL, "
    "PRIMARY KEY (key, number, row_id)) WITHOUT ROWID",
)


class DamagedError(Exception):
    """The file says what this class did not write."""


class OtherError(Exception):
    """The file is sound, but of another store, or of another version of this package."""


class Identity(msgspec.Struct, frozen=True):
    """What a cache is a cache of."""

    store: str
    worker_id: str
    settings: StoreSettings
    migrates: bool = False
    """Whether the store migrated when this was written: by now another worker may be the owner of what it has."""

    def difference(self, other: Identity) -> str | None:
        """What is not the same, in words; ``None`` if all of it is."""
        for name in StoreSettings.__struct_fields__:
            mine, theirs = getattr(self.settings, name), getattr(other.settings, name)
            if mine != theirs:
                return f"{name} is {mine} in the cache and {theirs} in the store"
        for name in ("store", "worker_id"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} is {mine} in the cache and {theirs} now"
        return None


@dataclass(slots=True, frozen=True)
class StoredPartition:
    """A partition as the file has it; ``as_of_ms``: when it was known to be current, in ms since the epoch.
    ``history``: that ``applied`` is of."""

    number: int
    applied: int
    rows: dict[str, Row]
    tombstones: dict[str, int]
    as_of_ms: int
    history: str = ""


class _State(msgspec.Struct, frozen=True, array_like=True):
    applied: int
    row_count: int
    as_of_ms: int
    tombstones: dict[str, int]
    history: str


_rows: Final = msgspec.msgpack.Decoder(Row)
_states: Final = msgspec.msgpack.Decoder(_State)
_pack: Final = msgspec.msgpack.Encoder().encode


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables in an empty file.

    Raises:
        OtherError: they are of another format.
        DamagedError: they are not all there.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if version == 0 and not tables:
        for table in _TABLES:
            connection.execute(table)
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    elif version != FORMAT:
        raise OtherError(f"its format is {version}, and this version reads {FORMAT}")
    elif tables != {"meta", "keys", "partitions", "rows"}:
        raise DamagedError(f"it has the tables {sorted(tables)}")


def check(connection: sqlite3.Connection) -> None:
    """Goes through the structure of the file.

    Raises:
        DamagedError: it is broken.
    """
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedError(str(found).replace("\n", " "))


def read_identity(connection: sqlite3.Connection) -> Identity | None:
    """What it is a cache of; ``None`` for a file that nothing was written to."""
    found = connection.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
    if found is None:
        return None
    try:
        return msgspec.json.decode(found[0], type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedError(f"its identity can't be read: {error}") from error


def write_identity(identity: Identity) -> Callable[[sqlite3.Connection], None]:
    """Says what it is a cache of."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('identity', ?)", (msgspec.json.encode(identity),))

    return work


def read_key(connection: sqlite3.Connection, key: str, partition_count: int) -> list[StoredPartition]:
    """All partitions of a key.

    Raises:
        DamagedError: something does not add up.
    """
    found = connection.execute("SELECT id, as_of_ms FROM keys WHERE name = ?", (key,)).fetchone()
    if found is None:
        return []
    number, key_as_of_ms = found
    states = _read_states(connection, number)
    rows: dict[int, dict[str, Row]] = {partition: {} for partition in states}
    _read_rows(connection, number, rows)
    for partition, part_rows in rows.items():
        _check_partition(partition, states[partition], part_rows, partition_count)
    return [
        StoredPartition(
            partition,
            state.applied,
            rows[partition],
            state.tombstones,
            max(state.as_of_ms, int(key_as_of_ms)),
            state.history,
        )
        for partition, state in states.items()
    ]


def write(
    saves: Mapping[str, Sequence[PartitionSave]], as_of_ms: Mapping[str, int], current: Iterable[str]
) -> Callable[[sqlite3.Connection], None]:
    """Brings partitions to what they are in memory; the keys ``current`` are as of now altogether."""
    current = tuple(current)

    def work(connection: sqlite3.Connection) -> None:
        for key, of_key in saves.items():
            number = _number(connection, key)
            for save in of_key:
                _write_partition(connection, number, save, as_of_ms[key])
        for key in current:
            connection.execute("UPDATE keys SET as_of_ms = ? WHERE id = ?", (as_of_ms[key], _number(connection, key)))

    return work


def keep_only(keys: Sequence[str]) -> Callable[[sqlite3.Connection], None]:
    """Deletes what is of keys that the worker no longer has."""

    def work(connection: sqlite3.Connection) -> None:
        for number, name in connection.execute("SELECT id, name FROM keys").fetchall():
            if name not in keys:
                for table, column in (("rows", "key"), ("partitions", "key"), ("keys", "id")):
                    connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))  # noqa: S608

    return work


def _read_states(connection: sqlite3.Connection, key: int) -> dict[int, _State]:
    states = {}
    for number, blob, checksum in connection.execute(
        "SELECT number, state, checksum FROM partitions WHERE key = ?", (key,)
    ):
        if not isinstance(blob, bytes) or zlib.crc32(blob, number) != checksum:
            raise DamagedError(f"the state of partition {number} has another checksum")
        states[number] = _states.decode(blob)
    return states


def _read_rows(connection: sqlite3.Connection, key: int, rows: Mapping[int, dict[str, Row]]) -> None:
    decode, crc32 = _rows.decode, zlib.crc32
    for number, blob, checksum in connection.execute("SELECT number, row, checksum FROM rows WHERE key = ?", (key,)):
        part_rows = rows.get(number)
        if part_rows is None or not isinstance(blob, bytes) or crc32(blob) != checksum:
            raise DamagedError(f"a row of partition {number} has another checksum, or the partition is missing")
        row = decode(blob)
        part_rows[row.row_id] = row


def _check_partition(number: int, state: _State, rows: dict[str, Row], partition_count: int) -> None:
    if len(rows) != state.row_count:
        raise DamagedError(f"partition {number} has {len(rows)} rows of {state.row_count}")
    if rows and any(found != number for found in row_partitions([*rows], partition_count)):
        raise DamagedError(f"partition {number} has a row of another")


def _number(connection: sqlite3.Connection, key: str) -> int:
    connection.execute("INSERT OR IGNORE INTO keys (name, as_of_ms) VALUES (?, 0)", (key,))
    (number,) = connection.execute("SELECT id FROM keys WHERE name = ?", (key,)).fetchone()
    return int(number)


def _write_partition(connection: sqlite3.Connection, key: int, save: PartitionSave, as_of_ms: int) -> None:
    place = (key, save.number)
    if save.whole:
        connection.execute("DELETE FROM rows WHERE key = ? AND number = ?", place)
    else:
        gone = ((*place, row_id) for row_id in save.gone)
        connection.executemany("DELETE FROM rows WHERE key = ? AND number = ? AND row_id = ?", gone)
    if save.partition is None:
        connection.execute("DELETE FROM partitions WHERE key = ? AND number = ?", place)
        return
    packed = ((row.row_id, _pack(row)) for row in save.rows)
    rows = ((*place, row_id, blob, zlib.crc32(blob)) for row_id, blob in packed)
    connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?)", rows)
    state = _pack(_State(save.applied, save.row_count, as_of_ms, dict(save.tombstones), save.history))
    connection.execute(
        "INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?)", (*place, state, zlib.crc32(state, save.number))
    )
