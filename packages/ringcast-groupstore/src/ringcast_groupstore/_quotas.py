"""How much of its quota each namespace has used."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from ringcast_groupstore import _entries
from ringcast_groupstore._errors import QuotaExceededError
from ringcast_groupstore._types import Quota

SEPARATOR = ":"
"""Between a namespace and the name of a group in it."""


class Counted(Protocol):
    """What is needed of a transaction to count."""

    cursor: sqlite3.Cursor
    moment: int
    """Its time, in milliseconds since 1970."""
    made: int
    """How many changes it has made."""

    def revision_of(self, group: str, key: str) -> int:
        """Of the last write of a key; 0 when there is none."""


@dataclass(slots=True)
class _Use:
    """Of one namespace, as of a moment."""

    at_ms: int
    version: int
    """Of the file, which commits of other connections change, when it was counted."""
    keys: int
    groups: int | None
    """At most so many; ``None`` until they are counted."""
    groups_expired: bool = False
    """Whether there may be fewer, since keys have expired."""


class Usage:
    """How much of its quota each namespace has used, as far as this store object knows; under the write lock.

    Rows are counted once. From then on each write and removal is added up, and what has expired since is looked up in
    the index by time: the cost does not grow with what the namespace holds. What another process writes, or what is
    written past the namespace, makes it count again. What another process purges does so before a write is refused: it
    takes no revision, and until then it is at most counted too much.
    """

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._before: dict[str, _Use | None] = {}
        """What to go back to when the transaction is rolled back."""
        self._revision = 0

    def begin(self, revision: int) -> None:
        """At the first change of a transaction, with the head revision that it found."""
        if revision != self._revision:
            self._uses.clear()
            self._before.clear()
            self._revision = revision

    def committed(self, revision: int | None) -> None:
        """After a commit, and where it brought the head, if it changed anything."""
        self._before.clear()
        if revision is not None:
            self._revision = revision

    def wrote(self, group: str, revision: int) -> None:
        """After the commit of one write to a group, without regard to a quota, which had ``revision``."""
        self.begin(revision - 1)
        if self._uses:
            self._uses.pop(_namespace(group), None)
        self._revision = revision

    def forget(self) -> None:
        """After a roll-back."""
        for name, use in self._before.items():
            if use is None:
                self._uses.pop(name, None)
            else:
                self._uses[name] = use
        self._before.clear()

    def tracks(self, group: str) -> bool:
        """Whether anything is known of the group's namespace."""
        return bool(self._uses) and _namespace(group) in self._uses

    def bypassed(self, group: str) -> None:
        """Before a write to a group without regard to a quota, and after one that went wrong half-way."""
        if self.tracks(group):
            self._keep(_namespace(group))
            del self._uses[_namespace(group)]

    def settle(self, tx: Counted, group: str) -> None:
        """Before something of a group's namespace is removed: what has expired by now is taken off."""
        if self.tracks(group):
            self._settle(tx, _namespace(group))

    def settle_all(self, tx: Counted) -> None:
        """Before what has expired is removed everywhere."""
        for name in list(self._uses):
            self._settle(tx, name)

    def removed(self, tx: Counted, group: str, keys: int) -> None:
        """After so many keys, none of which had expired, were removed from a group."""
        use = self._uses.get(_namespace(group)) if self._uses else None
        if use is not None:
            use.keys -= keys
            if use.groups is not None and not _has_keys(tx, group):
                use.groups -= 1

    def expired(self, group: str, expires_at_ms: int) -> None:
        """After one key that had expired was removed, outside a transaction."""
        use = self._uses.get(_namespace(group)) if self._uses else None
        if use is not None and expires_at_ms > use.at_ms:
            use.keys -= 1
            use.groups_expired = True

    def admit(self, tx: Counted, quota: Quota, group: str, keys: Collection[str]) -> None:
        """Before keys are written to a group of a namespace.

        Raises:
            QuotaExceededError: too many of them are new.
        """
        new_keys = sum(not tx.revision_of(group, key) for key in keys)
        if not new_keys:
            return
        name = _namespace(group)
        use = self._settle(tx, name) or self._count(tx, name)
        new_groups = self._new_groups(tx, quota, use, group, name)
        excess = _excess(quota, use, new_keys, new_groups)
        if excess is not None and use.version != _version(tx):  # another process may have purged
            del self._before[name]
            use = self._count(tx, name)
            new_groups = self._new_groups(tx, quota, use, group, name)
            excess = _excess(quota, use, new_keys, new_groups)
        if excess is not None:
            raise QuotaExceededError(f"namespace {name!r} would have {excess}")
        use.keys += new_keys
        if use.groups is not None:
            use.groups += new_groups if quota.max_groups is not None else int(not _has_keys(tx, group))

    def _new_groups(self, tx: Counted, quota: Quota, use: _Use, group: str, name: str) -> int:
        """How many groups come with a write to ``group``; those that there are get counted, if need be."""
        if quota.max_groups is None:
            return 0
        new_groups = int(not _has_keys(tx, group))
        if use.groups is None or (use.groups_expired and use.groups + new_groups > quota.max_groups):
            use.groups = sum(1 for _ in _entries.group_names(_rows(tx), name + SEPARATOR, lambda: tx.moment))
            use.groups_expired = False
        return new_groups

    def _count(self, tx: Counted, name: str) -> _Use:
        use = _Use(tx.moment, _version(tx), _entries.count_of_range(_rows(tx), name + SEPARATOR, tx.moment), None)
        # The next refusal needs no count again, unless the transaction has written before.
        self._before.setdefault(name, None if tx.made else replace(use))
        self._uses[name] = use
        return use

    def _settle(self, tx: Counted, name: str) -> _Use | None:
        """What is known of a namespace, as of now."""
        use, now = self._uses.get(name), tx.moment
        if use is None or now == use.at_ms:
            self._keep(name)
            return use
        self._keep(name)
        if now < use.at_ms:  # the clock was set back
            del self._uses[name]
            return None
        gone = _entries.expired_between(tx.cursor, name + SEPARATOR, use.at_ms, now)
        use.at_ms, use.keys = now, use.keys - gone
        use.groups_expired |= bool(gone)
        return use

    def _keep(self, name: str) -> None:
        """Before a change of what is known: once a transaction."""
        use = self._uses.get(name)
        if use is not None and name not in self._before:
            self._before[name] = replace(use)


def _rows(tx: Counted) -> _entries.Rows:
    return lambda sql, params: tx.cursor.execute(sql, params).fetchall()


def _namespace(group: str) -> str:
    return group.partition(SEPARATOR)[0]


def _has_keys(tx: Counted, group: str) -> bool:
    return _entries.has_keys(tx.cursor, group, tx.moment)


def _version(tx: Counted) -> int:
    """Of the file: another one once another connection has committed, whether it took a revision or not."""
    return int(tx.cursor.execute("PRAGMA data_version").fetchone()[0])


def _excess(quota: Quota, use: _Use, new_keys: int, new_groups: int) -> str | None:
    """What would be too much, and its quota."""
    for what, held, new, limit in (
        ("keys", use.keys, new_keys, quota.max_keys),
        ("groups", use.groups, new_groups, quota.max_groups),
    ):
        if held is not None and limit is not None and held + new > limit:
            return f"{held + new} {what}: its quota is {limit}"
    return None
