"""The statements over the tables of entries, and what runs them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from ringcast_groupstore._checks import prefix_end
from ringcast_groupstore._checksum import checksum, checksums
from ringcast_groupstore._schema import INLINE_LENGTH
from ringcast_groupstore._types import Value

Row = tuple[Any, ...]

Rows = Callable[[str, tuple[object, ...]], list[Any]]
"""Runs a statement with its parameters, and returns its rows."""

VALUE = """
    ifnull(entry_value, (SELECT large.entry_value FROM large_values AS large WHERE large.revision = entries.revision))
    """
"""Of a row of ``entries``, wherever it lies."""
GET = f"SELECT {VALUE}, expires_at, revision, checksum FROM entries WHERE group_name = ? AND entry_key = ?"  # noqa: S608
CONTAINS = """
    SELECT 1 FROM entries WHERE group_name = ? AND entry_key = ? AND (expires_at IS NULL OR expires_at > ?)
    """
GET_LIVE = f"""
    SELECT entry_key, {VALUE}, expires_at, revision, checksum FROM entries
    WHERE group_name = ? AND entry_key = ? AND (expires_at IS NULL OR expires_at > ?)
    """  # noqa: S608  of this module, as in the others
_COUNT = "SELECT count(*) FROM entries WHERE group_name = ? AND (expires_at IS NULL OR expires_at > ?)"
_COUNT_ALL = """
    SELECT count(*) FROM entries
    WHERE group_name >= ? AND group_name < ? AND (expires_at IS NULL OR expires_at > ?)
    """
_FIRST_GROUP = """
    SELECT group_name FROM entries
    WHERE group_name >= ? AND group_name < ? AND (expires_at IS NULL OR expires_at > ?)
    ORDER BY group_name, entry_key LIMIT 1
    """
_NEXT_GROUP = _FIRST_GROUP.replace("group_name >= ?", "group_name > ?")
KEYS = """
    SELECT entry_key FROM entries
    WHERE group_name = ? AND entry_key > ? AND (expires_at IS NULL OR expires_at > ?)
    ORDER BY entry_key LIMIT ?
    """
ITEMS = KEYS.replace("entry_key", f"entry_key, {VALUE}, expires_at, revision, checksum", 1)
ENTRIES = f"""
    SELECT group_name, entry_key, {VALUE}, expires_at, revision, checksum FROM entries
    WHERE (group_name, entry_key) > (?, ?) AND group_name < ? AND (expires_at IS NULL OR expires_at > ?)
    ORDER BY group_name, entry_key LIMIT ?
    """  # noqa: S608
PAGE_ROWS = 1_000
"""In a page of a stream."""
PAGE_BYTES = 1024 * 1024
"""Of values in a page of a stream, about."""
_SIZED = (str, bytes)
_ABOVE_ALL_TEXT = b""
"""Every blob sorts above every text."""

_INSERT = "INSERT INTO entries (group_name, entry_key, entry_value, expires_at, revision, checksum) VALUES "
_OVER = """
    ON CONFLICT (group_name, entry_key) DO UPDATE
    SET entry_value = excluded.entry_value, expires_at = excluded.expires_at, revision = excluded.revision,
        checksum = excluded.checksum
    """
_PUT = _INSERT + "(?, ?, ?, ?, ?, ?)" + _OVER
_PUT_LARGE = "INSERT INTO large_values (revision, entry_value) VALUES (?, ?)"
# Half the time of one statement a row: what a batch has in common is bound once for so many.
_ROWS = 32
_PUT_ROWS = (
    _INSERT
    + ", ".join(f"(?1, ?{4 + 3 * row}, ?{5 + 3 * row}, ?2, ?3 + {row}, ?{6 + 3 * row})" for row in range(_ROWS))
    + _OVER
)
_REVISION = """
    SELECT revision FROM entries
    WHERE group_name = ? AND entry_key = ? AND (expires_at IS NULL OR expires_at > ?)
    """
_ANY = """
    SELECT 1 FROM entries WHERE group_name = ? AND (expires_at IS NULL OR expires_at > ?) LIMIT 1
    """
_EXPIRED = """
    SELECT count(*) FROM entries
    WHERE expires_at > ? AND expires_at <= ? AND group_name >= ? AND group_name < ?
    """


def put(cursor: sqlite3.Cursor, group: str, key: str, value: Value, expires_at_ms: int | None, revision: int) -> None:
    """Writes one key, under a revision of its own."""
    stored = checksum(group, key, value, expires_at_ms, revision)
    if len(value) > INLINE_LENGTH:
        cursor.execute(_PUT_LARGE, (revision, value))
        cursor.execute(_PUT, (group, key, None, expires_at_ms, revision, stored))
    else:
        cursor.execute(_PUT, (group, key, value, expires_at_ms, revision, stored))


def put_rows(
    cursor: sqlite3.Cursor, group: str, values: Mapping[str, Value], expires_at_ms: int | None, first: int
) -> None:
    """Writes many keys of one group, under revisions from ``first`` on."""
    sums = checksums(group, values, expires_at_ms, first)
    inline: Iterable[Value | None] = values.values()
    if max(map(len, values.values()), default=0) > INLINE_LENGTH:
        large = ((at, value) for at, value in enumerate(values.values(), first) if len(value) > INLINE_LENGTH)
        cursor.executemany(_PUT_LARGE, large)
        inline = (None if len(value) > INLINE_LENGTH else value for value in values.values())
    own = list(chain.from_iterable(zip(values, inline, sums, strict=True)))
    whole = len(values) - len(values) % _ROWS
    for start in range(0, whole, _ROWS):
        params = own[3 * start : 3 * (start + _ROWS)]
        cursor.execute(_PUT_ROWS, (group, expires_at_ms, first + start, *params))
    for row in range(whole, len(values)):
        key, value, stored = own[3 * row : 3 * (row + 1)]
        cursor.execute(_PUT, (group, key, value, expires_at_ms, first + row, stored))


def fetched(rows: Iterator[Row], max_bytes: int | None) -> tuple[list[Row], bool]:
    """The rows of a statement, up to ``max_bytes`` of values if that is given, and whether that was all."""
    if max_bytes is None:
        return list(rows), True
    page: list[Row] = []
    room = max_bytes
    for row in rows:
        page.append(row)
        for column in row[1:3]:  # the value is one of these, where there is any
            if isinstance(column, _SIZED):
                room -= len(column)
        if room <= 0:
            return page, False
    return page, True


def fetched_each(cursor: sqlite3.Cursor, sql: str, each: Iterable[tuple[object, ...]]) -> list[Any]:
    """The rows of a statement with one set of parameters after the other."""
    return [row for params in each for row in cursor.execute(sql, params)]


def range_end(prefix: str) -> str | bytes:
    """The upper end of the names that begin with ``prefix``."""
    return _ABOVE_ALL_TEXT if (end := prefix_end(prefix)) is None else end


def count_of_group(rows: Rows, group: str, now_ms: int) -> int:
    """How many keys a group has."""
    return int(rows(_COUNT, (group, now_ms))[0][0])


def count_of_range(rows: Rows, prefix: str, now_ms: int) -> int:
    """How many keys the groups have whose name begins with ``prefix``."""
    return int(rows(_COUNT_ALL, (prefix, range_end(prefix), now_ms))[0][0])


def group_names(rows: Rows, prefix: str, now_ms: Callable[[], int]) -> Iterator[str]:
    """Names of the groups that begin with ``prefix`` and have a key, in order; one step in the tree for each."""
    group, end, statement = prefix, range_end(prefix), _FIRST_GROUP
    while found := rows(statement, (group, end, now_ms())):
        group, statement = found[0][0], _NEXT_GROUP
        yield group


def has_keys(cursor: sqlite3.Cursor, group: str, now_ms: int) -> bool:
    """Whether a group has any key."""
    return bool(cursor.execute(_ANY, (group, now_ms)).fetchall())


def revision_of(cursor: sqlite3.Cursor, group: str, key: str, now_ms: int) -> int:
    """Of the last write of a key; 0 when there is none."""
    found = cursor.execute(_REVISION, (group, key, now_ms)).fetchone()
    return found[0] if found else 0


def expired_between(cursor: sqlite3.Cursor, prefix: str, after_ms: int, until_ms: int) -> int:
    """How many keys of the groups that begin with ``prefix`` have expired after one moment, up to another."""
    found = cursor.execute(_EXPIRED, (after_ms, until_ms, prefix, prefix_end(prefix))).fetchone()
    return int(found[0])
