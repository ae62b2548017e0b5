"""What one transaction changes: the rows that it writes, the revisions that it takes, the events that it causes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Protocol, TypeVar

from ringcast_sqlite import StoreError

from ringcast_groupstore import _entries, _log
from ringcast_groupstore._engine import Engine
from ringcast_groupstore._errors import InputError
from ringcast_groupstore._types import Event, Quota, Value

T = TypeVar("T")

_DELETE = "DELETE FROM entries WHERE group_name = ? AND entry_key = ? RETURNING expires_at"
_DELETE_GROUP = "DELETE FROM entries WHERE group_name = ?"


class Changer(Protocol):
    """What runs changes: each call in a transaction of its own (Commits), or in one that is open (Changes)."""

    def change(self, work: Callable[[Changes], T]) -> T:
        """What ``work`` returns. When it raises, nothing of it is written."""


class Changes:
    """One transaction of the writer, from its begin to its end; under the lock of the engine.

    Group names are those in the file. It neither begins nor ends the transaction: :class:`Commits` does.
    """

    __slots__ = ("_runs", "_values", "base", "cursor", "engine", "made", "moment", "open")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.cursor = engine.cursor
        self.moment = engine.clock()
        self.base: int | None = None
        """The head revision that it began with, once that is known."""
        self.made = 0
        """How many changes it has made."""
        self.open = True
        self._runs: list[_log.Run] = []
        # Kept for listeners only.
        self._values: list[Value | None] | None = [] if engine.hub.active else None

    def change(self, work: Callable[[Changes], T]) -> T:
        """Runs ``work`` as a part of this transaction.

        Raises:
            StoreError: the transaction has ended.
        """
        if not self.open:
            raise StoreError("the transaction has ended")
        with self.engine.health.translating():
            return work(self)

    def put(self, group: str, key: str, value: Value, expires_at_ms: int | None, quota: Quota | None) -> int:
        """Writes a key; returns the revision of the change."""
        self._admit(quota, group, (key,))
        revision = self.reserve(1)
        _entries.put(self.cursor, group, key, value, expires_at_ms, revision)
        self._record(_log.SET, group, expires_at_ms, [key], [value])
        return revision

    def put_many(self, group: str, values: Mapping[str, Value], expires_at_ms: int | None, quota: Quota | None) -> int:
        """Writes all of ``values``, or nothing; returns the revision of the last change."""
        self._admit(quota, group, values)
        first = self.reserve(len(values))
        self.cursor.execute("SAVEPOINT many")
        try:
            _entries.put_rows(self.cursor, group, values, expires_at_ms, first)
        except BaseException:
            self.engine.usage.bypassed(group)
            if self.cursor.connection.in_transaction:
                self.cursor.execute("ROLLBACK TO many")
                self.cursor.execute("RELEASE many")
            raise
        self.cursor.execute("RELEASE many")
        self._record(_log.SET, group, expires_at_ms, list(values), values.values())
        return first + len(values) - 1

    def delete(self, group: str, key: str) -> bool:
        """Removes a key; tells whether it was there."""
        self.settle(group)
        found = self.cursor.execute(_DELETE, (group, key)).fetchall()
        if not found or (found[0][0] is not None and found[0][0] <= self.moment):
            return False
        self.reserve(1)
        self._record(_log.DELETE, group, None, [key], [None])
        self.engine.usage.removed(self, group, 1)
        return True

    def delete_group(self, group: str) -> int:
        """Removes every key of a group, as one change; tells how many there were."""
        self.settle(group)
        live = _entries.count_of_group(
            lambda sql, params: self.cursor.execute(sql, params).fetchall(), group, self.moment
        )
        self.cursor.execute(_DELETE_GROUP, (group,))
        if live:
            self.engine.usage.removed(self, group, live)
            self.reserve(1)
            self._record(_log.DELETE_GROUP, group, None, [""], [None])
        return live

    def drop(self, group: str, key: str) -> None:
        """Removes a key that has expired, which is no change."""
        self.settle(group)
        self.cursor.execute(_DELETE, (group, key)).fetchall()

    def revision_of(self, group: str, key: str) -> int:
        """Of the last write of a key; 0 when there is none."""
        return _entries.revision_of(self.cursor, group, key, self.moment)

    def settle(self, group: str) -> None:
        """Before something of a group is removed: what is known of its namespace's quota is brought up to date."""
        if self.engine.usage.tracks(group):
            self.reserve(0)
            self.engine.usage.settle(self, group)

    def reserve(self, changes: int) -> int:
        """The revision of the first of so many changes that come next.

        Raises:
            InputError: a transaction may not have so many.
        """
        if self.base is None:
            self.base = _log.head(self.cursor)
            self.engine.usage.begin(self.base)
        most = self.engine.limits.max_changes
        if self.made + changes > most:
            raise InputError(f"changes of a transaction are {self.made + changes}: at most {most} are allowed")
        return self.base + self.made + 1

    def write_log(self) -> None:
        """Before the commit: the changes go into the same transaction."""
        if self.base is not None and self.made:
            _log.append(self.cursor, self.base, self._runs, self.made, self.moment, self.engine.keep_changes)

    def head(self) -> int | None:
        """After the commit: the revision that it brought the store to, if it changed anything."""
        return self.base + self.made if self.base is not None and self.made else None

    def events(self) -> list[Event]:
        """After the commit: the events for the listeners."""
        if not self._values or self.base is None:
            return []
        changes = ((kind, group, key, expires) for kind, group, expires, keys in self._runs for key in keys)
        return [
            Event(_log.KINDS[kind], group, key, value, revision, self.moment, expires)
            for revision, (kind, group, key, expires), value in zip(
                count(self.base + 1), changes, self._values, strict=False
            )
        ]

    def _admit(self, quota: Quota | None, group: str, keys: Collection[str]) -> None:
        usage = self.engine.usage
        if quota is None:
            usage.bypassed(group)
        else:
            self.reserve(0)
            usage.admit(self, quota, group, keys)

    def _record(
        self, kind: int, group: str, expires_at_ms: int | None, keys: list[str], values: Iterable[Value | None]
    ) -> None:
        """What was done, under the revisions that were reserved for it."""
        self._runs.append((kind, group, expires_at_ms, keys))
        self.made += len(keys)
        if self._values is not None:
            self._values += values


class Commits:
    """Runs each change of a store in a transaction of its own, and sends its events after the commit."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @contextmanager
    def transaction(self) -> Iterator[Changes]:
        """One transaction around the ``with`` block, of which nothing stays when it raises; see GroupStore."""
        engine = self._engine
        engine.acquire()
        try:
            engine.begin()
            changes = Changes(engine)
            try:
                yield changes
                with engine.health.translating():
                    events = self._commit(changes)
            except BaseException:  # what the caller raises stays as it is
                changes.open = False
                engine.roll_back()
                raise
        finally:
            engine.lock.release()
        if events:
            engine.hub.call_back(events)

    def change(self, work: Callable[[Changes], T]) -> T:
        """See :class:`Changer`. Without the context manager of :meth:`transaction`, which costs time on every write."""
        engine = self._engine
        engine.acquire()
        try:
            engine.begin()
            changes = Changes(engine)
            try:
                result = work(changes)
                events = self._commit(changes)
            except BaseException as error:
                changes.open = False
                engine.roll_back()
                engine.health.explain(error)
                raise
        finally:
            engine.lock.release()
        if events:
            engine.hub.call_back(events)
        return result

    def set_unheard(self, group: str, key: str, value: Value, expires_at_ms: int | None) -> int | None:
        """Writes one key with fewer steps, for it is called most of all; ``None``, and nothing, with a listener."""
        engine = self._engine
        engine.acquire()
        try:
            if engine.hub.active:
                return None
            engine.begin()
            cursor = engine.cursor
            try:
                revision = _log.append_set(cursor, group, key, expires_at_ms, engine.clock())
                _entries.put(cursor, group, key, value, expires_at_ms, revision)
                _log.trim(cursor, revision - 1, 1, engine.keep_changes)
                cursor.execute("COMMIT")
            except BaseException as error:
                engine.roll_back()
                engine.health.explain(error)
                raise
            engine.usage.wrote(group, revision)
            return revision
        finally:
            engine.lock.release()

    def _commit(self, changes: Changes) -> list[Event]:
        engine = self._engine
        changes.write_log()
        engine.cursor.execute("COMMIT")
        changes.open = False
        engine.usage.committed(changes.head())
        if not engine.hub.active:
            return []
        events = changes.events()
        engine.hub.publish(events)
        return events
