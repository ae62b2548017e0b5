"""One consumer of a group: what it has been given and has not answered."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

from ringcast import Change

from ringcast_heartbeat_agent.clients import current
from ringcast_heartbeat_agent.errors import StoppedError

_BATCH_ITEMS: Final = 256
_BATCH_BYTES: Final = 1024 * 1024
_GATHER_ITEMS: Final = 64
_QUIET_TURNS: Final = 4
"""Turns of the event loop without another delivery after which what there is goes out."""
_SPACING_S: Final = 0.005
_MANY: Final = 4
"""After a frame of so many deliveries the next one waits: more is to come, and can join it."""
_OVERHEAD: Final = 128


def size_of(change: Change) -> int:
    """About how many bytes a change has."""
    size = len(change.row_id) + len(change.value or "") + _OVERHEAD
    if change.metadata:
        size += sum(len(name) + len(text) for name, text in change.metadata.items())
    return size


class Delivery(NamedTuple):
    """A change for a consumer; ``offset`` and ``attempt`` name it in the answer, ``size`` is about its bytes."""

    offset: int
    attempt: int
    change: Change
    size: int


class Frame(NamedTuple):
    """What goes to a consumer next: deliveries, and the number of the ping that is to be answered."""

    deliveries: list[Delivery]
    pong: int | None


class ConsumerSession:
    """A consumer, from its registration until it has left or is evicted; connections may come and go meanwhile.

    What waits to be sent is bounded by the capacity: the caller of :meth:`give` sees to that.
    """

    def __init__(self, number: int, name: str, filters: Sequence[str], capacity: int, api: str) -> None:
        self.number = number
        self.name = name
        self.filters = tuple(filters)
        self.capacity = capacity
        self.api = api
        self.client = current.get()
        """Whose it is."""
        self.session = secrets.token_hex(16)
        self.connected = True
        self.leaving = False
        self._outbox: deque[Delivery] = deque()
        self._flight: dict[int, Delivery] = {}
        self._pong: int | None = None
        self._next_at = 0.0
        self._news = asyncio.Event()
        self._ended = False
        self.over = asyncio.Event()
        """Set once nothing more comes."""
        self.error: StoppedError | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._ended

    @property
    def unsent(self) -> int:
        """How many deliveries wait for the connection, those that have timed out meanwhile included."""
        return len(self._outbox)

    def give(self, delivery: Delivery, *, to_be_answered: bool = True) -> None:
        """Has something delivered."""
        if to_be_answered:
            self._flight[delivery.offset] = delivery
            if len(self._outbox) > 2 * self.capacity:  # most of it has timed out, while the connection took nothing
                self._outbox = deque(held for held in self._outbox if self._flight.get(held.offset) is held)
        self._outbox.append(delivery)
        self._news.set()

    def answered(self, offset: int) -> None:
        """What it has in flight under this offset is answered, or has had its time: it is not sent (again)."""
        self._flight.pop(offset, None)

    @property
    def partitions_in_flight(self) -> set[int]:
        """The partitions of what it has not answered."""
        return {delivery.change.partition for delivery in self._flight.values()}

    def pong(self, number: int) -> None:
        """Has a ping answered; of several the newest."""
        self._pong = number
        self._news.set()

    def resume(self) -> None:
        """A new connection of the same process: what is unanswered goes out again, in order."""
        self.connected = True
        self._outbox = deque(self._flight[offset] for offset in sorted(self._flight))
        self._pong = None
        self._news.set()

    def end(self, error: StoppedError | None = None) -> None:
        """Ends it: what waits is dropped. Calling it again changes nothing."""
        if not self._ended:
            self._ended, self.error = True, error
            self.connected = False
            self._outbox.clear()
            self._flight.clear()
            self._news.set()
            self.over.set()

    def status(self, *, in_flight: int, waiting: int) -> dict[str, Any]:
        """How it stands, with what its group knows of its deliveries."""
        return {
            "name": self.name,
            "api": self.api,
            "connected": self.connected,
            "leaving": self.leaving,
            "filters": list(self.filters),
            "capacity": self.capacity,
            "in_flight": in_flight,
            "waiting": waiting,
        }

    async def frames(self) -> AsyncIterator[Frame]:
        """What is to be sent, until the end.

        Raises:
            StoppedError: it ended with an error.
        """
        while not self._ended:
            await self._gather()
            frame = Frame(self._take(), self._pong)
            self._pong = None
            if frame.deliveries or frame.pong is not None:
                yield frame
                if len(frame.deliveries) >= _MANY:
                    self._next_at = asyncio.get_running_loop().time() + _SPACING_S
            elif not self._outbox:
                self._news.clear()
                await self._news.wait()
        if self.error is not None:
            raise self.error

    async def _gather(self) -> None:
        """Lets more come while more does: a frame costs both sides far more than a delivery.

        Turns of the event loop take as long as there is work, so this waits hardly at all where there is little.
        """
        pause_s = self._next_at - asyncio.get_running_loop().time()
        if pause_s > 0 and len(self._outbox) < _GATHER_ITEMS:
            await asyncio.sleep(pause_s)
        before, quiet = 0, 0
        while quiet < _QUIET_TURNS and len(self._outbox) < _GATHER_ITEMS:
            quiet = quiet + 1 if len(self._outbox) == before else 0
            before = len(self._outbox)
            if not before:
                return
            await asyncio.sleep(0)

    def _take(self) -> list[Delivery]:
        batch: list[Delivery] = []
        total = 0
        while self._outbox and len(batch) < _BATCH_ITEMS and total < _BATCH_BYTES:
            delivery = self._outbox.popleft()
            if delivery.attempt and self._flight.get(delivery.offset) is not delivery:
                continue  # answered for, or timed out, before it could be sent
            batch.append(delivery)
            total += delivery.size
        return batch
