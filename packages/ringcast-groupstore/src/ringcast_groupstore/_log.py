"""The change log: what was written, under revisions that count every change of a store without a gap.

A transaction appends one record, or one for each thousand changes. A record holds kinds, groups, keys and expiry times,
not the values: a reader takes those from the entries, as long as they are still the ones that this change wrote. The
last record is never dropped, so that the head revision outlives everything else.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from json.encoder import encode_basestring
from typing import Any
from zlib import crc32

from ringcast_sqlite import StoreCorruptError

from ringcast_groupstore._checksum import checksum
from ringcast_groupstore._errors import RevisionGapError
from ringcast_groupstore._types import Event, EventKind

SET, DELETE, DELETE_GROUP = 0, 1, 2
"""Kinds as a record has them."""
KINDS = (EventKind.SET, EventKind.DELETE, EventKind.DELETE_GROUP)

Run = tuple[int, str, int | None, list[str]]
"""Changes in a row that differ in the key only: kind, group, expiry, keys. That is how a record has them."""

_RECORD_CHANGES = 1_000
HEAD = "SELECT last FROM changes ORDER BY last DESC LIMIT 1"
_OLDEST = "SELECT last, size FROM changes ORDER BY last LIMIT 1"
_APPEND = "INSERT INTO changes (last, size, at_ms, body, checksum) VALUES (?, ?, ?, ?, ?)"
# The primary key that SQLite gives by itself is one more than the greatest there is: the next revision.
_APPEND_NEXT = "INSERT INTO changes (size, at_ms, body, checksum) VALUES (1, ?, ?, ?)"
_TRIM = "DELETE FROM changes WHERE last <= ?"
_SINCE = "SELECT last, size, at_ms, body, checksum FROM changes WHERE last > ? ORDER BY last"
_ALL = "SELECT last, size, at_ms, body, checksum FROM changes ORDER BY last"
_ALL_BACK = _ALL + " DESC"
_NEWEST = "SELECT last, size FROM changes ORDER BY last DESC LIMIT 2"
_VALUE = """
    SELECT ifnull(entry_value, (SELECT large.entry_value FROM large_values AS large WHERE large.revision = ?3)),
           expires_at, revision, checksum FROM entries
    WHERE group_name = ?1 AND entry_key = ?2 AND revision = ?3
    """

_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def head(cursor: sqlite3.Cursor) -> int:
    """The revision of the last change; 0 before the first."""
    found = cursor.execute(HEAD).fetchone()
    return found[0] if found else 0


def append(cursor: sqlite3.Cursor, base: int, runs: Sequence[Run], count: int, at_ms: int, keep: int) -> None:
    """Writes the ``count`` changes after revision ``base``, and now and then drops all but the last ``keep``."""
    for start, size, body in [(0, 1, _encode_one(*runs[0]))] if count == 1 else _pieces(runs, count, keep):
        stored = _record_checksum(size, at_ms, body)
        cursor.execute(_APPEND, (base + start + size, size, at_ms, body, stored))
    trim(cursor, base, count, keep)


def append_set(cursor: sqlite3.Cursor, group: str, key: str, expires_at_ms: int | None, at_ms: int) -> int:
    """Writes one change, with the next revision, which it returns."""
    body = _encode_one(SET, group, expires_at_ms, [key])
    cursor.execute(_APPEND_NEXT, (at_ms, body, _record_checksum(1, at_ms, body)))
    revision = cursor.lastrowid
    assert revision is not None
    return revision


def trim(cursor: sqlite3.Cursor, base: int, count: int, keep: int) -> None:
    """After ``count`` changes were written behind revision ``base``."""
    step = keep // 8 or 1
    if base // step != (base + count) // step:
        cursor.execute(_TRIM, (base + count - keep,))


def append_start(cursor: sqlite3.Cursor, revision: int) -> None:
    """In a new log: what was written up to ``revision`` is not in it."""
    body = _encode([])
    cursor.execute(_APPEND, (revision, 0, 0, body, _record_checksum(0, 0, body)))


def check_since(cursor: sqlite3.Cursor, since: int) -> None:
    """Raises RevisionGapError when the log no longer has what followed ``since``, or ``since`` was never reached."""
    last, size = cursor.execute(_OLDEST).fetchone() or (0, 0)
    _check_numbers(last, size)
    oldest = last - size
    newest = head(cursor)
    if not oldest <= since <= newest:
        raise RevisionGapError(since, oldest, newest)


def read(cursor: sqlite3.Cursor, since: int, limit: int) -> list[Event]:
    """At most ``limit`` events after ``since``, oldest first; ``cursor`` must be inside a transaction.

    Raises:
        RevisionGapError: see :func:`check_since`.
        StoreCorruptError: a record or a value is not what was written.
    """
    check_since(cursor, since)
    found: list[Event] = []
    records: list[Any] = []
    room = limit
    for record in cursor.execute(_SINCE, (since,)):
        _check_numbers(record[0], record[1])
        records.append(record)
        room -= record[0] - max(record[0] - record[1], since)
        if room <= 0:
            break
    at = min(records[0][0] - records[0][1], since) if records else since
    for record in records:
        if record[0] - record[1] != at:
            raise StoreCorruptError(f"the change log is damaged: nothing follows revision {at}")
        at = record[0]
        events = _events(*record)
        found += [_with_value(cursor, event) for event in events if event.revision > since][: limit - len(found)]
    return found


def damaged(cursor: sqlite3.Cursor) -> int:
    """How many records are not what they should be: each readable, and without a gap to the one before."""
    bad, expected = 0, None
    for last, size, *rest in cursor.execute(_ALL):
        try:
            _events(last, size, *rest)
        except StoreCorruptError:
            bad, expected = bad + 1, None
            continue
        bad += expected is not None and last - size != expected
        expected = last
    return bad


def trusted_head(cursor: sqlite3.Cursor) -> int | None:
    """The head revision of a damaged store; ``None`` when the log ends in nothing that fits together."""
    newest = cursor.execute(_NEWEST).fetchall()
    if not newest or not all(isinstance(number, int) and 0 <= number < 2**62 for row in newest for number in row):
        return None
    (last, size), *before = newest
    return None if before and before[0][0] != last - size else int(last)


def trusted_events(cursor: sqlite3.Cursor) -> Iterator[Event]:
    """What can be read of a damaged log, in no order, and some of it twice.

    No checksum covers the revision of a record: only those are taken that follow another without a gap, or precede one.
    """
    for statement, step in ((_ALL, 1), (_ALL_BACK, -1)):
        beside = None
        with suppress(sqlite3.DatabaseError, UnicodeDecodeError):
            for record in cursor.execute(statement):
                if beside is not None:
                    first, second = (beside, record)[::step]
                    with suppress(StoreCorruptError, TypeError):
                        if first[0] == second[0] - second[1]:
                            yield from _events(*first)
                            yield from _events(*second)
                beside = record
            return


def _encode_one(kind: int, group: str, expires_at_ms: int | None, keys: list[str]) -> str:
    """What the encoder gives for one change, in a third of its time: single writes are the most frequent."""
    expires = "null" if expires_at_ms is None else expires_at_ms
    return f"[[{kind},{encode_basestring(group)},{expires},[{encode_basestring(keys[0])}]]]"


def _pieces(runs: Sequence[Run], count: int, keep: int) -> Iterator[tuple[int, int, str]]:
    """What goes into one record each: how many changes come before it, how many it has, and its body.

    What would be dropped at once is left out.
    """
    first = skip = max(0, count - keep)
    at, room, piece = 0, _RECORD_CHANGES, list[Run]()
    for kind, group, expires_at_ms, keys in runs:
        start = max(0, skip - at)
        at += len(keys)
        while start < len(keys):
            part = keys[start : start + room]
            piece.append((kind, group, expires_at_ms, part))
            start, room = start + len(part), room - len(part)
            if not room:
                yield first, _RECORD_CHANGES, _encode(piece)
                first, room, piece = first + _RECORD_CHANGES, _RECORD_CHANGES, []
    if piece:
        yield first, _RECORD_CHANGES - room, _encode(piece)


def _check_numbers(last: object, size: object) -> None:
    """What comes from a damaged file may be of any type, and of any size."""
    if not (isinstance(last, int) and isinstance(size, int) and 0 <= size <= last):
        raise StoreCorruptError(f"the change log is damaged: it has {size!r:.40} changes up to revision {last!r:.40}")


def _record_checksum(size: int, at_ms: int, body: str) -> int:
    return crc32(f"{size} {at_ms} {body}".encode())


def _events(last: int, size: int, at_ms: int, body: str, stored: int) -> list[Event]:
    _check_numbers(last, size)
    first = last - size + 1
    if _record_checksum(size, at_ms, body) != stored:
        raise StoreCorruptError(f"the change log is damaged at revision {first}: it does not fit its checksum")
    try:
        runs: list[Run] = json.loads(body)
        changes = ((kind, group, key, expires) for kind, group, expires, keys in runs for key in keys)
        return [
            Event(KINDS[kind], group, key, None, revision, at_ms, expires)
            for revision, (kind, group, key, expires) in zip(range(first, last + 1), changes, strict=True)
        ]
    except (ValueError, TypeError, IndexError) as error:
        raise StoreCorruptError(f"the change log is damaged at revision {first}: {error}") from error


def _with_value(cursor: sqlite3.Cursor, event: Event) -> Event:
    if event.kind is not EventKind.SET:
        return event
    found = cursor.execute(_VALUE, (event.group, event.key, event.revision)).fetchone()
    if found is None:
        return event
    value, expires_at_ms, revision, stored = found
    if checksum(event.group, event.key, value, expires_at_ms, revision) != stored:
        raise StoreCorruptError(f"key {event.key!r} of group {event.group!r} does not fit its checksum")
    return Event(event.kind, event.group, event.key, value, event.revision, event.at_ms, event.expires_at_ms)
