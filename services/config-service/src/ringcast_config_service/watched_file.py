"""A file that is read again when it has changed."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ringcast_wire import EventLog, InvalidInputError

T = TypeVar("T")

log = EventLog(logging.getLogger(__name__))

_SETTLED_S: Final = 2.0
"""A file that was changed less long ago may change again without another time: file systems count in steps."""
_AGAIN_S: Final = 1.0
"""After so long such a file is read again, and one that could not be used."""
_QUIET_S: Final = 60.0
"""From one line about a problem to the next."""


class WatchedFile(Generic[T]):
    """What a file holds. One that can't be used is logged, and what was before stays.

    ``read`` raises :class:`InvalidInputError` where it can't be used. ``nothing`` is what counts before the first time.
    """

    def __init__(self, path: str, read: Callable[[str], T], nothing: T) -> None:
        self._path = path
        self._read = read
        self._held = nothing
        self._seen: tuple[int, ...] = ()
        self._again_at = 0.0
        self._problem = ""
        self._quiet_until = 0.0
        self.version = 0
        """Grows whenever :meth:`now` finds something else than before."""

    @property
    def unusable(self) -> bool:
        """Whether it could not be used when :meth:`now` last looked at it, and what it held before counts."""
        return bool(self._problem)

    def now(self) -> T:
        """What it holds now; each call looks whether the file has changed."""
        now = time.monotonic()
        try:
            stat = os.stat(self._path)  # a Path costs each call more than the look itself
            seen = stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size
            if seen != self._seen or now >= self._again_at:
                # Also when it can't be used: no call reads it again before it changes, or some time has gone by.
                self._seen, self._again_at = seen, now + _AGAIN_S
                held = self._read(self._path)
                if held != self._held:
                    self._held = held
                    self.version += 1
                self._problem = ""
                if time.time() - stat.st_ctime > _SETTLED_S:
                    self._again_at = math.inf
        except (OSError, InvalidInputError) as error:
            self._complain(str(error), now)
        return self._held

    def _complain(self, problem: str, now: float) -> None:
        """Each problem once a minute: every call of every client comes here."""
        if problem != self._problem or now >= self._quiet_until:
            self._problem, self._quiet_until = problem, now + _QUIET_S
            log.error("login_file.unreadable", error=problem)
