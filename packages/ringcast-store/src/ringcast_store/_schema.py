"""The tables of a store, and how a file of an older layout becomes one.

``entries`` is one B-tree in the order of group and key, without row ids: reading a key is one descent, and a group lies
together. Only keys that expire are in the index by time. ``changes`` is the change log: see ``_log``.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from ringcast_store._checksum import checksum
from ringcast_store._connection import transaction
from ringcast_store._errors import StoreCorruptError, StoreOpenError
from ringcast_store._log import append_start

APPLICATION_ID = 0x52435354
"""Tells a store from any other SQLite file; ``RCST``."""
VERSION = 1

_TABLES = (
    """
    CREATE TABLE entries (
        group_name TEXT NOT NULL,
        entry_key TEXT NOT NULL,
        entry_value NOT NULL,
        expires_at INTEGER,
        revision INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (group_name, entry_key)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX entries_by_expiry ON entries (expires_at) WHERE expires_at IS NOT NULL",
    """
    CREATE TABLE changes (
        last INTEGER PRIMARY KEY,
        size INTEGER NOT NULL,
        at_ms INTEGER NOT NULL,
        body TEXT NOT NULL,
        checksum INTEGER NOT NULL
    )
    """,
)

_SCHEMA = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"

# Older layouts: table, then its columns for group, key and value. Both may lack expires_at.
_OLDER = {"entries": ("group_name", "entry_key", "entry_value"), "kv": ("grp", "key", "value")}


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Creates the tables in an empty file and converts an older layout, each in one transaction.

    Raises:
        StoreOpenError: the file is of something else, of a newer version, or its rows can't be converted. It is left
            as it was.
    """
    if not _is_ready(connection, path):
        with transaction(connection, "BEGIN IMMEDIATE"):
            if not _is_ready(connection, path):  # another process may have been first
                _convert(connection, path)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")


def _is_ready(connection: sqlite3.Connection, path: Path) -> bool:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        return False
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise StoreOpenError(f"database {path} has layout version {version}: this release knows {VERSION}")
    if connection.execute(_SCHEMA).fetchall() != _expected_schema():
        raise StoreCorruptError(f"database {path} is damaged: its tables are not those of a store")
    return True


@cache
def _expected_schema() -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as empty:
        for statement in _TABLES:
            empty.execute(statement)
        return empty.execute(_SCHEMA).fetchall()


def _convert(connection: sqlite3.Connection, path: Path) -> None:
    found = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")]
    foreign = [name for name in found if not name.startswith("sqlite_") and not _is_older(connection, name)]
    if foreign:
        raise StoreOpenError(f"database {path} is no store: it has a table {foreign[0]!r}")
    older = [name for name in _OLDER if name in found]
    for name in older:
        _check_rows(connection, path, name)
        connection.execute(f"ALTER TABLE {name} RENAME TO older_{name}")
    for statement in _TABLES:
        connection.execute(statement)
    connection.create_function("ringcast_checksum", 5, checksum, deterministic=True)
    for name in older:  # what is in both has its newer value in entries, which comes first
        connection.execute(f"""
            INSERT INTO entries
            SELECT *, ringcast_checksum(group_name, entry_key, entry_value, expires_at, revision) FROM (
            SELECT group_name, entry_key, entry_value, expires_at,
                   row_number() OVER (ORDER BY group_name, entry_key) + (SELECT count(*) FROM entries) AS revision
            FROM ({_select(connection, name, f"older_{name}")})
            WHERE (group_name, entry_key) NOT IN (SELECT group_name, entry_key FROM entries))
            """)  # noqa: S608  names from the table above
        connection.execute(f"DROP TABLE older_{name}")
    (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    if count:  # the log begins after them
        append_start(connection.cursor(), count)


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def _is_older(connection: sqlite3.Connection, table: str) -> bool:
    return table in _OLDER and _columns(connection, table) - {"expires_at"} == set(_OLDER[table])


def _select(connection: sqlite3.Connection, layout: str, table: str) -> str:
    group, key, value = _OLDER[layout]
    expires = "expires_at" if "expires_at" in _columns(connection, table) else "NULL"
    return f"""
        SELECT {group} AS group_name, {key} AS entry_key, {value} AS entry_value, {expires} AS expires_at FROM {table}
        """  # noqa: S608  names from the table above


def _check_rows(connection: sqlite3.Connection, path: Path, name: str) -> None:
    (bad,) = connection.execute(f"""
        SELECT count(*) FROM ({_select(connection, name, name)})
        WHERE typeof(group_name) <> 'text' OR typeof(entry_key) <> 'text'
           OR typeof(entry_value) NOT IN ('text', 'blob') OR typeof(expires_at) NOT IN ('integer', 'null')
        """).fetchone()  # noqa: S608  names from the table above
    if bad:
        raise StoreOpenError(f"database {path} can't be converted: {bad} rows of {name!r} are no text keys with values")
