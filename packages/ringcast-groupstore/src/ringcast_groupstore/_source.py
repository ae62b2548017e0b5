"""Where the reading verbs read: the last commit, a snapshot, or an open transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NoReturn

from ringcast_groupstore._types import Limits


class Source(ABC):
    """Rows of a store as of some moment. Group names are those in the file, with the prefix of their namespace."""

    __slots__ = ("limits",)

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    @abstractmethod
    def now(self) -> int:
        """Milliseconds since 1970, by which keys expire."""

    @abstractmethod
    def rows(self, sql: str, params: tuple[object, ...], max_bytes: int | None = None) -> list[Any]:
        """The rows of one statement, on one snapshot; with ``max_bytes``, only the first whose values come to that."""

    @abstractmethod
    def each(self, sql: str, each: Iterable[tuple[object, ...]]) -> list[Any]:
        """The rows of one statement with one set of parameters after the other, on one snapshot."""

    @abstractmethod
    def report(self, group: str, key: str) -> NoReturn:
        """Raises StoreCorruptError for a key that is not what was written, and remembers it."""

    @abstractmethod
    def expired(self, group: str, key: str) -> None:
        """Called for a key that a read has found expired: it may be removed."""
