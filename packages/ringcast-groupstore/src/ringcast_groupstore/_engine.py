"""What the parts of one store object share: its file, its lock, its connections, its clock, and the listeners."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringcast_sqlite import StoreBusyError, StoreClosedError, StoreError, connect

from ringcast_groupstore._forks import close_in_children
from ringcast_groupstore._health import Health
from ringcast_groupstore._hub import Hub
from ringcast_groupstore._integrity import Check, OnDamage, open_checked
from ringcast_groupstore._presence import Presence
from ringcast_groupstore._quotas import Usage
from ringcast_groupstore._readers import Readers
from ringcast_groupstore._types import Limits

# 16 MiB of write-ahead log: a page that small writes change again and again is copied back, and synced, once.
_LOG_PAGES = 4_000


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What :class:`ringcast_groupstore.GroupStore` is given, checked; see there."""

    durable: bool
    check: Check
    on_damage: OnDamage
    limits: Limits
    keep_changes: int
    busy_timeout_s: float
    clock: Callable[[], int]


class Engine:
    """One open file. Opens it when constructed.

    Its parts are for the modules above, which say what they do with them. ``writer``, ``cursor`` and ``usage`` belong
    to the thread that has :meth:`acquired <acquire>` the lock; everything else is for any thread.

    Raises:
        StoreOpenError, StoreCorruptError, StoreBusyError: see :class:`ringcast_groupstore.GroupStore`.
    """

    def __init__(self, path: Path, settings: EngineSettings) -> None:
        self.path = path
        self.limits = settings.limits
        self.keep_changes = settings.keep_changes
        self.busy_timeout_s = settings.busy_timeout_s
        self.clock = settings.clock
        self.closed = False
        self.lock = threading.RLock()
        self.health = Health(path, settings.limits.max_file_bytes)
        self.readers = Readers(path, self.health, settings.busy_timeout_s)
        self.hub = Hub()
        self.usage = Usage()
        self._durable = settings.durable
        self._presence = Presence(path)
        try:
            self.writer, self.quarantined = open_checked(
                *(path, self._connect_writer, self._presence, settings.check, settings.on_damage),
                *(settings.limits, settings.busy_timeout_s),
            )
        except BaseException:
            self._presence.end()
            raise
        self.cursor = self.writer.cursor()
        close_in_children(self)

    def acquire(self) -> None:
        """Takes the lock, which ``lock.release()`` gives back.

        Raises:
            StoreBusyError: another thread has it for longer than the busy time-out.
        """
        if not self.lock.acquire(timeout=self.busy_timeout_s):
            raise StoreBusyError(
                f"store {self.path} is busy: another thread has been writing for over {self.busy_timeout_s:g} s"
            )

    def begin(self) -> None:
        """Begins a transaction of the writer, under the lock.

        Raises:
            StoreClosedError: the store is closed.
            StoreCorruptError: the file is known to be damaged.
            StoreError: this thread is inside a transaction already.
        """
        self.check_open()
        self.health.check_writable()
        if self.writer.in_transaction:
            raise StoreError(f"this thread is inside a transaction of store {self.path}: write through the transaction")
        try:
            self.cursor.execute("BEGIN IMMEDIATE")
        except (sqlite3.Error, UnicodeError) as error:
            self.health.explain(error)
            raise

    def roll_back(self) -> None:
        """Ends the transaction of the writer without a trace. Harmless when there is none any more."""
        self.usage.forget()
        # A full disk makes SQLite roll back by itself.
        if self.writer.in_transaction:
            self.cursor.execute("ROLLBACK")

    def check_open(self) -> None:
        """Raises StoreClosedError once the store is closed."""
        if self.closed:
            raise StoreClosedError(f"store {self.path} is closed")

    def refuse_use(self) -> bool:
        """From now on every use raises StoreClosedError; false if that was so before.

        Raises:
            StoreError: this thread is inside a transaction of the store.
        """
        if self.closed:
            return False
        with self.lock:
            if self.writer.in_transaction:
                raise StoreError(f"store {self.path} can't be closed inside a transaction")
            self.closed = True
        return True

    def close(self) -> None:
        """After :meth:`refuse_use`: ends every watch and closes the file once the write that runs is done."""
        self.hub.close()
        self.readers.close()
        with self.lock:
            self.writer.close()  # last: it trims the write-ahead log
        self._presence.end()

    def abandon(self) -> list[Any]:
        """In a child that was forked off: it counts as closed. Returns what must stay open until the child ends."""
        if self.closed:
            return []
        self.closed = True
        self.lock = threading.RLock()  # another thread of the parent may have held it
        self._presence.end()
        return [self.writer, self.cursor, *self.readers.abandon()]

    def _connect_writer(self) -> sqlite3.Connection:
        connection = connect(self.path, writer=True, durable=self._durable, busy_timeout_s=self.busy_timeout_s)
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {self.limits.max_file_bytes // page_size}")
        return connection
