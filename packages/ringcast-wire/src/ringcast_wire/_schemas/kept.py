"""Schemas that are ready to check values, as many as memory is to be taken for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_EACH_CHARS: Final = 1_024
"""As how much text each counts beside its definition: the smallest of Protobuf takes 40 KB."""


class KeptSchemas(Generic[K, V]):
    """Those that were used last, whose definitions have up to ``most_chars`` characters together. Any number of threads
    may use it.

    Memory goes by the text: a character takes up to 140 bytes, of a descriptor set with messages of one field. The one
    that came last is kept in any case.
    """

    def __init__(self, most_chars: int) -> None:
        self._most_chars = most_chars
        self._chars = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The one with this key, if it is kept."""
        with self._lock:
            if (found := self._kept.get(key)) is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: K, schema: V, definition: str) -> None:
        """Keeps one, and gives up those that were not used for longest."""
        chars = len(definition) + _EACH_CHARS
        with self._lock:
            self._chars += chars - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = schema, chars
            while self._chars > self._most_chars and len(self._kept) > 1:
                _, (_, given_up) = self._kept.popitem(last=False)
                self._chars -= given_up
