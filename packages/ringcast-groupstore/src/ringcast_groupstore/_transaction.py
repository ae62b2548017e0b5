"""One transaction: what it writes, the revisions that it takes, and the events that its commit sends out."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain, count
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ringcast_sqlite import StoreError

from ringcast_groupstore import _log
from ringcast_groupstore._checksum import checksum, checksums
from ringcast_groupstore._errors import InputError
from ringcast_groupstore._reads import fetched, fetched_each
from ringcast_groupstore._schema import INLINE_LENGTH
from ringcast_groupstore._types import Event, Limits, Quota, Value
from ringcast_groupstore._writes import Writes

if TYPE_CHECKING:
    from ringcast_groupstore._namespace import Namespace
    from ringcast_groupstore._store import GroupStore

T = TypeVar("T")

_INSERT = "INSERT INTO entries (group_name, entry_key, entry_value, expires_at, revision, checksum) VALUES "
_OVER = """
    ON CONFLICT (group_name, entry_key) DO UPDATE
    SET entry_value = excluded.entry_value, expires_at = excluded.expires_at, revision = excluded.revision,
        checksum = excluded.checksum
    """
PUT = _INSERT + "(?, ?, ?, ?, ?, ?)" + _OVER
PUT_LARGE = "INSERT INTO large_values (revision, entry_value) VALUES (?, ?)"
# Half the time of one statement a row: what a batch has in common is bound once for so many.
_ROWS = 32
_PUT_ROWS = (
    _INSERT
    + ", ".join(f"(?1, ?{4 + 3 * row}, ?{5 + 3 * row}, ?2, ?3 + {row}, ?{6 + 3 * row})" for row in range(_ROWS))
    + _OVER
)
_REVISION = """
    SELECT revision FROM entries
    WHERE group_name = ? AND entry_key = ? AND (expires_at IS NULL OR expires_at > ?)
    """
_DELETE = "DELETE FROM entries WHERE group_name = ? AND entry_key = ? RETURNING expires_at"
_DELETE_GROUP = "DELETE FROM entries WHERE group_name = ?"


def put(cursor: sqlite3.Cursor, group: str, key: str, value: Value, expires_at_ms: int | None, revision: int) -> None:
    """Writes one key, under a revision of its own."""
    stored = checksum(group, key, value, expires_at_ms, revision)
    if len(value) > INLINE_LENGTH:
        cursor.execute(PUT_LARGE, (revision, value))
        cursor.execute(PUT, (group, key, None, expires_at_ms, revision, stored))
    else:
        cursor.execute(PUT, (group, key, value, expires_at_ms, revision, stored))


class Transaction(Writes):
    """What :meth:`GroupStore.transaction` hands out: its writes become visible together, or not at all.

    Reads see what was written in it. For the thread that opened it, and until its ``with`` block ends.
    """

    __slots__ = ("_base", "_cursor", "_made", "_moment", "_open", "_runs", "_store", "_values")

    def __init__(self, store: GroupStore, cursor: sqlite3.Cursor) -> None:
        self._store = store
        self._cursor = cursor
        self._moment = store._now()
        self._base: int | None = None
        self._runs: list[_log.Run] = []
        self._made = 0
        # Only kept for somebody who listens.
        self._values: list[Value | None] | None = [] if store._hub.active else None
        self._open = True

    def namespace(self, name: str, *, quota: Quota | None = None) -> Namespace:
        """A namespace whose reads and writes are part of this transaction."""
        from ringcast_groupstore._namespace import Namespace

        return Namespace(self, name, quota)

    @property
    def _limits(self) -> Limits:
        return self._store._limits

    @property
    def _prefix(self) -> str:
        return ""

    @property
    def _quota(self) -> Quota | None:
        return None

    def _now(self) -> int:
        return self._moment

    def _change(self, work: Callable[[Transaction], T]) -> T:
        if not self._open:
            raise StoreError("the transaction has ended")
        with self._store._health.translating():
            return work(self)

    def _rows(self, sql: str, words: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        return self._change(lambda tx: fetched(tx._cursor.execute(sql, words), max_bytes)[0])

    def _each(self, sql: str, words: Iterable[tuple[object, ...]]) -> list[Any]:
        return self._change(lambda tx: fetched_each(tx._cursor, sql, words))

    def _report(self, group: str, key: str) -> NoReturn:
        self._store._health.report(group, key)

    def _expired(self, group: str, key: str) -> None:
        self._settle(group)
        self._cursor.execute("DELETE FROM entries WHERE group_name = ? AND entry_key = ?", (group, key))

    def _put(self, group: str, key: str, value: Value, expires_at_ms: int | None, quota: Quota | None) -> int:
        self._admit(quota, group, (key,))
        revision = self._reserve(1)
        put(self._cursor, group, key, value, expires_at_ms, revision)
        self._record(_log.SET, group, expires_at_ms, [key], [value])
        return revision

    def _put_many(self, group: str, values: Mapping[str, Value], expires_at_ms: int | None, quota: Quota | None) -> int:
        self._admit(quota, group, values)
        first = self._reserve(len(values))
        self._cursor.execute("SAVEPOINT many")
        try:
            self._write_rows(group, values, expires_at_ms, first)
        except BaseException:
            self._store._usage.bypassed(group)
            if self._cursor.connection.in_transaction:
                self._cursor.execute("ROLLBACK TO many")
                self._cursor.execute("RELEASE many")
            raise
        self._cursor.execute("RELEASE many")
        self._record(_log.SET, group, expires_at_ms, list(values), values.values())
        return first + len(values) - 1

    def _write_rows(self, group: str, values: Mapping[str, Value], expires_at_ms: int | None, first: int) -> None:
        sums = checksums(group, values, expires_at_ms, first)
        inline: Iterable[Value | None] = values.values()
        if max(map(len, values.values()), default=0) > INLINE_LENGTH:
            large = ((at, value) for at, value in enumerate(values.values(), first) if len(value) > INLINE_LENGTH)
            self._cursor.executemany(PUT_LARGE, large)
            inline = (None if len(value) > INLINE_LENGTH else value for value in values.values())
        own = list(chain.from_iterable(zip(values, inline, sums, strict=True)))
        whole = len(values) - len(values) % _ROWS
        for start in range(0, whole, _ROWS):
            words = own[3 * start : 3 * (start + _ROWS)]
            self._cursor.execute(_PUT_ROWS, (group, expires_at_ms, first + start, *words))
        for row in range(whole, len(values)):
            key, value, stored = own[3 * row : 3 * (row + 1)]
            self._cursor.execute(PUT, (group, key, value, expires_at_ms, first + row, stored))

    def _admit(self, quota: Quota | None, group: str, keys: Collection[str]) -> None:
        usage = self._store._usage
        if quota is None:
            usage.bypassed(group)
        else:
            self._reserve(0)
            usage.admit(self, quota, group, keys)

    def _settle(self, group: str) -> None:
        """Before something of a group is removed: what is known of its namespace's quota is brought up to date."""
        if self._store._usage.tracks(group):
            self._reserve(0)
            self._store._usage.settle(self, group)

    def _delete(self, group: str, key: str) -> bool:
        self._settle(group)
        found = self._cursor.execute(_DELETE, (group, key)).fetchall()
        if not found or (found[0][0] is not None and found[0][0] <= self._moment):
            return False
        self._reserve(1)
        self._record(_log.DELETE, group, None, [key], [None])
        self._store._usage.removed(self, group, 1)
        return True

    def _delete_group(self, group: str) -> int:
        self._settle(group)
        live = self.count(group)
        self._cursor.execute(_DELETE_GROUP, (group,))
        if live:
            self._store._usage.removed(self, group, live)
            self._reserve(1)
            self._record(_log.DELETE_GROUP, group, None, [""], [None])
        return live

    def _revision_of(self, group: str, key: str) -> int:
        """Of the last write of a key; 0 when there is none."""
        found = self._cursor.execute(_REVISION, (group, key, self._moment)).fetchone()
        return found[0] if found else 0

    def _record(
        self, kind: int, group: str, expires_at_ms: int | None, keys: list[str], values: Iterable[Value | None]
    ) -> None:
        """What was done, under the revisions that were reserved for it."""
        self._runs.append((kind, group, expires_at_ms, keys))
        self._made += len(keys)
        if self._values is not None:
            self._values += values

    def _reserve(self, changes: int) -> int:
        """The revision of the first of so many changes that come next."""
        if self._base is None:
            self._base = _log.head(self._cursor)
            self._store._usage.begin(self._base)
        if self._made + changes > self._limits.max_changes:
            raise InputError(
                f"changes of a transaction are {self._made + changes}: at most {self._limits.max_changes} are allowed"
            )
        return self._base + self._made + 1

    def _write_log(self, keep: int) -> None:
        """Before the commit: the changes go into the same transaction."""
        if self._base is not None and self._made:
            _log.append(self._cursor, self._base, self._runs, self._made, self._moment, keep)

    def _head(self) -> int | None:
        """After the commit: the revision that it brought the store to, if it changed anything."""
        return self._base + self._made if self._base is not None and self._made else None

    def _events(self) -> list[Event]:
        """After the commit: what to tell those who listen."""
        if not self._values or self._base is None:
            return []
        changes = ((kind, group, key, expires) for kind, group, expires, keys in self._runs for key in keys)
        return [
            Event(_log.KINDS[kind], group, key, value, revision, self._moment, expires)
            for revision, (kind, group, key, expires), value in zip(
                count(self._base + 1), changes, self._values, strict=False
            )
        ]
