"""Routes events to the sessions of their config keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringcast_wire import EventLog, ProtocolError, names

from ringcast._bus.bus import Bus, Delivery
from ringcast._common.config import WorkerConfig
from ringcast._common.stats import Stats
from ringcast._worker.session import KeySession


class Routes:
    """Hands each event to the session of its config key."""

    def __init__(
        self,
        bus: Bus,
        config: WorkerConfig,
        sessions: Mapping[str, KeySession],
        partition_count: int,
        stats: Stats,
        log: EventLog,
    ) -> None:
        self._bus = bus
        self._store = config.store
        self._sessions = sessions
        self._partition_count = partition_count
        self._stats = stats
        self._log = log
        self._known: dict[str, tuple[KeySession, int]] = {}

    def deliver(self, messages: Iterable[Delivery]) -> None:
        """Takes messages of a consumer in; after the last of them each session does what is due."""
        touched: dict[KeySession, None] = {}
        known = self._known
        for delivery in messages:
            route = known.get(delivery.subject) or self._find(delivery.subject)
            if route is None:
                self._stats.unreadable += 1
                self._log.error("event.unknown_subject", subject=delivery.subject)
                self._bus.acks.add([delivery.reply])
                continue
            session, number = route
            if session.traces is not None:
                session.traces.received(number, delivery)
            session.take_in(number, delivery.data, delivery.reply)
            touched[session] = None
        for session in touched:
            session.pump()

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
