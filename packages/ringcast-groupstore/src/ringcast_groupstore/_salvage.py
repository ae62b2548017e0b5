"""What can still be read of a damaged store, as a store of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ringcast_sqlite import translated

from ringcast_groupstore import _log
from ringcast_groupstore._checksum import checksum
from ringcast_groupstore._entries import put
from ringcast_groupstore._schema import prepare
from ringcast_groupstore._types import Event, EventKind, Limits

_SCAN = "SELECT group_name, entry_key, entry_value, expires_at, revision, checksum FROM entries"
_ORDERS = ("ORDER BY group_name, entry_key", "ORDER BY group_name DESC, entry_key DESC")
_LARGE = "SELECT entry_value FROM large_values WHERE revision = ?"
_REVISION = "SELECT revision FROM entries WHERE group_name = ? AND entry_key = ?"
_DROP = "DELETE FROM entries WHERE group_name = ? AND entry_key = ? AND revision < ?"
_DROP_GROUP = "DELETE FROM entries WHERE group_name = ? AND revision < ?"
_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)

MARGIN = 2**32
"""Of revisions between the last that was seen and the next, where nobody knows how many there were."""

Row = tuple[str, str, Any, int | None, int]


def salvage(damaged: Path, target: Path, limits: Limits) -> int:
    """Writes each key of a damaged store that can be read and fits its checksum to a new store; returns how many.

    They keep their revisions. Of a key that is there twice the later write is kept, and what the log says was removed
    later is not. The log of changes starts, empty, after all of the old one, or ``MARGIN`` after the last revision
    that was seen if the end of the old one can't be read: a watch that resumes there learns that something is missing.

    Raises:
        StoreFullError: the new store can't be written.
    """
    with closing(sqlite3.connect(target, isolation_level=None)) as store, translated(target):
        prepare(store, target, limits)
        cursor, head, seen = store.cursor(), _head(damaged), 0
        cursor.execute("BEGIN")
        for group, key, value, expires_at_ms, revision in _readable(damaged):
            seen = max(seen, revision)
            other = cursor.execute(_REVISION, (group, key)).fetchone()  # a damaged tree may show a row twice
            if other is None or other[0] < revision:
                with suppress(sqlite3.IntegrityError):
                    put(cursor, group, key, value, expires_at_ms, revision)
        _drop_removed(cursor, damaged)
        _log.append_start(cursor, seen + MARGIN if head is None or head < seen else head + 1)
        (kept,) = cursor.execute("SELECT count(*) FROM entries").fetchone()
        cursor.execute("COMMIT")
    return int(kept)


def _drop_removed(cursor: sqlite3.Cursor, damaged: Path) -> None:
    """A page of before in the place of a later one shows what was removed since."""
    for event in _logged(damaged):
        if event.kind is EventKind.DELETE:
            cursor.execute(_DROP, (event.group, event.key, event.revision))
        elif event.kind is EventKind.DELETE_GROUP:
            cursor.execute(_DROP_GROUP, (event.group, event.revision))


def _logged(damaged: Path) -> Iterator[Event]:
    with suppress(*_UNREADABLE), closing(sqlite3.connect(damaged, isolation_level=None)) as source:
        source.text_factory = lambda data: data.decode(errors="replace")
        yield from _log.trusted_events(source.cursor())


def _readable(damaged: Path) -> Iterator[Row]:
    """From the front up to the first page that is damaged, and from the back up to the last."""
    with suppress(*_UNREADABLE), closing(sqlite3.connect(damaged, isolation_level=None)) as source:
        source.text_factory = lambda data: data.decode(errors="replace")  # which then does not fit the checksum
        source.execute("PRAGMA query_only = ON")
        front: tuple[str, str] | None = None
        for order in _ORDERS:
            with suppress(*_UNREADABLE):
                for group, key, inline, expires_at_ms, revision, stored in source.execute(f"{_SCAN} {order}"):
                    if not (isinstance(group, str) and isinstance(key, str) and isinstance(revision, int)):
                        continue
                    if order is _ORDERS[0]:
                        front = (group, key)
                    elif front is not None and (group, key) <= front:
                        return
                    value = _large(source, revision) if inline is None else inline
                    if checksum(group, key, value, expires_at_ms, revision) == stored and revision > 0:
                        yield group, key, value, expires_at_ms, revision
                return


def _large(source: sqlite3.Connection, revision: int) -> Any:
    with suppress(*_UNREADABLE):
        found = source.execute(_LARGE, (revision,)).fetchone()
        return found[0] if found else None


def _head(damaged: Path) -> int | None:
    """Up to which revision the damaged store had come, if the end of its log can be read."""
    with suppress(*_UNREADABLE), closing(sqlite3.connect(damaged, isolation_level=None)) as source:
        return _log.trusted_head(source.cursor())
    return None
