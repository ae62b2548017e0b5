"""Opening encrypted values just before the application gets them: everything else in the worker has them sealed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from ringcast_wire import Row, ValueSealedError
from ringcast_wire.key_ring import KeyRing, ListKeys, check_not_sealed

from ringcast._common.change import Change
from ringcast._common.stats import Stats

_T = TypeVar("_T")


class Openings:
    """Makes an :class:`Opening` for each config key. ``as_stored``: rows stay sealed, for what opens them later."""

    def __init__(self, key_ring: KeyRing | None, *, as_stored: bool = False) -> None:
        self.key_ring = key_ring
        self._as_stored = as_stored

    def of(self, store: str, key: str, stats: Stats | None = None) -> Opening:
        """The one of a config key, which counts what does not open."""
        keys = None if self.key_ring is None else self.key_ring.of(store, key)
        return Opening(store, key, keys, stats or Stats(), as_stored=self._as_stored)


class Opening:
    """Of one config key. Memory, the cache on the disk, blocked rows and dead letters keep the sealed value.

    Without ``keys`` a sealed row is refused: the application would take the sealed text for its value.
    """

    def __init__(self, store: str, key: str, keys: ListKeys | None, stats: Stats, *, as_stored: bool = False) -> None:
        self._as_stored = as_stored
        self._store = store
        self._key = key
        self._keys = keys
        self._stats = stats

    def handler(self, handler: Callable[[Change], _T]) -> Callable[[Change], _T]:
        """A handler that opens each change for the given one; one that can't be opened fails like a call of it."""

        if self._as_stored:
            return handler

        def opened(change: Change) -> _T:
            return handler(self.change(change))

        return opened

    def change(self, change: Change, *, counted: bool = True) -> Change:
        """The change with its value. ``counted``: one that can't be opened counts as such.

        Raises:
            ValueSealedError: it can't be opened.
        """
        if self._as_stored or change.deleted or change.value is None or (self._keys is None and not change.metadata):
            return change
        try:
            value, metadata = self._open(change.row_id, change.value, change.metadata)
        except ValueSealedError:
            self._stats.unopened += counted
            raise
        if value is change.value:
            return change
        return msgspec.structs.replace(change, value=value, metadata=metadata)

    def row(self, row: Row) -> Row:
        """A live row with its value.

        Raises:
            ValueSealedError: it can't be opened.
        """
        if self._as_stored:
            return row
        value, metadata = self._open(row.row_id, row.value, row.metadata)
        return row if value is row.value else msgspec.structs.replace(row, value=value, metadata=metadata)

    def _open(self, row_id: str, value: str, metadata: dict[str, str] | None) -> tuple[str, dict[str, str] | None]:
        if self._keys is None:
            check_not_sealed(self._store, self._key, row_id, metadata)
            return value, metadata
        opened = self._keys.open(row_id, value, metadata)
        return opened.value, None if opened.metadata is None else dict(opened.metadata)
