"""The writing verbs, the same for a store, a namespace and a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringcast_groupstore._changes import Changer, Changes
from ringcast_groupstore._checks import check_keys, check_name, check_there, check_ttl, check_value, check_values
from ringcast_groupstore._reads import Reads
from ringcast_groupstore._types import Quota, Value


class Writes(Reads):
    """What can be written. On a store or a namespace each call is one transaction; inside one, a part of it.

    Every verb raises:
        TypeError: a name is no ``str``, or a value neither ``str`` nor ``bytes``.
        InputError: a name, value or time to live is out of its limits.
        QuotaExceededError: the namespace would hold more than its quota.
        StoreBusyError: another process kept the write lock for longer than the busy time-out.
        StoreFullError, StoreCorruptError: the disk or the file fails.
        StoreClosedError: the store is closed.

    Whatever is raised, nothing of the call was written.
    """

    __slots__ = ()

    _changer: Changer
    _quota: Quota | None
    """What is held against it; ``None``: no quota applies."""

    def set(self, group: str, key: str, value: Value, *, ttl_ms: int | None = None) -> int:
        """Writes a key, whether it is there or not, and returns the revision of the change.

        It expires after ``ttl_ms`` milliseconds, or never: an earlier expiry does not stay.
        """
        name, expires_at_ms = self._checked(group, key, value, ttl_ms)
        return self._changer.change(lambda tx: tx.put(name, key, value, expires_at_ms, self._quota))

    def set_many(self, group: str, values: Mapping[str, Value], *, ttl_ms: int | None = None) -> int:
        """Writes all of ``values`` in the order of their keys, or nothing when one can't be.

        Returns the revision of the last.
        """
        name = self._group(group)
        check_keys(values.keys(), self._source.limits)
        check_values(values.values(), self._source.limits)
        expires_at_ms = self._expiry(ttl_ms)
        # In order they fill the pages of the tree one after the other.
        ordered = {key: values[key] for key in sorted(values)}
        return self._changer.change(lambda tx: tx.put_many(name, ordered, expires_at_ms, self._quota))

    def create(self, group: str, key: str, value: Value, *, ttl_ms: int | None = None) -> int | None:
        """Writes a key only if there is none: the revision of the change, or ``None`` when there was one."""
        return self.compare_and_set(group, key, value, revision=0, ttl_ms=ttl_ms)

    def compare_and_set(
        self, group: str, key: str, value: Value, *, revision: int, ttl_ms: int | None = None
    ) -> int | None:
        """Writes a key only if its last write had ``revision`` (see :meth:`entry`); 0 stands for a key that is missing.

        Returns the revision of the change, or ``None`` when something else was there: nothing was written then.
        """
        name, expires_at_ms = self._checked(group, key, value, ttl_ms)

        def work(tx: Changes) -> int | None:
            if tx.revision_of(name, key) != revision:
                return None
            return tx.put(name, key, value, expires_at_ms, self._quota)

        return self._changer.change(work)

    def delete(self, group: str, key: str) -> bool:
        """Removes a key; tells whether it was there."""
        name = self._there(group)
        check_there("key", key)
        return self._changer.change(lambda tx: tx.delete(name, key))

    def delete_many(self, group: str, keys: Iterable[str]) -> int:
        """Removes keys; tells how many were there."""
        name, wanted = self._there(group), list(keys)
        for key in wanted:
            check_there("key", key)
        return self._changer.change(lambda tx: sum(tx.delete(name, key) for key in wanted))

    def delete_group(self, group: str) -> int:
        """Removes every key of a group, as one change; tells how many there were."""
        name = self._there(group)
        return self._changer.change(lambda tx: tx.delete_group(name))

    def _group(self, group: str) -> str:
        check_name("group", group, self._source.limits.max_group_bytes - len(self._prefix))
        return self._prefix + group

    def _there(self, group: str) -> str:
        check_there("group", group)
        return self._prefix + group

    def _checked(self, group: str, key: str, value: Value, ttl_ms: int | None) -> tuple[str, int | None]:
        check_name("key", key, self._source.limits.max_key_bytes)
        check_value(value, self._source.limits)
        return self._group(group), self._expiry(ttl_ms)

    def _expiry(self, ttl_ms: int | None) -> int | None:
        if ttl_ms is None:
            return None
        check_ttl(ttl_ms)
        return self._source.now() + ttl_ms
