"""A fork copies connections that SQLite forbids to use in the child: there every store counts as closed."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringcast_groupstore._store import GroupStore

_stores: weakref.WeakSet[GroupStore] = weakref.WeakSet()
_abandoned: list[Any] = []
"""Closing them in the child could drop locks of the parent, or trim its log: they stay open until the child ends."""


def close_in_children(store: GroupStore) -> None:
    """From now on a child that is forked off can't use ``store``."""
    _stores.add(store)


def _in_child() -> None:
    for store in list(_stores):
        if not store._closed:
            store._closed = True
            store._lock = threading.RLock()  # another thread of the parent may have held it
            store._presence.end()
            _abandoned.append((store._writer, store._cursor, store._readers.abandon()))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
