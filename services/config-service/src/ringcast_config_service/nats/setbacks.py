"""The failures of a lane, and when it tries again."""

from __future__ import annotations

import asyncio
import logging
import random

from ringcast_wire import Backoff, EventLog, field_text

from ringcast_config_service.repository import OutboxRecord
from ringcast_config_service.telemetry import Measures

log = EventLog(logging.getLogger(__name__))


class Setbacks:
    """Counts the failures of one lane, logs the first of them and the end of all, and says when the next try is due."""

    def __init__(self, store: str, measures: Measures) -> None:
        self._store = store
        self._measures = measures
        # Full jitter, as in a sweep.
        self._backoff = Backoff(random.random, first_s=0.1, most_s=5.0, least=0.0)
        self._retry_at = 0.0
        self._warned = False

    def __bool__(self) -> bool:
        """Whether the last try has failed."""
        return bool(self._backoff.failures)

    @property
    def wait_s(self) -> float:
        """For how long nothing is tried."""
        return max(0.0, self._retry_at - _now())

    def failed(self, record: OutboxRecord, reason: str, error: BaseException | None) -> None:
        """A record was not taken. What fails together backs off once."""
        self._measures.publish_failures[reason] += 1
        if not self._warned:
            self._warned = True
            text = "" if error is None else field_text(error)
            log.warning("relay.failing", store=self._store, subject=record.subject, reason=reason, error=text)
        self.back_off()

    def back_off(self) -> None:
        """Nothing is tried for a while, unless that is so already."""
        if _now() >= self._retry_at:
            self._retry_at = _now() + self._backoff.next_s()

    def retry_now(self) -> None:
        """What failed is tried again at once."""
        self._retry_at = 0.0

    def succeeded(self) -> None:
        """A record was taken."""
        self._backoff.reset()
        self._retry_at = 0.0

    def over(self) -> None:
        """Nothing is left of what failed."""
        if self._warned:
            self._warned = False
            log.info("relay.resumed", store=self._store)


def _now() -> float:
    return asyncio.get_running_loop().time()
