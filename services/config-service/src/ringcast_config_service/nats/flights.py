"""Records of one store that were sent, and that the broker has not answered yet."""

from __future__ import annotations

import asyncio
from typing import Final

from ringcast_config_service.nats.outgoing import Outgoing
from ringcast_config_service.nats.publisher import EventPublisher, Sent
from ringcast_config_service.repository import OutboxRecord

ACK_TIMEOUT_S: Final = 5.0
"""How long a broker that the connection has reached may take to answer."""


class Flight:
    """A record on its way."""

    __slots__ = ("message", "number", "passed_at", "record", "sent_at", "stored")

    def __init__(self, record: OutboxRecord, message: Outgoing, sent: Sent) -> None:
        self.record = record
        self.message = message
        self.number, self.stored = sent
        self.sent_at = _now()
        self.passed_at = 0.0
        """When an answer to a later message was first seen; 0 before."""


class Flights:
    """The records on their way, in the order in which they were sent, and the bytes of their payloads."""

    def __init__(self) -> None:
        self.bytes = 0
        self._flights: dict[int, Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def ids(self) -> list[int]:
        """The ids of the records."""
        return list(self._flights)

    def add(self, record: OutboxRecord, message: Outgoing, sent: Sent) -> None:
        """A record was sent."""
        self._flights[record.id] = Flight(record, message, sent)
        self.bytes += len(record.payload)

    def remove(self, record: OutboxRecord) -> Flight:
        """A record was answered, or given up."""
        self.bytes -= len(record.payload)
        return self._flights.pop(record.id)

    def give_up_overdue(self, publisher: EventPublisher) -> None:
        """Cancels answers that the broker has had time for since the connection carried the message to it."""
        now, reached = _now(), publisher.reached
        for flight in list(self._flights.values()):
            if now - flight.sent_at < ACK_TIMEOUT_S:
                return  # as all after it
            if flight.number < reached:
                flight.passed_at = flight.passed_at or now
                since = flight.passed_at
            else:
                since = publisher.reached_at
            if now - since >= ACK_TIMEOUT_S:
                flight.stored.cancel()


def _now() -> float:
    return asyncio.get_running_loop().time()
