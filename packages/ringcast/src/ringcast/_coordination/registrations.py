"""Which keys of a worker could not be registered, why, and when they are tried again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from ringcast_wire import Backoff, LimitExceededError, field_text, limits

from ringcast._bus.buckets import ConflictError
from ringcast._bus.refusals import RefusedError

_PATIENCE: Final = 3
"""Failures in a row that are not reported: NATS has just lost a server."""
_CONFLICTS: Final = limits.MAX_WORKERS_PER_KEY
"""The same where another worker was faster: of many that start at once, each may be so once."""


class Registrations:
    """A pause for each key that fails. ``report`` gets a key and why it can't be registered, or nothing once it is."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._pauses: dict[str, Backoff] = {}
        self._retry_at: dict[str, float] = {}
        self._refused: set[str] = set()

    def due(self, key: str) -> bool:
        """Whether the key may be tried now."""
        retry_at = self._retry_at.get(key)
        return retry_at is None or asyncio.get_running_loop().time() >= retry_at

    def failures(self, key: str) -> int:
        """How often the key has failed in a row."""
        return self._pauses[key].failures if key in self._pauses else 0

    def failed(self, key: str, error: Exception) -> None:
        """It could not be registered."""
        most_s = 1.0 if isinstance(error, ConflictError) else 5.0
        pause = self._pauses.setdefault(key, Backoff(random.random, first_s=0.1, most_s=most_s))
        self._retry_at[key] = asyncio.get_running_loop().time() + pause.next_s()
        if isinstance(error, RefusedError | LimitExceededError):
            self._refused.add(key)
            self._report(key, str(error))
        elif pause.failures > (_CONFLICTS if isinstance(error, ConflictError) else _PATIENCE):
            self._report(key, field_text(error))

    def done(self, key: str) -> None:
        """It is registered."""
        self._refused.discard(key)
        self._retry_at.pop(key, None)
        if self._pauses.pop(key, None) is not None:
            self._report(key, "")

    @property
    def failing(self) -> bool:
        """Whether a key waits for another try that may succeed; a refused key does not count."""
        return bool(self._pauses.keys() - self._refused)

    @property
    def retry_at(self) -> float | None:
        """When the next key is due."""
        return min(self._retry_at.values(), default=None)

    def retry_now(self) -> None:
        """The connection is back: all are due."""
        self._retry_at.clear()
