"""How this package opens an SQLite file: the one place for the settings that durability rests on."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ringcast_sqlite._errors import StoreCorruptError, StoreOpenError

T = TypeVar("T")

Work = Callable[[sqlite3.Connection], T]

BUSY_TIMEOUT_S = 5.0
_OLDEST_SQLITE = (3, 35, 0)  # RETURNING
_WRITER_CACHE_KIB = 64 * 1024
_READER_CACHE_KIB = 8 * 1024
# After a long snapshot has kept the write-ahead log from being trimmed, the file shrinks to this again.
_KEPT_LOG_BYTES = 64 * 1024 * 1024


def connect(
    path: Path, *, writer: bool, durable: bool = True, busy_timeout_s: float | None = None
) -> sqlite3.Connection:
    """Opens ``path`` in autocommit mode with every setting made; may be handed from thread to thread, never shared.

    Args:
        writer: whether it may write; it puts the file into write-ahead mode then. A reader opens with ``query_only``.
        durable: whether a commit waits for the disk (``synchronous = FULL``, else ``NORMAL``).
        busy_timeout_s: how long to wait for another connection's lock; 5 s unless told.

    Raises:
        StoreOpenError: SQLite is too old, the directory is missing, or the file system refuses write-ahead logging.
        StoreCorruptError: the schema is damaged.
        sqlite3.DatabaseError: what SQLite says otherwise.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        wanted = ".".join(map(str, _OLDEST_SQLITE))
        raise StoreOpenError(f"SQLite {sqlite3.sqlite_version} is too old: {wanted} or later is needed")
    if not path.parent.is_dir():
        raise StoreOpenError(f"database {path} can't be opened: its directory does not exist")
    timeout_s = BUSY_TIMEOUT_S if busy_timeout_s is None else busy_timeout_s
    connection = sqlite3.connect(
        path,
        timeout=timeout_s,
        isolation_level=None,  # transactions are ours to begin
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        connection.execute(f"PRAGMA busy_timeout = {round(timeout_s * 1000)}")
        connection.execute(f"PRAGMA cache_size = -{(_WRITER_CACHE_KIB if writer else _READER_CACHE_KIB)}")
        connection.execute("PRAGMA foreign_keys = ON")
        if writer:
            _enter_wal(connection, timeout_s)
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute(f"PRAGMA journal_size_limit = {_KEPT_LOG_BYTES}")
        else:
            connection.execute("PRAGMA query_only = ON")
    except UnicodeDecodeError as error:  # of the sqlite3 module, over a message that quotes a damaged schema
        connection.close()
        raise StoreCorruptError(f"database {path} is damaged ({error})") from error
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """``begin`` … ``COMMIT`` around the body, or ``ROLLBACK`` when it raises."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk makes SQLite roll back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _enter_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Switches to WAL. The switch ignores the busy timeout, so two processes that open a new file race for it."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreOpenError(f"the file system refuses write-ahead logging (journal mode is {mode})")
        return
