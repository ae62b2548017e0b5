"""How much of its quota each namespace has used."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringcast_store._errors import QuotaExceededError
from ringcast_store._reads import Reads
from ringcast_store._types import Quota

if TYPE_CHECKING:
    from ringcast_store._transaction import Transaction

SEPARATOR = ":"
"""Between a namespace and the name of a group in it."""


@dataclass(slots=True)
class _Use:
    """Of one namespace: never less than what it holds, so that the rows are counted only near the quota."""

    keys: int
    groups: int | None
    """``None`` when nobody has asked yet."""


class Usage:
    """How much of its quota each namespace has used, as far as this store object knows; under the write lock.

    Additions are counted as they are made, removals and expiry are not: when a quota seems to be reached, the rows are
    counted. Whatever another process wrote since, a roll-back, or a write past the namespace makes it count anew.
    """

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._revision = 0

    def begin(self, revision: int) -> None:
        """At the first change of a transaction, with the head revision that it found."""
        if revision != self._revision:
            self._uses.clear()

    def committed(self, revision: int) -> None:
        """After a commit that brought the head there."""
        self._revision = revision

    def wrote(self, group: str, revision: int) -> None:
        """After the commit of one write to a group, without regard to a quota, which had ``revision``."""
        self.begin(revision - 1)
        self.bypassed(group)
        self._revision = revision

    def forget(self) -> None:
        """After a roll-back."""
        self._uses.clear()

    def bypassed(self, group: str) -> None:
        """Before a write to a group without regard to a quota."""
        if self._uses:
            self._uses.pop(group.partition(SEPARATOR)[0], None)

    def admit(self, tx: Transaction, quota: Quota, group: str, keys: Collection[str]) -> None:
        """Before keys are written to a group of a namespace.

        Raises:
            QuotaExceededError: too many of them are new.
        """
        new_keys = sum(not tx._revision_of(group, key) for key in keys)
        if not new_keys:
            return
        name = group.partition(SEPARATOR)[0]
        new_groups = int(tx.count(group) == 0)
        use = self._uses.get(name)
        if use is None or not _fits(quota, use, new_keys, new_groups):
            use = self._uses[name] = _counted(tx, name, quota)
        _check(quota, use, new_keys, new_groups, name)
        use.keys += new_keys
        if use.groups is not None:
            use.groups += new_groups


def _counted(reads: Reads, name: str, quota: Quota) -> _Use:
    start = name + SEPARATOR
    return _Use(reads.count_all(start), None if quota.max_groups is None else sum(1 for _ in reads.groups(start)))


def _fits(quota: Quota, use: _Use, new_keys: int, new_groups: int) -> bool:
    if quota.max_keys is not None and use.keys + new_keys > quota.max_keys:
        return False
    return quota.max_groups is None or (use.groups is not None and use.groups + new_groups <= quota.max_groups)


def _check(quota: Quota, use: _Use, new_keys: int, new_groups: int, name: str) -> None:
    for what, held, new, limit in (
        ("keys", use.keys, new_keys, quota.max_keys),
        ("groups", use.groups, new_groups, quota.max_groups),
    ):
        if held is not None and limit is not None and held + new > limit:
            raise QuotaExceededError(f"namespace {name!r} would have {held + new} {what}: its quota is {limit}")
