"""Who has a file open: what is open is not renamed, for its owner would go on writing to what nobody opens again."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from ringcast_sqlite import StoreOpenError, try_lock

_LOCKS = True
try:
    import fcntl
except ImportError:  # not on Windows, where an open file can't be renamed either
    _LOCKS = False

SUFFIX = "-open"
_POLL_S = 0.01


class Presence:
    """A shared lock on a file of its own beside the database, from before it is opened until it is closed.

    The lock is not on the database: to close any descriptor of that would drop the locks of SQLite in this process.
    The file is empty, and stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + SUFFIX)
        self._descriptor: int | None = None
        self._closing: weakref.finalize[..., Presence] | None = None

    def begin(self) -> None:
        """From now on nobody renames the database.

        Raises:
            StoreOpenError: the lock's file can't be made.
        """
        if not _LOCKS or self._descriptor is not None or not self._path.parent.is_dir():
            return
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._closing = weakref.finalize(self, os.close, self._descriptor)  # of a store that is forgotten
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        except OSError as error:
            self.end()
            raise StoreOpenError(f"database file {self._path} can't be opened: {error.strerror}") from error

    def alone(self, within_s: float, unless: Callable[[], bool]) -> bool:
        """Waits until nobody else is here; false after ``within_s``, or as soon as ``unless`` is true."""
        if not _LOCKS or self._descriptor is None:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        deadline = time.monotonic() + within_s
        while not unless():
            if try_lock(self._descriptor):
                return not unless()
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return False

    def share(self) -> None:
        """Lets others be here again."""
        if _LOCKS and self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def end(self) -> None:
        """The database is closed. Calling it again is harmless."""
        if self._closing is not None:
            self._closing()
        self._descriptor = self._closing = None
