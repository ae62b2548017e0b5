"""A snapshot of a store."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from ringcast_sqlite import StoreError

from ringcast_groupstore import _log
from ringcast_groupstore._namespace import NamespaceView
from ringcast_groupstore._reads import Reads, fetched, fetched_each
from ringcast_groupstore._types import Limits

if TYPE_CHECKING:
    from ringcast_groupstore._store import GroupStore


class View(Reads):
    """What :meth:`GroupStore.snapshot` hands out: one unchanging view, until its ``with`` block ends.

    Time stands still in it as well: what had not expired when it was opened does not expire.
    """

    __slots__ = ("_cursor", "_lock", "_moment", "_open", "_store")

    def __init__(self, store: GroupStore, cursor: sqlite3.Cursor) -> None:
        self._store = store
        self._cursor = cursor
        self._moment = store._now()
        self._lock = threading.Lock()
        self._open = True

    @property
    def revision(self) -> int:
        """Of the last change that it shows."""
        found = self._rows(_log.HEAD, ())
        return found[0][0] if found else 0

    def namespace(self, name: str) -> NamespaceView:
        """What the view shows of a namespace.

        Raises:
            InputError: the name is not allowed.
        """
        return NamespaceView(self, name)

    def _end(self) -> None:
        """Waits for the read that runs."""
        with self._lock:
            self._open = False
            if self._cursor.connection.in_transaction:
                self._cursor.execute("ROLLBACK")

    @property
    def _limits(self) -> Limits:
        return self._store._limits

    @property
    def _prefix(self) -> str:
        return ""

    def _now(self) -> int:
        return self._moment

    def _rows(self, sql: str, words: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        with self._reading():
            return fetched(self._cursor.execute(sql, words), max_bytes)[0]

    def _each(self, sql: str, words: Iterable[tuple[object, ...]]) -> list[Any]:
        with self._reading():
            return fetched_each(self._cursor, sql, words)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, self._store._health.translating():
            if not self._open:
                raise StoreError("the snapshot has ended")
            yield

    def _report(self, group: str, key: str) -> NoReturn:
        self._store._health.report(group, key)

    def _expired(self, group: str, key: str) -> None:
        """It stays in the view; the store removes it."""
