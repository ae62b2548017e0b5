"""The window of a group: its unsettled messages, and the share of each consumer."""

from __future__ import annotations

from collections import Counter

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.consumer_session import size_of
from ringcast_heartbeat_agent.dispatch.shares import Shares


class Message:
    """A change that is not settled. ``key``: its routing key. ``owner``: the consumer whose share it counts towards.

    ``gone``: its partition has been another host's since, which delivers it.
    """

    __slots__ = ("change", "delivered", "gone", "key", "owner", "size")

    def __init__(self, change: Change, key: str, owner: str | None) -> None:
        self.change = change
        self.key = key
        self.owner = owner
        self.size = size_of(change)
        self.delivered = False
        self.gone = False


class Window:
    """The unsettled messages, at most one for each row, and how much room is left for more.

    Any consumer may use the first half of the window. Of the other half each consumer may use an equal share, so that
    consumers that acknowledge nothing can't fill all of it.

    Args:
        size: how many messages there is room for.
        max_bytes: and about how many bytes. A window without messages takes one of any size.
    """

    def __init__(self, size: int, max_bytes: int) -> None:
        self.messages: dict[int, Message] = {}
        """By offset."""
        self.offsets: dict[str, int] = {}
        """The offset of a row's message, by row id."""
        self.last = 0
        """The highest offset so far."""
        self.bytes = 0
        """About the size of all messages."""
        self.size = size
        self.shares = Shares()
        """The owners of rows."""
        self._max_bytes = max_bytes
        self._owner_messages: Counter[str | None] = Counter()
        self._owner_bytes: Counter[str | None] = Counter()

    def has_room(self, owner: str | None) -> bool:
        """Whether a message of this owner fits."""
        count = len(self.messages)
        if count >= self.size or (count and self.bytes >= self._max_bytes):
            return False
        consumers = len(self.shares)
        if consumers < 2 or (2 * count < self.size and 2 * self.bytes < self._max_bytes):
            return True
        part = 2 * consumers
        return (
            self._owner_messages[owner] < max(1, self.size // part)
            and self._owner_bytes[owner] <= self._max_bytes // part
        )

    def add(self, change: Change, key: str, owner: str | None) -> None:
        """Adds a message under the next offset. The row must have none."""
        self.last += 1
        message = self.messages[self.last] = Message(change, key, owner)
        self.offsets[change.row_id] = self.last
        self.bytes += message.size
        self._owner_messages[owner] += 1
        self._owner_bytes[owner] += message.size

    def replace(self, message: Message, change: Change) -> None:
        """A newer change of the row takes the place of one that was not delivered."""
        more = size_of(change) - message.size
        message.change, message.size = change, message.size + more
        self.bytes += more
        self._owner_bytes[message.owner] += more

    def remove(self, offset: int) -> Message | None:
        """Removes a message and returns it; ``None`` if there is none of this offset."""
        message = self.messages.pop(offset, None)
        if message is not None:
            del self.offsets[message.change.row_id]
            self.bytes -= message.size
            self._owner_messages[message.owner] -= 1
            self._owner_bytes[message.owner] -= message.size
        return message

    def share(self, shares: Shares) -> None:
        """The consumers have changed: each message counts towards its new owner."""
        self.shares = shares
        self._owner_messages.clear()
        self._owner_bytes.clear()
        messages = list(self.messages.values())
        for message, owner in zip(messages, shares.owners([one.change.row_id for one in messages]), strict=True):
            message.owner = owner
            self._owner_messages[owner] += 1
            self._owner_bytes[owner] += message.size

    def clear(self) -> None:
        """Removes every message. Offsets go on where they were."""
        for counted in (self.messages, self.offsets, self._owner_messages, self._owner_bytes):
            counted.clear()
        self.bytes = 0
