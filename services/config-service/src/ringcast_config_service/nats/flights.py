"""Records of one store that were sent, and that the broker has not answered yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ringcast_config_service.nats.outgoing import Outgoing
from ringcast_config_service.nats.publisher import EventPublisher, Sent
from ringcast_config_service.repository import OutboxRecord

ACK_TIMEOUT_S: Final = 5.0
"""How long a broker that the connection has reached may take to answer, of the time in which this process runs."""


class Flight:
    """A record on its way."""

    __slots__ = ("message", "number", "passed_at", "record", "sent_at", "stored")

    def __init__(self, record: OutboxRecord, message: Outgoing, sent: Sent, sent_at: float) -> None:
        self.record = record
        self.message = message
        self.number, self.stored = sent
        self.sent_at = sent_at
        self.passed_at: float | None = None
        """When an answer to a later message was first seen."""


class Flights:
    """The records on their way, in the order in which they were sent, and the bytes of their payloads.

    Time in which this process stands still does not count (a machine is suspended, or has no core for it): the answers
    that came meanwhile are not read yet.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """``now``: a monotonic clock, in seconds."""
        self.bytes = 0
        self._flights: dict[int, Flight] = {}
        self._clock_s = 0.0
        self._now = now
        self._looked_at = now()
        self._reached = 0
        self._reached_at = 0.0

    def __len__(self) -> int:
        return len(self._flights)

    def ids(self) -> list[int]:
        """The ids of the records."""
        return list(self._flights)

    def add(self, record: OutboxRecord, message: Outgoing, sent: Sent) -> None:
        """A record was sent."""
        self._flights[record.id] = Flight(record, message, sent, self._clock_s)
        self.bytes += len(record.payload)

    def remove(self, record: OutboxRecord) -> Flight:
        """A record was answered, or given up."""
        self.bytes -= len(record.payload)
        return self._flights.pop(record.id)

    def give_up_overdue(self, publisher: EventPublisher, most_s: float) -> None:
        """Cancels answers that the broker has had time for since the connection carried the message to it.

        Between two calls, ``most_s`` at most count: who calls does so more often as long as the process runs.
        """
        looked_at = self._now()
        self._clock_s += min(looked_at - self._looked_at, most_s)
        self._looked_at = looked_at
        now = self._clock_s
        if publisher.reached > self._reached:
            self._reached, self._reached_at = publisher.reached, now
        for flight in list(self._flights.values()):
            if now - flight.sent_at < ACK_TIMEOUT_S:
                return  # as all after it
            if flight.number < self._reached:
                if flight.passed_at is None:
                    flight.passed_at = now
                since = flight.passed_at
            else:
                since = self._reached_at
            if now - since >= ACK_TIMEOUT_S:
                flight.stored.cancel()
