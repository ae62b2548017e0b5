"""What SQLite reports, as exceptions that say what a caller can do about it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StoreError(Exception):
    """The base of every error of this package; ``str(error)`` is one sentence."""


class StoreOpenError(StoreError):
    """The file can't be opened: its directory is missing, access is denied, or it is no SQLite database."""


class StoreBusyError(StoreError):
    """Another process kept the write lock too long, or too many calls wait already. Trying again later may help."""


class StoreFullError(StoreError):
    """The disk is full, or can't be read or written."""


class StoreCorruptError(StoreError):
    """The file is damaged."""


class StoreClosedError(StoreError):
    """The database was closed."""


_BY_CODE: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusyError, "is locked by another process"),
    sqlite3.SQLITE_LOCKED: (StoreBusyError, "is locked by another connection"),
    sqlite3.SQLITE_FULL: (StoreFullError, "can't grow: the disk is full"),
    sqlite3.SQLITE_IOERR: (StoreFullError, "can't be read or written"),
    sqlite3.SQLITE_CORRUPT: (StoreCorruptError, "is damaged"),
    sqlite3.SQLITE_NOTADB: (StoreOpenError, "is not an SQLite database"),
    sqlite3.SQLITE_CANTOPEN: (StoreOpenError, "can't be opened: is its directory there and writable?"),
    sqlite3.SQLITE_READONLY: (StoreOpenError, "can't be written: the file or its directory is read-only"),
    sqlite3.SQLITE_PERM: (StoreOpenError, "can't be opened: access is denied"),
    sqlite3.SQLITE_AUTH: (StoreOpenError, "can't be opened: access is denied"),
}


# What the sqlite3 module says, without a code, of text in the file that is no UTF-8.
_NO_TEXT = "Could not decode to UTF-8"


def translate(path: Path, error: Exception) -> StoreError | None:
    """What SQLite said about the file as an error of this package; ``None`` for a misuse of SQL."""
    # The sqlite3 module stumbles over damaged text even in its own messages.
    if isinstance(error, UnicodeDecodeError) or str(error).startswith(_NO_TEXT):
        return StoreCorruptError(f"database {path} is damaged ({error})")
    code = getattr(error, "sqlite_errorcode", None)
    found = _BY_CODE.get(code & 0xFF) if code is not None else None  # the low byte is the primary code
    if found is None:
        return None
    kind, what = found
    return kind(f"database {path} {what} ({error})")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turns what SQLite says about the file into an error of this package; misuse of SQL passes as it is."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        meant = translate(path, error)
        if meant is None:
            raise
        raise meant from error
