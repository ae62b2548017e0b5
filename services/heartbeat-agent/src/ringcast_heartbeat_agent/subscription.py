"""One subscription: the updates that wait for it, and how it ends."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, TypeAlias

from ringcast_heartbeat_agent.clients import current
from ringcast_heartbeat_agent.errors import OverflowedError, StoppedError
from ringcast_heartbeat_agent.items import Item, Wanted

Answer: TypeAlias = Callable[[str], None]
"""Takes why an update could not be delivered; nothing: it was."""
_BATCH_ITEMS: Final = 256
_BATCH_BYTES: Final = 1024 * 1024


class Subscription:
    """Updates of rows wait here until the transport takes them.

    Of a row that changes again before it was taken, the newest update stays. When more rows wait than ``max_items``,
    or more bytes than ``max_bytes`` (one update is always let in), the subscription ends with an error: nothing is left
    out silently.
    """

    def __init__(
        self, store: str, wanted: Wanted, *, max_items: int, max_bytes: int, api: str, callback_url: str = ""
    ) -> None:
        self.id = secrets.token_hex(16)
        self.store = store
        self.wanted = wanted
        self.api = api
        self.callback_url = callback_url
        self.client = current.get()
        """Who subscribes."""
        self.followed: set[str] = set()
        """The config keys that it hears of now."""
        self._max_items = max_items
        self._max_bytes = max_bytes
        self.group = ""
        """The group that it shares the rows with; empty: it hears of all."""
        self.consumer = ""
        """Its name there."""
        self.members: set[asyncio.Task[None]] = set()
        """What takes part there for it, one for each key."""
        self._answers: dict[str, Answer] = {}
        self._waiting: dict[str, tuple[Item, int]] = {}
        self._bytes = 0
        self._news = asyncio.Event()
        self._ended = False
        self.error: StoppedError | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._ended

    @property
    def waiting(self) -> int:
        """How many updates wait."""
        return len(self._waiting)

    def offer(self, key: str, row_id: str, item: Item, *, answer: Answer | None = None) -> None:
        """Takes an update of a row in, if it is one of the wanted rows. ``answer`` is told when it was delivered."""
        name = self.wanted.name_of(key, row_id)
        if self._ended:
            return
        if name is None:
            if answer is not None:
                answer("")
            return
        if answer is not None:
            self._answers[name] = answer
        size = item.size + len(name)
        self._bytes += size - self._waiting.get(name, (item, 0))[1]
        self._waiting[name] = (item, size)
        if len(self._waiting) > self._max_items or (self._bytes > self._max_bytes and len(self._waiting) > 1):
            self.end(
                OverflowedError(
                    f"updates of store {self.store} were not taken in time: {len(self._waiting)} with {self._bytes} "
                    f"bytes wait, at most {self._max_items} with {self._max_bytes} may; subscribe and read again"
                )
            )
            return
        self._news.set()

    def delivered(self, names: Iterable[str], why_not: str = "") -> None:
        """Updates have been delivered; or could not be, as ``why_not`` says."""
        if self._answers:
            for name in names:
                if (answer := self._answers.pop(name, None)) is not None:
                    answer(why_not)

    def end(self, error: StoppedError | None = None) -> None:
        """Ends it: what waits is let go. Calling it again changes nothing."""
        if not self._ended:
            self._ended, self.error = True, error
            self._waiting.clear()
            self._answers.clear()
            self._bytes = 0
            self._news.set()

    async def batches(self) -> AsyncIterator[dict[str, Item]]:
        """The updates, gathered, until it ends.

        Raises:
            StoppedError: it ended with an error.
        """
        while not self._ended:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
                continue
            yield self._take()
        if self.error is not None:
            raise self.error

    def _take(self) -> dict[str, Item]:
        batch: dict[str, Item] = {}
        total = 0
        for name, (item, size) in self._waiting.items():
            if batch and (len(batch) >= _BATCH_ITEMS or total + size > _BATCH_BYTES):
                break
            batch[name] = item
            total += size
        for name in batch:
            del self._waiting[name]
        self._bytes -= total
        return batch
