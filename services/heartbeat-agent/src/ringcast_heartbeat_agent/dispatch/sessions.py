"""The consumers of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from ringcast_wire import EventLog

from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.errors import StoppedError

log = EventLog(logging.getLogger(__name__))


class Sessions:
    """The consumers of one group, by the number that the core has given each. ``title``: the group in log lines."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._sessions: dict[int, ConsumerSession] = {}
        self.empty_since: float | None = asyncio.get_running_loop().time()
        """Since when there is none."""

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ConsumerSession]:
        return iter(list(self._sessions.values()))

    def __contains__(self, consumer: ConsumerSession) -> bool:
        return self._sessions.get(consumer.number) is consumer

    def __getitem__(self, number: int) -> ConsumerSession:
        return self._sessions[number]

    def named(self, name: str) -> ConsumerSession | None:
        """The consumer of a name, if it is not leaving."""
        return next((one for one in self._sessions.values() if one.name == name and not one.leaving), None)

    def add(self, consumer: ConsumerSession) -> ConsumerSession:
        """A consumer takes part."""
        self._sessions[consumer.number] = consumer
        self.empty_since = None
        return consumer

    def end(self, number: int, error: StoppedError | None) -> ConsumerSession | None:
        """Ends a consumer, and forgets it. Returns ``None`` if there is none of this number."""
        consumer = self._sessions.pop(number, None)
        if consumer is not None:
            consumer.end(error)
            if error is not None:
                log.warning("consumer.ended", consumer=consumer.name, group=self._title, error=error)
        if not self._sessions:
            self.empty_since = asyncio.get_running_loop().time()
        return consumer
