"""Publishes dead letters, and waits until the stream of their store has them."""

from __future__ import annotations

from ringcast_wire import limits, names

from ringcast._bus.bus import Bus


class DeadLetterPublisher:
    """Publishes the dead letters of a config key."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(self, subject: str, body: bytes, message_id: str) -> None:
        """Publishes one; one of the same id that is there already will do."""
        await self._bus.store(subject, body, {names.HEADER_MSG_ID: message_id})

    @property
    def max_bytes(self) -> int:
        """What the server takes, less room for the headers."""
        return self._bus.max_message_bytes - limits.CHUNK_HEADROOM_BYTES
