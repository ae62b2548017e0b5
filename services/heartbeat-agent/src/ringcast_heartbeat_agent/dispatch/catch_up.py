"""What a group missed while it was away: it is read, and comes as changes."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from ringcast import Change
from ringcast_wire import EventLog, PartitionRows, Row, UnknownKeyError

from ringcast_heartbeat_agent.dispatch.positions import Place
from ringcast_heartbeat_agent.dispatch.seals import Settled

log = EventLog(logging.getLogger(__name__))

_RETRY_FIRST_S: Final = 0.1
_RETRY_MOST_S: Final = 5.0


class Reader(Protocol):
    """Where rows are read."""

    async def partition(
        self, store: str, key: str, partition: int, *, since: int | None = None, history: str = ""
    ) -> tuple[PartitionRows, str]:
        """What has changed in a partition since a revision, and the history that this is of."""


class _ReadAhead(NamedTuple):
    history: str
    revision: int
    live: frozenset[str] | None
    """The live rows, where the reply does not list deleted ones."""


class _Reading(NamedTuple):
    since: Settled
    rows: deque[Row]
    """What was read and is still to be taken."""


class CatchUp:
    """Reads what one group missed, one partition after the other.

    Args:
        reader: where it is read.
        turns: bounds the reads of all groups that are under way.
        place: the group.
        take: takes a change that was missed.
    """

    def __init__(self, reader: Reader, turns: asyncio.Semaphore, place: Place, take: Callable[[Change], None]) -> None:
        self._reader = reader
        self._turns = turns
        self._place = place
        self._take = take
        self._room = 1
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._unread: dict[int, Settled] = {}
        """Since when a partition is to be read."""
        self._floors: dict[int, Settled] = {}
        """What was settled of a partition before this group had it: up to there only a read tells of it."""
        self._fresh: dict[str, int] = {}
        """The versions that came while partitions are unread: what is read must not lead a row back."""
        self._read_ahead: dict[int, _ReadAhead] = {}
        """What was read, until the worker is as far: the changes up to there were delivered."""
        self._reading: _Reading | None = None
        """The partition of which an answer has come, as long as there is no room for all of it."""
        self._failing_since: float | None = None
        self.done = 0
        """Partitions that were read to the end."""

    def __contains__(self, partition: int) -> bool:
        return partition in self._unread

    def __len__(self) -> int:
        """Partitions that are still to be read."""
        return len(self._unread)

    @property
    def unread_s(self) -> float:
        """For how long reads have failed."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def add(self, partition: int, since: Settled) -> None:
        """A partition is to be read: what has changed ``since``, and what was not settled then."""
        self._unread[partition] = Settled(*since)  # an object of its own: no read that is under way is of it

    def dropped(self, change: Change) -> None:
        """A change that was taken is not delivered after all: what is read of its row counts again."""
        if self._fresh.get(change.row_id, 0) <= change.version:
            self._fresh.pop(change.row_id, None)

    def read_again(self, partition: int) -> None:
        """A change that came while the partition was read was dropped: the answer may be older than that."""
        if (since := self._unread.get(partition)) is not None:
            self.add(partition, since)

    def pass_over(self, partition: int, until: Settled) -> None:
        """What the worker tells of a partition up to there is not to be taken: it was settled, or is read."""
        self._floors[partition] = until

    def lose(self, partition: int) -> None:
        """The group does not have a partition any more."""
        for known in (self._floors, self._read_ahead, self._unread):
            known.pop(partition, None)

    def reached(self, partition: int, applied: int, history: str) -> int | None:
        """Up to which revision all of a partition was taken, but for what is :meth:`untaken`.

        ``None`` as long as that is to be read.
        """
        if (since := self._unread.get(partition)) is not None and self._rows_since(since) is None:
            return None
        for known in (self._floors.get(partition), self._read_ahead.get(partition)):
            if known is not None and known.history == history:
                applied = max(applied, known.revision)
        return applied

    def untaken(self, partition: int) -> Iterator[int]:
        """The versions that were read of a partition, and are still to be taken."""
        since = self._unread.get(partition)
        rows = self._rows_since(since) if since is not None else None
        return (row.version for row in rows or ())

    def reads_another(self, history: str) -> bool:
        """Whether something is to be read since a revision of another history."""
        return any(since.history != history for since in self._unread.values())

    def is_new(self, change: Change, history: str) -> bool:
        """Notes a change from the worker; returns whether it is to be taken: a read may have been ahead of it."""
        floor = self._floors.get(change.partition)
        if floor is not None and floor.history == history and change.version <= floor.revision:
            return False
        read = self._read_ahead.get(change.partition)
        if read is not None and read.history == history and change.version <= read.revision:
            return change.deleted and read.live is not None and change.row_id not in read.live
        if self._unread:
            self._fresh[change.row_id] = max(change.version, self._fresh.get(change.row_id, 0))
        return True

    def is_ahead(self, partition: int, applied: Mapping[int, int], history: str) -> bool:
        """Whether the group may have had changes of a partition that the worker does not have yet."""
        read = self._read_ahead.get(partition)
        return read is not None and read.history == history and applied.get(partition, 0) < read.revision

    def applied(self, applied: Mapping[int, int], history: str) -> None:
        """The worker is so far: where it is as far as a read was, or as what was settled, that no longer matters.

        Older versions that it tells of later are of a database that was restored: they are news.
        """
        for partition, read in list(self._read_ahead.items()):
            if read.history != history or applied.get(partition, 0) >= read.revision:
                del self._read_ahead[partition]
        for partition, floor in list(self._floors.items()):
            if floor.history != history or applied.get(partition, 0) >= floor.revision:
                del self._floors[partition]

    def has_room(self, rows: int) -> None:
        """For how many more rows the group has room."""
        self._room = rows
        if rows > 0:
            self._has_room.set()
        else:
            self._has_room.clear()

    async def run(self) -> None:
        """Reads what was missed, one partition after the other, however long that takes."""
        store, key, group = self._place
        log.info("group.catches_up", store=store, key=key, group=group, partitions=len(self._unread))
        while self._unread:
            partition, since = next(iter(self._unread.items()))
            is_read = await self._catch_up(partition, since)
            self._reading = None
            if is_read:
                del self._unread[partition]
                self.done += 1
            await asyncio.sleep(0)
        self._fresh.clear()

    async def _catch_up(self, partition: int, since: Settled) -> bool:
        """Reads one partition; says whether to the end: the group may have lost it, or gained it again."""
        store, key, group = self._place
        lowest = min((since.revision, *(version - 1 for version in since.pending)))
        found, history = await self._read(partition, lowest, since.history)
        if self._unread.get(partition) is not since:
            return False
        # A service behind what was settled has a database that was restored: no version of it was settled.
        same = history == since.history and found.revision >= since.revision
        if not same:
            self._floors.pop(partition, None)
        after, pending = (since.revision, frozenset(since.pending)) if same else (0, frozenset[int]())
        if found.whole and since.revision:
            log.warning("group.deletions_unknown", store=store, key=key, group=group, partition=partition)
        live = frozenset(row.row_id for row in found.rows) if found.whole else None
        self._read_ahead[partition] = _ReadAhead(history, found.revision, live)
        rows = deque(row for row in found.rows if row.version > after or row.version in pending)
        self._reading = _Reading(since, rows)
        while rows:
            if self._room <= 0:
                self._has_room.clear()
                await self._has_room.wait()
            if self._unread.get(partition) is not since:
                return False
            row = rows.popleft()
            if row.version > self._fresh.get(row.row_id, 0):
                self._room -= 1
                value = None if row.deleted else row.value
                self._take(Change(store, key, partition, row.row_id, value, row.version, row.deleted, row.metadata))
        return True

    def _rows_since(self, since: Settled) -> deque[Row] | None:
        reading = self._reading
        return reading.rows if reading is not None and reading.since is since else None

    async def _read(self, partition: int, revision: int, history: str) -> tuple[PartitionRows, str]:
        store, key, group = self._place
        wait_s = _RETRY_FIRST_S
        while True:
            try:
                async with self._turns:
                    answer = await self._reader.partition(store, key, partition, since=revision, history=history)
            except UnknownKeyError:
                answer = PartitionRows(partition, 0, False, []), history
            except Exception as error:  # noqa: BLE001  # whatever it is, it is read again
                if self._failing_since is None:
                    self._failing_since = time.monotonic()
                    log.warning("group.read_failed", store=store, key=key, group=group, error=error)
                await asyncio.sleep(wait_s * (0.5 + random.random() / 2))  # noqa: S311
                wait_s = min(2 * wait_s, _RETRY_MOST_S)
                continue
            self._failing_since = None
            return answer
