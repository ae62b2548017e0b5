"""A snapshot of a store."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ringcast_sqlite import StoreError

from ringcast_groupstore import _log
from ringcast_groupstore._checks import check_namespace
from ringcast_groupstore._engine import Engine
from ringcast_groupstore._entries import fetched, fetched_each
from ringcast_groupstore._quotas import SEPARATOR
from ringcast_groupstore._reads import Reads
from ringcast_groupstore._source import Source


class NamespaceView(Reads):
    """A namespace as a snapshot shows it; made by :meth:`View.namespace` and :meth:`Namespace.snapshot`."""

    __slots__ = ("_name",)

    def __init__(self, source: Source, name: str) -> None:
        check_namespace(name)
        super().__init__(source, name + SEPARATOR)
        self._name = name

    @property
    def name(self) -> str:
        """The namespace."""
        return self._name


class View(Reads):
    """What :meth:`GroupStore.snapshot` hands out: one unchanging view, until its ``with`` block ends.

    Time stands still in it as well: what had not expired when it was opened does not expire.
    """

    __slots__ = ()

    @property
    def revision(self) -> int:
        """Of the last change that it shows."""
        found = self._source.rows(_log.HEAD, ())
        return found[0][0] if found else 0

    def namespace(self, name: str) -> NamespaceView:
        """What the view shows of a namespace.

        Raises:
            InputError: the name is not allowed.
        """
        return NamespaceView(self._source, name)


@contextmanager
def snapshot(engine: Engine) -> Iterator[View]:
    """See :meth:`ringcast_groupstore.GroupStore.snapshot`."""
    cursor = engine.readers.take()
    source = _SnapshotSource(engine, cursor)
    try:
        with engine.health.translating():
            cursor.execute("BEGIN")
            _log.head(cursor)  # a transaction begins with its first read
        yield View(source)
    finally:
        source.end()
        engine.readers.give_back(cursor)


class _SnapshotSource(Source):
    """Reads on a connection with an open read transaction, by one thread at a time."""

    __slots__ = ("_cursor", "_engine", "_lock", "_moment", "_open")

    def __init__(self, engine: Engine, cursor: sqlite3.Cursor) -> None:
        super().__init__(engine.limits)
        self._engine = engine
        self._cursor = cursor
        self._moment = engine.clock()
        self._lock = threading.Lock()
        self._open = True

    def end(self) -> None:
        """Waits for the read that runs."""
        with self._lock:
            self._open = False
            if self._cursor.connection.in_transaction:
                self._cursor.execute("ROLLBACK")

    def now(self) -> int:
        return self._moment

    def rows(self, sql: str, params: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        with self._reading():
            return fetched(self._cursor.execute(sql, params), max_bytes)[0]

    def each(self, sql: str, each: Iterable[tuple[object, ...]]) -> list[Any]:
        with self._reading():
            return fetched_each(self._cursor, sql, each)

    def report(self, group: str, key: str) -> NoReturn:
        self._engine.health.report(group, key)

    def expired(self, group: str, key: str) -> None:
        """It stays in the view; the store removes it."""

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, self._engine.health.translating():
            if not self._open:
                raise StoreError("the snapshot has ended")
            yield
