"""One subscription: the updates that wait for it, what it is behind with, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypeAlias

from ringcast.hosting import METADATA_DELETED, ConfigurationItem
from ringcast_core import row_partition
from ringcast_wire import Backoff, EventLog, event_within

from ringcast_heartbeat_agent.clients import current
from ringcast_heartbeat_agent.dapr.items import KeySelection, deleted_item, memory_size
from ringcast_heartbeat_agent.errors import SealedError, StoppedError

log = EventLog(logging.getLogger(__name__))

Answer: TypeAlias = Callable[[str], None]
"""Takes why an update could not be delivered; nothing: it was."""
Place: TypeAlias = tuple[str, int]
"""A config key and a partition of it."""
_BATCH_ITEMS: Final = 256
_BATCH_BYTES: Final = 1024 * 1024
_RETRY_FIRST_S: Final = 0.1
_RETRY_MOST_S: Final = 5.0


class Since(NamedTuple):
    """A revision of a partition, and the history that it is of; an empty history is none."""

    revision: int
    history: str


class Update(NamedTuple):
    """A row as it is now."""

    row_id: str
    item: ConfigurationItem


class Changed(NamedTuple):
    """What has changed in a partition.

    ``whole``: so much that these are all live rows, and a deleted row looks like one that never was.
    """

    updates: list[Update]
    revision: int
    whole: bool
    partition_count: int
    live: frozenset[str] = frozenset()
    """The ids of all rows that are there, if it is whole."""
    history: str = ""
    """What the revision is of."""


class Changes(Protocol):
    """Where the updates come from that a subscription is behind with."""

    async def since(self, store: str, place: Place, since: Since) -> Changed:
        """What has changed in a partition after a revision.

        Raises:
            UnavailableError: NATS or the config service does not answer.
            SealedError: a value can't be opened: the subscription ends.
        """


class Subscription:
    """Updates of rows wait here until the transport takes them.

    Of a row that changes again before it was taken, the newest update stays. When more rows wait than ``max_items``, or
    more bytes than ``max_bytes``, the subscription falls behind: of the partitions that further updates are of it
    remembers the revision alone, and reads what has changed since once everything else has been taken. So nothing is
    left out, and a subscriber may be as slow as it is.
    """

    def __init__(
        self,
        store: str,
        wanted: KeySelection,
        *,
        max_items: int,
        max_bytes: int,
        api: str,
        changes: Changes | None = None,
        callback_url: str = "",
    ) -> None:
        self.id = secrets.token_hex(16)
        self.store = store
        self.wanted = wanted
        self.api = api
        self.callback_url = callback_url
        self.client = current.get()
        """The client that subscribes."""
        self.followed: set[str] = set()
        """The config keys that it hears of now."""
        self.begun = False
        """Whether it hears of all that it asked for: of keys that are new only then, or one of the first came twice."""
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._changes = changes
        self.group = ""
        """The group that it shares the rows with; empty: it hears of all."""
        self.consumer = ""
        """Its name there."""
        self.routing_key = ""
        """What the group stays in order by."""
        self.consumers: set[asyncio.Task[None]] = set()
        """What takes part there for it, one for each key."""
        self._answers: dict[str, Answer] = {}
        self._waiting: dict[str, tuple[ConfigurationItem, int]] = {}
        self._bytes = 0
        self._behind: dict[Place, Since] = {}
        self._reading: Place | None = None
        self._read: dict[Place, tuple[Since, bool]] = {}
        """Up to where it has read, and whether deletions may be missing in that. One entry a partition."""
        self._backoff = Backoff(random.random, first_s=_RETRY_FIRST_S, most_s=_RETRY_MOST_S)
        self._failing: dict[Place, float] = {}
        """Since when reads of a partition have failed."""
        self._news = asyncio.Event()
        self._ended = False
        self.error: StoppedError | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self._ended

    @property
    def bytes(self) -> int:
        """How many bytes of memory the updates that wait take at most."""
        return self._bytes

    @property
    def waiting(self) -> int:
        """How many updates wait."""
        return len(self._waiting)

    @property
    def behind(self) -> int:
        """Of how many partitions it still has to read what has changed."""
        return len(self._behind) + (self._reading is not None)

    @property
    def unread_s(self) -> dict[str, float]:
        """For how long reads of what it is behind with have failed, by config key; other threads may ask."""
        now, found = time.monotonic(), dict[str, float]()
        for (key, _), since in list(self._failing.items()):
            found[key] = max(now - since, found.get(key, 0.0))
        return found

    def offer(
        self, key: str, row_id: str, item: ConfigurationItem, *, place: Place | None = None, history: str = "",
        answer: Answer | None = None,
    ) -> None:  # fmt: skip
        """Takes an update of a row in, if it is one of the wanted rows. ``answer`` is called once it was delivered.

        ``place`` is where the row lies; without one, which is so in groups, the caller sees to the bounds.
        """
        name = self.wanted.name_of(key, row_id)
        if self._ended:
            return
        if name is None:
            if answer is not None:
                answer("")
            return
        if place is not None and self._was_read(place, int(item.version), history):
            if item.metadata[METADATA_DELETED] == "true" and self._read[place][1]:
                self.fall_behind(place, Since(int(item.version) - 1, history))
            return
        if place is not None and (place in self._behind or place == self._reading or not self._fits(name, item)):
            self.fall_behind(place, Since(int(item.version) - 1, history))
            return
        if answer is not None:
            self._answers[name] = answer
        self._put(name, item)

    def fall_behind(self, place: Place, since: Since) -> None:
        """What has changed in a partition after a revision is to be read, in place of being offered."""
        if self._ended or self._changes is None:
            return
        known = self._behind.get(place)
        # Of another history nothing can be compared: the earlier one leads to the whole partition.
        if known is None or (known.history == since.history and since.revision < known.revision):
            self._behind[place] = since
        if not self._waiting and not self._backoff.failures:
            self._news.set()

    def delivered(self, names: Iterable[str], why_not: str = "") -> None:
        """Updates have been delivered; or could not be, as ``why_not`` says."""
        if self._answers:
            for name in names:
                if (answer := self._answers.pop(name, None)) is not None:
                    answer(why_not)

    def end(self, error: StoppedError | None = None) -> None:
        """Ends it: what waits is dropped. Calling it again changes nothing."""
        if not self._ended:
            self._ended, self.error = True, error
            self._waiting.clear()
            self._behind.clear()
            self._read.clear()
            self._failing.clear()
            self._answers.clear()
            self._bytes = 0
            self._news.set()

    async def batches(self) -> AsyncIterator[dict[str, ConfigurationItem]]:
        """The updates, gathered, until it ends.

        Raises:
            StoppedError: it ended with an error.
        """
        while not self._ended:
            if self._waiting:
                yield self._take()
                continue
            self._news.clear()
            if not self._behind:
                await self._news.wait()
            elif not await self._catch_up():
                await self._pause()
        if self.error is not None:
            raise self.error

    async def _catch_up(self) -> bool:
        """Reads what has changed in one of the partitions that it is behind with; says whether that worked."""
        assert self._changes is not None
        place, since = next(iter(self._behind.items()))
        del self._behind[place]
        self._reading = place  # what is offered meanwhile is newer than the answer, or in it: it is read again
        try:
            changed = await self._changes.since(self.store, place, since)
        except SealedError as error:
            self._reading = None
            self.end(error)
            return True
        except Exception as error:  # noqa: BLE001  # whatever it is, the stream lives and it is read again
            self._reading = None
            self.fall_behind(place, since)
            if not self._backoff.failures:
                log.warning("subscription.read_failed", id=self.id, key=place[0], error=error)
            if not self._ended:
                self._failing.setdefault(place, time.monotonic())
            return False
        self._reading = None
        self._failing.pop(place, None)
        if self._is_older(place, since, changed):
            self.fall_behind(place, since)
            return False
        self._backoff.reset()
        if not self._ended:
            self._note_read(place, changed)
            self._put_changed(place, changed)
        return True

    def _is_older(self, place: Place, since: Since, changed: Changed) -> bool:
        """Whether an answer is older than what is known already, as that of an instance whose database lags is.

        Its rows would go back, and what it says is missing need not be.
        """
        read, _ = self._read.get(place, (since, False))
        return any(known.history == changed.history and changed.revision < known.revision for known in (since, read))

    def _was_read(self, place: Place, version: int, history: str) -> bool:
        """Whether a read has delivered a version as new as this: to offer it now may lead a row back."""
        read, _ = self._read.get(place, (Since(0, ""), False))
        return history == read.history and version <= read.revision

    def _note_read(self, place: Place, changed: Changed) -> None:
        read, whole = Since(changed.revision, changed.history), changed.whole
        before, was_whole = self._read.get(place, (read, False))
        if before.history == read.history:
            read, whole = max(before, read), whole or was_whole
        self._read[place] = read, whole

    def _put_changed(self, place: Place, changed: Changed) -> None:
        key, partition = place
        for update in changed.updates:
            name = self.wanted.name_of(key, update.row_id)
            if name is not None:
                self._put(name, update.item)
        if changed.whole and changed.partition_count:  # of the rows that are named it is known which are gone
            for row_id in self.wanted.filters_of(key):
                if row_id not in changed.live and row_partition(row_id, changed.partition_count) == partition:
                    self._put(f"{key}/{row_id}", deleted_item(key, partition, changed.revision))

    async def _pause(self) -> None:
        """Waits before the next try, unless something else is to be done."""
        self._news.clear()
        await event_within(self._news, self._backoff.next_s())

    def _fits(self, name: str, item: ConfigurationItem) -> bool:
        held = self._waiting.get(name)
        size = self._bytes + memory_size(name, item) - (held[1] if held is not None else 0)
        if held is None and len(self._waiting) >= self._max_items:
            return False
        return size <= self._max_bytes or not self._waiting

    def _put(self, name: str, item: ConfigurationItem) -> None:
        size = memory_size(name, item)
        self._bytes += size - self._waiting.get(name, (item, 0))[1]
        self._waiting[name] = (item, size)
        self._news.set()

    def _take(self) -> dict[str, ConfigurationItem]:
        batch: dict[str, ConfigurationItem] = {}
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
