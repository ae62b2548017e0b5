"""Whose event it is that has come."""

from __future__ import annotations

from collections.abc import Mapping

from nats.aio.msg import Msg
from ringcast_wire import ProtocolError, names

from ringcast._config import WorkerConfig
from ringcast._connection import Connection
from ringcast._log import Log
from ringcast._session import KeySession
from ringcast._stats import Stats


class Routes:
    """Hands each event to the session of its config key."""

    def __init__(
        self,
        connection: Connection,
        config: WorkerConfig,
        sessions: Mapping[str, KeySession],
        partition_count: int,
        stats: Stats,
        log: Log,
    ) -> None:
        self._connection = connection
        self._store = config.store
        self._sessions = sessions
        self._partition_count = partition_count
        self._stats = stats
        self._log = log
        self._known: dict[str, tuple[KeySession, int]] = {}

    def deliver(self, msg: Msg) -> None:
        """Takes a delivery of the consumer in."""
        route = self._known.get(msg.subject) or self._find(msg.subject)
        if route is not None:
            session, number = route
            if session.traces is not None:
                session.traces.received(number, msg)
            session.deliver(number, msg.data, msg.reply)
            return
        self._stats.unreadable += 1
        self._log.error("event is on no subject of this worker", subject=msg.subject)
        self._connection.ack([msg.reply])

    def _find(self, subject: str) -> tuple[KeySession, int] | None:
        try:
            found = names.parse_notify_subject(subject)
        except ProtocolError:
            return None
        session = self._sessions.get(found.config_key)
        if session is None or found.store != self._store or found.partition >= self._partition_count:
            return None
        self._known[subject] = route = (session, found.partition)
        return route
