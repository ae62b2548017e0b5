"""The connections that read: one for each thread that reads at this moment, kept for the next."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ringcast_sqlite import StoreClosedError, connect

from ringcast_groupstore._health import Health

T = TypeVar("T")

_MAX_IDLE = 16


class Readers:
    """Cursors, each on a read-only connection of its own. Nobody waits for one: when none is idle, one more is made."""

    def __init__(self, path: Path, health: Health, busy_timeout_s: float) -> None:
        self._path = path
        self._health = health
        self._busy_timeout_s = busy_timeout_s
        self._closed = False
        # Its ends may be taken and given by any thread at once, without a lock.
        self.idle: deque[sqlite3.Cursor] = deque()

    def take(self) -> sqlite3.Cursor:
        """A cursor for one caller alone, to be given back.

        Raises:
            StoreClosedError: after :meth:`close`.
            StoreError: the file can't be opened.
        """
        if self._closed:
            raise StoreClosedError(f"store {self._path} is closed")
        try:
            return self.idle.pop()
        except IndexError:
            with self._health.translating():
                return connect(self._path, writer=False, busy_timeout_s=self._busy_timeout_s).cursor()

    def give_back(self, cursor: sqlite3.Cursor) -> None:
        """What was taken; its last statement has run to its end."""
        if len(self.idle) >= _MAX_IDLE:
            cursor.connection.close()
            return
        self.idle.append(cursor)
        if self._closed:
            self._drain()

    def give_back_unfinished(self, cursor: sqlite3.Cursor) -> None:
        """What was taken, in the middle of a statement, which keeps its snapshot as long as it is there."""
        connection = cursor.connection
        cursor.close()
        self.give_back(connection.cursor())

    def run(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """What ``work`` returns; each of its statements sees the last commit."""
        cursor = self.take()
        try:
            with self._health.translating():
                return work(cursor)
        finally:
            self.give_back(cursor)

    def run_on_snapshot(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """What ``work`` returns; all of its statements see the same commit."""

        def call(cursor: sqlite3.Cursor) -> T:
            cursor.execute("BEGIN")
            try:
                return work(cursor)
            finally:
                cursor.execute("ROLLBACK")

        return self.run(call)

    def close(self) -> None:
        """Closes every connection: those in use when they are given back."""
        self._closed = True
        self._drain()

    def abandon(self) -> list[sqlite3.Cursor]:
        """Like :meth:`close`, but the idle ones stay open, and are returned."""
        self._closed = True
        idle = list(self.idle)
        self.idle.clear()
        return idle

    def _drain(self) -> None:
        while True:
            try:
                cursor = self.idle.pop()
            except IndexError:
                return
            cursor.connection.close()
