"""Namespaces, tenants that share a file without meeting, and transactions: each hands out the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, overload

from ringcast_groupstore._changes import Changer, Changes, Commits
from ringcast_groupstore._engine import Engine
from ringcast_groupstore._entries import fetched, fetched_each
from ringcast_groupstore._hub import Callback, Choice
from ringcast_groupstore._purge import drop_expired
from ringcast_groupstore._source import Source
from ringcast_groupstore._types import Quota
from ringcast_groupstore._view import NamespaceView, snapshot
from ringcast_groupstore._watch import LiveWatch, LogWatch, Watch, watch
from ringcast_groupstore._writes import Writes


class Namespace(NamespaceView, Writes):
    """The groups of a store whose names begin with the namespace and a colon, which the caller neither sees nor writes.

    Made by :meth:`GroupStore.namespace` and :meth:`Transaction.namespace`. Costs nothing to make and needs no closing.
    """

    __slots__ = ("_changer", "_engine", "_quota")

    def __init__(self, engine: Engine, source: Source, changer: Changer, name: str, quota: Quota | None) -> None:
        super().__init__(source, name)
        self._engine = engine
        self._changer = changer
        self._quota = quota

    @property
    def quota(self) -> Quota | None:
        """What it may hold."""
        return self._quota

    @contextmanager
    def snapshot(self) -> Iterator[NamespaceView]:
        """One unchanging view of the namespace over several reads; see :meth:`GroupStore.snapshot`."""
        with snapshot(self._engine) as view:
            yield view.namespace(self._name)

    @contextmanager
    def transaction(self) -> Iterator[Namespace]:
        """Groups writes to this namespace; see :meth:`GroupStore.transaction`."""
        if isinstance(self._changer, Changes):  # inside a transaction of the store
            yield self
            return
        with Commits(self._engine).transaction() as changes:
            yield Transaction(changes).namespace(self._name, quota=self._quota)

    def purge_expired(self) -> int:
        """Removes every key of the namespace that has expired by now; tells how many."""
        return drop_expired(self._changer, self._source.now(), self._prefix)

    @overload
    def watch(self, group: str | None = None, *, capacity: int = 1_024) -> LiveWatch: ...

    @overload
    def watch(self, group: str | None = None, *, since: int, poll_s: float = 0.25) -> LogWatch: ...

    def watch(
        self, group: str | None = None, *, since: int | None = None, capacity: int = 1_024, poll_s: float = 0.25
    ) -> Watch:
        """Hears of changes in one group of the namespace, or in all of it; see :meth:`GroupStore.watch`."""
        return watch(self._engine, self._choice(group), since, capacity, poll_s)

    def on_change(self, callback: Callback, group: str | None = None) -> Callable[[], None]:
        """Calls ``callback`` with changes in the namespace; see :meth:`GroupStore.on_change`."""
        return self._engine.hub.on_change(callback, self._choice(group))

    def _choice(self, group: str | None) -> Choice:
        return Choice(self._prefix, None if group is None else self._prefix + group)


class Transaction(Writes):
    """What :meth:`GroupStore.transaction` hands out: its writes become visible together, or not at all.

    Reads see what was written in it. For the thread that opened it, and until its ``with`` block ends.
    """

    __slots__ = ("_changer", "_changes", "_quota")

    def __init__(self, changes: Changes) -> None:
        super().__init__(_TransactionSource(changes))
        self._changes = self._changer = changes
        self._quota = None

    def namespace(self, name: str, *, quota: Quota | None = None) -> Namespace:
        """A namespace whose reads and writes are part of this transaction."""
        return Namespace(self._changes.engine, self._source, self._changes, name, quota)


class _TransactionSource(Source):
    """Reads on the connection that writes; time stands still."""

    __slots__ = ("_changes",)

    def __init__(self, changes: Changes) -> None:
        super().__init__(changes.engine.limits)
        self._changes = changes

    def now(self) -> int:
        return self._changes.moment

    def rows(self, sql: str, params: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        return self._changes.change(lambda tx: fetched(tx.cursor.execute(sql, params), max_bytes)[0])

    def each(self, sql: str, each: Iterable[tuple[object, ...]]) -> list[Any]:
        return self._changes.change(lambda tx: fetched_each(tx.cursor, sql, each))

    def report(self, group: str, key: str) -> NoReturn:
        self._changes.engine.health.report(group, key)

    def expired(self, group: str, key: str) -> None:
        self._changes.drop(group, key)
