"""How far one group has come, and what it missed while it was away."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from ringcast import Change
from ringcast_wire import EventLog, PartitionRows, UnknownKeyError

from ringcast_heartbeat_agent.dispatch.positions import Away, Place, Position, Positions

log = EventLog(logging.getLogger(__name__))

_RETRY_FIRST_S: Final = 0.1
_RETRY_MOST_S: Final = 5.0
_READS_AT_ONCE: Final = 8


class Reader(Protocol):
    """Where rows are read."""

    async def partition(
        self, store: str, key: str, partition: int, *, since: int | None = None, history: str = ""
    ) -> tuple[PartitionRows, str]:
        """What has changed in a partition since a revision, and the history that this is of."""


class History:
    """What groups remember, and read when they start again."""

    def __init__(self, reader: Reader, positions: Positions) -> None:
        self.reader = reader
        self.positions = positions
        self.turns = asyncio.Semaphore(_READS_AT_ONCE)


class _ReadAhead(NamedTuple):
    history: str
    revision: int
    live: frozenset[str] | None
    """The live rows, where the reply does not list deleted ones."""


class Progress:
    """One group's: what was settled before it began, what of the time in between is still to be read, and what is next.

    ``take``: takes a change that was missed.
    """

    def __init__(self, history: History, place: Place, take: Callable[[Change], None]) -> None:
        self._history = history
        self._place = place
        self._take = take
        self._room = 1
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._saved = history.positions.get(place)
        self._known = self._saved or Position("", {})
        self._unread: dict[int, int] = {}
        """Since which revision a partition is to be read."""
        self._begun: set[int] = set()
        """The partitions that were compared with what was saved."""
        self._fresh: dict[str, int] = {}
        """The versions that came while partitions are unread: what is read must not lead a row back."""
        self._read_ahead: dict[int, _ReadAhead] = {}
        """What was read, until the worker is as far: the changes up to there were delivered."""
        self._failing_since: float | None = None

    @property
    def away(self) -> list[Away]:
        """The consumers with filters that the group had."""
        return self._saved.away if self._saved is not None else []

    @property
    def unread_s(self) -> float:
        """For how long reads of what it missed have failed."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    def is_new(self, change: Change, history: str) -> bool:
        """Notes a change from the worker; returns whether it is to be taken: a read may have been ahead of it."""
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

    def has_room(self, rows: int) -> None:
        """For how many more of the rows that it missed the group has room."""
        self._room = rows
        if rows > 0:
            self._has_room.set()
        else:
            self._has_room.clear()

    def begin(self, applied: Mapping[int, int], history: str) -> bool:
        """These partitions are the host's now; says whether something is to be read, and nothing was before."""
        if self._saved is None:
            return False
        for partition, read in list(self._read_ahead.items()):
            if read.history != history or applied.get(partition, 0) >= read.revision:
                del self._read_ahead[partition]
        before, same = len(self._unread), history == self._saved.history
        for partition in applied.keys() - self._begun:
            revision = self._saved.revisions.get(partition)
            if revision is not None and same and applied[partition] < revision:
                continue  # it is still being loaded
            self._begun.add(partition)
            if revision is not None and (not same or applied[partition] > revision):
                self._unread[partition] = revision
        return not before and bool(self._unread)

    async def catch_up(self) -> None:
        """Reads what was missed, one partition after the other, however long that takes."""
        assert self._saved is not None
        store, key, group = self._place
        log.info("group.catches_up", store=store, key=key, group=group, partitions=len(self._unread))
        while self._unread:
            partition, revision = next(iter(self._unread.items()))
            found, history = await self._read(partition, revision, self._saved.history)
            after = revision if history == self._saved.history else 0
            if found.whole:
                log.warning("group.deletions_unknown", store=store, key=key, group=group, partition=partition)
            live = frozenset(row.row_id for row in found.rows) if found.whole else None
            self._read_ahead[partition] = _ReadAhead(history, found.revision, live)
            for row in found.rows:
                if self._room <= 0:
                    self._has_room.clear()
                    await self._has_room.wait()
                if row.version > max(after, self._fresh.get(row.row_id, 0)):
                    self._room -= 1
                    store, key, _ = self._place
                    value = None if row.deleted else row.value
                    self._take(Change(store, key, partition, row.row_id, value, row.version, row.deleted, row.metadata))
            del self._unread[partition]
            await asyncio.sleep(0)
        self._fresh.clear()

    def save(self, pending: Iterable[Change], applied: Mapping[int, int], history: str, away: list[Away]) -> None:
        """Remembers how far it has come: ``applied`` is of this host's partitions, ``pending`` what is not settled."""
        if not history or (self._unread and self._saved is not None and self._saved.history != history):
            return  # what it began with holds until all of it was read
        if self._known.history != history:
            self._known = Position(history, {})
        lowest: dict[int, int] = {}
        for change in pending:
            lowest[change.partition] = min(change.version, lowest.get(change.partition, change.version))
        revisions = dict(self._known.revisions)
        for partition, revision in applied.items():
            if partition not in self._unread:
                settled = min(revision, lowest.get(partition, revision + 1) - 1)
                revisions[partition] = max(settled, revisions.get(partition, 0))
        self._known = Position(history, revisions, away)
        self._history.positions.put(self._place, self._known)

    async def _read(self, partition: int, revision: int, history: str) -> tuple[PartitionRows, str]:
        store, key, group = self._place
        wait_s = _RETRY_FIRST_S
        while True:
            try:
                async with self._history.turns:
                    answer = await self._history.reader.partition(
                        store, key, partition, since=revision, history=history
                    )
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
