"""Namespaces: tenants that share a file without meeting, each with a quota."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from ringcast_groupstore._checks import check_namespace
from ringcast_groupstore._purge import drop_expired
from ringcast_groupstore._quotas import SEPARATOR
from ringcast_groupstore._reads import Reads
from ringcast_groupstore._types import Limits, Quota
from ringcast_groupstore._watch import Callback, Choice, LiveWatch, LogWatch, Watch
from ringcast_groupstore._writes import Writes

if TYPE_CHECKING:
    from ringcast_groupstore._store import GroupStore
    from ringcast_groupstore._transaction import Transaction

T = TypeVar("T")


class NamespaceView(Reads):
    """A namespace as a snapshot shows it; made by :meth:`View.namespace` and :meth:`Namespace.snapshot`."""

    __slots__ = ("_name", "_over", "_start")

    def __init__(self, over: Reads, name: str) -> None:
        check_namespace(name)
        self._over = over
        self._name = name
        self._start = name + SEPARATOR

    @property
    def name(self) -> str:
        """The namespace."""
        return self._name

    @property
    def _limits(self) -> Limits:
        return self._over._limits

    @property
    def _prefix(self) -> str:
        return self._start

    def _now(self) -> int:
        return self._over._now()

    def _rows(self, sql: str, words: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        return self._over._rows(sql, words, max_bytes)

    def _each(self, sql: str, words: Iterable[tuple[object, ...]]) -> list[Any]:
        return self._over._each(sql, words)

    def _report(self, group: str, key: str) -> NoReturn:
        self._over._report(group, key)

    def _expired(self, group: str, key: str) -> None:
        self._over._expired(group, key)


class Namespace(NamespaceView, Writes):
    """The groups of a store whose names begin with the namespace and a colon, which the caller neither sees nor writes.

    Made by :meth:`GroupStore.namespace` and :meth:`Transaction.namespace`. Costs nothing to make and needs no closing.
    """

    __slots__ = ("_allowed", "_parent")

    def __init__(self, parent: GroupStore | Transaction, name: str, quota: Quota | None) -> None:
        super().__init__(parent, name)
        self._parent = parent
        self._allowed = quota

    @property
    def quota(self) -> Quota | None:
        """What it may hold."""
        return self._allowed

    @contextmanager
    def snapshot(self) -> Iterator[NamespaceView]:
        """One unchanging view of the namespace over several reads; see :meth:`GroupStore.snapshot`."""
        with self._root.snapshot() as view:
            yield view.namespace(self._name)

    @contextmanager
    def transaction(self) -> Iterator[Namespace]:
        """Groups writes to this namespace; see :meth:`GroupStore.transaction`."""
        from ringcast_groupstore._transaction import Transaction

        if isinstance(self._parent, Transaction):
            yield self
            return
        with self._parent.transaction() as tx:
            yield Namespace(tx, self._name, self._allowed)

    def purge_expired(self) -> int:
        """Removes every key of the namespace that has expired by now; tells how many."""
        return drop_expired(self)

    @overload
    def watch(self, group: str | None = None, *, capacity: int = 1_024) -> LiveWatch: ...

    @overload
    def watch(self, group: str | None = None, *, since: int, poll_s: float = 0.25) -> LogWatch: ...

    def watch(
        self, group: str | None = None, *, since: int | None = None, capacity: int = 1_024, poll_s: float = 0.25
    ) -> Watch:
        """Hears of changes in one group of the namespace, or in all of it; see :meth:`GroupStore.watch`."""
        return self._root._watch(self._choice(group), since, capacity, poll_s)

    def on_change(self, callback: Callback, group: str | None = None) -> Callable[[], None]:
        """Calls ``callback`` with changes in the namespace; see :meth:`GroupStore.on_change`."""
        return self._root._hub.on_change(callback, self._choice(group))

    @property
    def _root(self) -> GroupStore:
        from ringcast_groupstore._transaction import Transaction

        return self._parent._store if isinstance(self._parent, Transaction) else self._parent

    def _choice(self, group: str | None) -> Choice:
        return Choice(self._start, None if group is None else self._start + group)

    @property
    def _quota(self) -> Quota | None:
        return self._allowed

    def _change(self, work: Callable[[Transaction], T]) -> T:
        return self._parent._change(work)
