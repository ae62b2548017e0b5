"""The tables of a store, and how a file of an older layout becomes one.

``entries`` is one B-tree in the order of group and key, without row ids: reading a key is one descent, and a group lies
together. In such a tree SQLite reads a row whole where it only compares keys, so values that don't fit into a page are
in ``large_values``, under the revision that wrote them: who counts or lists keys does not read them. Only keys that
expire are in the index by time. ``changes`` is the change log: see ``_log``.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from ringcast_sqlite import StoreOpenError, transaction

from ringcast_groupstore._checksum import checksum
from ringcast_groupstore._log import append_start
from ringcast_groupstore._types import Limits

APPLICATION_ID = 0x52435354
"""Tells a store from any other SQLite file; ``RCST``."""
VERSION = 2
_ALL_IN_ENTRIES = 1
"""The version that had large values in ``entries`` as well."""
INLINE_LENGTH = 400
"""Characters or bytes of a value that is kept in ``entries``. With the longest names it still fits beside another."""

_ENTRIES = """
    CREATE TABLE entries (
        group_name TEXT NOT NULL,
        entry_key TEXT NOT NULL,
        entry_value,
        expires_at INTEGER,
        revision INTEGER NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (group_name, entry_key)
    ) WITHOUT ROWID
    """
_BY_EXPIRY = "CREATE INDEX entries_by_expiry ON entries (expires_at) WHERE expires_at IS NOT NULL"
_CHANGES = """
    CREATE TABLE changes (
        last INTEGER PRIMARY KEY,
        size INTEGER NOT NULL,
        at_ms INTEGER NOT NULL,
        body TEXT NOT NULL,
        checksum INTEGER NOT NULL
    )
    """
_LARGE = (
    "CREATE TABLE large_values (revision INTEGER PRIMARY KEY, entry_value NOT NULL)",
    """
    CREATE TRIGGER large_value_replaced AFTER UPDATE OF revision ON entries WHEN old.entry_value IS NULL
    BEGIN DELETE FROM large_values WHERE revision = old.revision; END
    """,
    """
    CREATE TRIGGER large_value_removed AFTER DELETE ON entries WHEN old.entry_value IS NULL
    BEGIN DELETE FROM large_values WHERE revision = old.revision; END
    """,
)
_TABLES = (_ENTRIES, _BY_EXPIRY, *_LARGE, _CHANGES)

_SCHEMA = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"

# Older layouts: table, then its columns for group, key and value. Both may lack expires_at.
_OLDER = {"entries": ("group_name", "entry_key", "entry_value"), "kv": ("grp", "key", "value")}


def prepare(connection: sqlite3.Connection, path: Path, limits: Limits) -> None:
    """Creates the tables in an empty file and converts an older layout, each in one transaction.

    Indices, views, statistics and tables that others have added to a store are left alone. A conversion keeps views
    and tables only: the tables of a store are created again, and what was added to them is dropped with the old ones.

    Raises:
        StoreOpenError: the file is of something else, of a newer version, or its rows can't be converted. It is left
            as it was.
    """
    if not _is_ready(connection, path):
        # Views keep the names that they were made with, in place of following a table that is about to be dropped.
        connection.execute("PRAGMA legacy_alter_table = ON")
        with transaction(connection, "BEGIN IMMEDIATE"):
            if not _is_ready(connection, path):  # another process may have been first
                _convert(connection, path, limits)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("PRAGMA legacy_alter_table = OFF")


def _is_ready(connection: sqlite3.Connection, path: Path) -> bool:
    if _application(connection) != APPLICATION_ID:
        return False
    version = _version(connection)
    if version == _ALL_IN_ENTRIES:
        return False
    if version != VERSION:
        raise StoreOpenError(f"database {path} has layout version {version}: this release knows {VERSION}")
    found = dict(connection.execute(_SCHEMA).fetchall())
    for name, statement in _expected_schema().items():
        if found.get(name) != statement:
            raise StoreOpenError(f"database {path} is no store that this release can use: its {name!r} was changed")
    return True


def _application(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@cache
def _expected_schema() -> dict[str, str]:
    with closing(sqlite3.connect(":memory:")) as empty:
        for statement in _TABLES:
            empty.execute(statement)
        return dict(empty.execute(_SCHEMA).fetchall())


def _convert(connection: sqlite3.Connection, path: Path, limits: Limits) -> None:
    if _application(connection) == APPLICATION_ID:
        _split(connection)
        return
    found = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")]
    foreign = [name for name in found if not name.startswith("sqlite_") and not _is_older(connection, name)]
    if foreign:
        raise StoreOpenError(f"database {path} is no store: it has a table {foreign[0]!r}")
    older = [name for name in _OLDER if name in found]
    connection.create_function("ringcast_checksum", 5, checksum, deterministic=True)
    connection.create_function("ringcast_is_text", 1, _is_text, deterministic=True)
    for name in older:
        _check_rows(connection, path, name, limits)
        _move_away(connection, name)
    for statement in _TABLES:
        connection.execute(statement)
    for name in older:  # what is in both has its newer value in entries, which comes first
        connection.execute(f"""
            INSERT INTO entries (group_name, entry_key, entry_value, expires_at, revision, checksum)
            SELECT *, ringcast_checksum(group_name, entry_key, entry_value, expires_at, revision) FROM (
            SELECT group_name, entry_key, entry_value, expires_at,
                   row_number() OVER (ORDER BY group_name, entry_key) + (SELECT count(*) FROM entries) AS revision
            FROM ({_select(connection, name, f"older_{name}")})
            WHERE (group_name, entry_key) NOT IN (SELECT group_name, entry_key FROM entries))
            """)  # noqa: S608  names from the table above
        connection.execute(f"DROP TABLE older_{name}")
    _move_large_values(connection)
    (count,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    if count:  # the log begins after them
        append_start(connection.cursor(), count)


def _split(connection: sqlite3.Connection) -> None:
    """A store of the version before: the same rows, and the same log."""
    _move_away(connection, "entries")
    for statement in (_ENTRIES, _BY_EXPIRY, *_LARGE):
        connection.execute(statement)
    connection.execute("""
        INSERT INTO entries (group_name, entry_key, entry_value, expires_at, revision, checksum)
        SELECT group_name, entry_key, entry_value, expires_at, revision, checksum FROM older_entries
        """)
    connection.execute("DROP TABLE older_entries")
    _move_large_values(connection)


def _move_large_values(connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO large_values SELECT revision, entry_value FROM entries WHERE length(entry_value) > ?",
        (INLINE_LENGTH,),
    )
    connection.execute("UPDATE entries SET entry_value = NULL WHERE length(entry_value) > ?", (INLINE_LENGTH,))


def _move_away(connection: sqlite3.Connection, table: str) -> None:
    """Renames a table, and drops its indices, those that others have added too: their names may be needed."""
    own = "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL"
    for (index,) in connection.execute(own, (table,)).fetchall():
        quoted = index.replace('"', '""')
        connection.execute(f'DROP INDEX "{quoted}"')
    connection.execute(f"ALTER TABLE {table} RENAME TO older_{table}")


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


def _check_rows(connection: sqlite3.Connection, path: Path, name: str, limits: Limits) -> None:
    """Every row must be one that the store can keep, name and remove. Its value may be over the limit of new ones."""
    rules = {
        "are no text keys with values": """
            typeof(group_name) <> 'text' OR typeof(entry_key) <> 'text'
            OR typeof(entry_value) NOT IN ('text', 'blob') OR typeof(expires_at) NOT IN ('integer', 'null')
            """,
        "have text that is no UTF-8": """
            NOT ringcast_is_text(CAST(group_name AS BLOB)) OR NOT ringcast_is_text(CAST(entry_key AS BLOB))
            OR typeof(entry_value) = 'text' AND NOT ringcast_is_text(CAST(entry_value AS BLOB))
            """,
        "have an empty group or key": "group_name = '' OR entry_key = ''",
        f"have a group of over {limits.max_group_bytes} bytes or a key of over {limits.max_key_bytes}": f"""
            length(CAST(group_name AS BLOB)) > {limits.max_group_bytes}
            OR length(CAST(entry_key AS BLOB)) > {limits.max_key_bytes}
            """,
    }
    for what, rule in rules.items():
        (bad,) = connection.execute(
            f"SELECT count(*) FROM ({_select(connection, name, name)}) WHERE {rule}"  # noqa: S608  names from above
        ).fetchone()
        if bad:
            raise StoreOpenError(f"database {path} can't be converted: {bad} rows of {name!r} {what}")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
