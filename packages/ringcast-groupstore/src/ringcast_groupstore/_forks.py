"""A fork copies connections that SQLite forbids to use in the child: there every store counts as closed."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Forked(Protocol):
    """A store, as a fork sees it."""

    def abandon(self) -> list[Any]:
        """In the child: it counts as closed. Returns what must stay open until the child ends."""


_open: weakref.WeakSet[Forked] = weakref.WeakSet()
_abandoned: list[Any] = []
"""Closing them in the child could drop locks of the parent, or trim its log: they stay open until the child ends."""


def close_in_children(store: Forked) -> None:
    """From now on a child that is forked off can't use ``store``."""
    _open.add(store)


def _in_child() -> None:
    for store in list(_open):
        _abandoned.extend(store.abandon())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
