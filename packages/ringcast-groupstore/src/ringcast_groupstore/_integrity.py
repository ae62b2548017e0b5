"""Integrity of the file: is it sound, what becomes of a damaged one, and copies of it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from ringcast_sqlite import (
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreOpenError,
    quarantine,
    remove_database,
    sync_to_disk,
    translated,
)

from ringcast_groupstore import _log
from ringcast_groupstore._checksum import checksum
from ringcast_groupstore._entries import VALUE
from ringcast_groupstore._errors import InputError
from ringcast_groupstore._events import logger
from ringcast_groupstore._presence import Presence
from ringcast_groupstore._salvage import salvage
from ringcast_groupstore._schema import prepare
from ringcast_groupstore._types import Limits

Check = Literal["header", "quick", "full"]
OnDamage = Literal["raise", "quarantine"]
CHECKS: tuple[str, ...] = get_args(Check)
ON_DAMAGE: tuple[str, ...] = get_args(OnDamage)

_PAGE_BYTES = 4096
"""Of a database that this package has made: no other size is that of a store, whatever its first page says."""
_MAX_FINDINGS = 100
_CONTENT = f"SELECT group_name, entry_key, {VALUE}, expires_at, revision, checksum FROM entries"  # noqa: S608


def open_checked(
    path: Path,
    connect: Callable[[], sqlite3.Connection],
    presence: Presence,
    check: Check,
    on_damage: OnDamage,
    limits: Limits,
    busy_timeout_s: float,
) -> tuple[sqlite3.Connection, Path | None]:
    """The writer connection to a sound store, and where a damaged one went.

    Raises:
        StoreOpenError, StoreBusyError: see :class:`ringcast_groupstore.GroupStore`.
        StoreCorruptError: the file is damaged, and ``on_damage`` is ``"raise"``, or another process has it open.
    """
    before = _identity(path)
    presence.begin()
    try:
        return _open(path, connect, check, limits), None
    except (StoreCorruptError, StoreOpenError) as error:
        if on_damage == "raise" or not _is_damage(error, path):
            raise
        aside = None
        if presence.alone(busy_timeout_s, unless=lambda: _identity(path) != before):
            aside = _replace(path, error, limits)
        elif _identity(path) == before:
            raise StoreCorruptError(f"{error}; it is not quarantined, since another process has it open") from error
        if aside is None:  # another process was faster
            presence.share()
            return _open(path, connect, check, limits), None
        connection = _open(path, connect, check, limits)
        presence.share()
        return connection, aside


def _replace(path: Path, error: StoreError, limits: Limits) -> Path:
    """Puts a store of all that can still be read in the place of a damaged one; returns where that went."""
    partial = _partial(path)
    try:
        kept = salvage(path, partial, limits)
        sync_to_disk(partial)
        aside = quarantine(path, "damaged", partial)
    except OSError as failed:
        raise StoreOpenError(f"{error}; it can't be quarantined: {failed.strerror}") from failed
    finally:
        remove_database(partial)
    logger.warning("group_store.quarantined", path=aside, kept=kept, error=error)
    return aside


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file has this name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_damage(error: StoreError, path: Path) -> bool:
    """Whether a store is damaged, its first page perhaps, and not a file of something else, or out of reach."""
    if isinstance(error, StoreCorruptError):
        return True
    code = getattr(error.__cause__, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_NOTADB and path.stat().st_size % _PAGE_BYTES == 0


def find_damage(cursor: sqlite3.Cursor) -> list[str]:
    """What is wrong with the file behind ``cursor``: its structure first, then what the store itself keeps to.

    A name or value over a limit is no damage: the limits are those of what is written now.
    """
    try:
        return _find_damage(cursor)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return [str(error)]


def _find_damage(cursor: sqlite3.Cursor) -> list[str]:
    found = [text for (text,) in cursor.execute(f"PRAGMA integrity_check({_MAX_FINDINGS})") if text != "ok"]
    if found:
        return found
    cursor.execute("BEGIN")
    try:
        head = _log.head(cursor)
        (ahead,) = cursor.execute("SELECT count(*) FROM entries WHERE revision NOT BETWEEN 1 AND ?", (head,)).fetchone()
        if ahead:
            found.append(f"{ahead} keys have a revision that is not of 1 to {head}")
        (odd,) = cursor.execute(
            f"SELECT count(*) FROM entries WHERE typeof({VALUE}) NOT IN ('text', 'blob')"  # noqa: S608  ours
        ).fetchone()
        if odd:
            found.append(f"{odd} keys have a value that is neither text nor bytes")
        bent = sum(checksum(*row) != stored for *row, stored in cursor.execute(_CONTENT))
        if bent:
            found.append(f"{bent} keys do not fit their checksums")
        if records := _log.damaged(cursor):
            found.append(f"{records} records of the change log are unreadable or follow a gap")
    finally:
        cursor.execute("ROLLBACK")
    return found


def back_up(source: sqlite3.Connection, path: Path, target: Path) -> None:
    """Copies the database behind ``source`` to ``target``; see :meth:`ringcast_groupstore.GroupStore.backup`."""
    if target.exists():
        raise InputError(f"backup target {target} exists already")
    partial = _partial(target)
    try:
        copy = sqlite3.connect(partial, isolation_level=None)
        try:
            with translated(partial):
                source.backup(copy)  # all pages in one step: one moment of the store, writers go on beside it
        finally:
            copy.close()
        sync_to_disk(partial)
        os.link(partial, target)  # unlike a rename, never over a file that has appeared meanwhile
        sync_to_disk(target.parent)
    except FileExistsError:
        raise InputError(f"backup target {target} exists already") from None
    except OSError as error:
        raise StoreFullError(f"backup {target} of {path} can't be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _open(path: Path, connect: Callable[[], sqlite3.Connection], check: Check, limits: Limits) -> sqlite3.Connection:
    with translated(path):
        connection = connect()
        try:
            prepare(connection, path, limits)
            _look(connection, path, check)
        except UnicodeDecodeError as error:
            connection.close()
            raise StoreCorruptError(f"database {path} is damaged ({error})") from error
        except BaseException:
            connection.close()
            raise
        return connection


def _look(connection: sqlite3.Connection, path: Path, check: Check) -> None:
    found = []
    if check == "full":
        found = find_damage(connection.cursor())
    elif check == "quick":
        found = [text for (text,) in connection.execute("PRAGMA quick_check(1)") if text != "ok"]
    if found:
        raise StoreCorruptError(f"database {path} is damaged ({'; '.join(found[:3])})")


def _partial(path: Path) -> Path:
    """A name for a file that is still being written."""
    return path.with_name(f"{path.name}.partial-{os.getpid()}-{time.monotonic_ns()}")
