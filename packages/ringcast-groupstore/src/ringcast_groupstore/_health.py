"""What is known of a file's health, and what the errors of SQLite over it mean to a caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ringcast_sqlite import StoreCorruptError, StoreFullError, translate

from ringcast_groupstore._errors import InputError


class Health:
    """Of one file. Damage is remembered once it is met, for nothing may be written to a damaged file."""

    def __init__(self, path: Path, max_file_bytes: int) -> None:
        self._path = path
        self._max_file_bytes = max_file_bytes
        self.damage: StoreCorruptError | None = None

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Around what works on the file, and nothing else: errors of the caller's own would be taken for the file's."""
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:
            self.explain(error)
            raise

    def explain(self, error: BaseException) -> None:
        """Raises what an error of the file or of a text means to a caller; returns for any other."""
        if isinstance(error, UnicodeEncodeError):
            raise InputError(f"{error.object[:40]!a} is no Unicode text: it has half of a surrogate pair") from None
        meant = translate(self._path, error) if isinstance(error, sqlite3.Error | UnicodeDecodeError) else None
        if isinstance(meant, StoreCorruptError):
            self.damage = meant
        if isinstance(meant, StoreFullError):
            meant = StoreFullError(f"{meant}; max_file_bytes is {self._max_file_bytes}")
        if meant is not None:
            raise meant from error

    def report(self, group: str, key: str) -> NoReturn:
        """Raises StoreCorruptError for a key that is not what was written."""
        self.damage = StoreCorruptError(
            f"database {self._path} is damaged: key {key!r} of group {group!r} does not fit its checksum"
        )
        raise self.damage

    def check_writable(self) -> None:
        """Raises StoreCorruptError once damage was met."""
        if self.damage is not None:
            raise StoreCorruptError(f"store {self._path} takes no more writes: {self.damage}")
