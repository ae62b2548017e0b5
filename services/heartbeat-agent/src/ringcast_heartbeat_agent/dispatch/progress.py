"""How far one group has come: which partitions it has on this host, and what of each is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from ringcast import Change

from ringcast_heartbeat_agent.dispatch.catch_up import CatchUp, Reader
from ringcast_heartbeat_agent.dispatch.positions import Away, Place, Position, Positions
from ringcast_heartbeat_agent.dispatch.seals import Settled
from ringcast_heartbeat_agent.dispatch.source import Source

_READS_AT_ONCE: Final = 8


class History:
    """What groups remember, and read when they start again."""

    def __init__(self, reader: Reader, positions: Positions) -> None:
        self.reader = reader
        self.positions = positions
        self.turns = asyncio.Semaphore(_READS_AT_ONCE)


class Progress:
    """The partitions of one group on this host, from where each begins until another host has it.

    :meth:`look` is the one place that finds partitions to begin and to end here, and :meth:`save` the one that finds up
    to which revision every change of them is settled.

    Args:
        source: the config key.
        group: the group's name.
        take: takes a change that the group missed while it was away.
    """

    def __init__(self, source: Source, group: str, history: History, take: Callable[[Change], None]) -> None:
        self._source = source
        self._place: Place = source.store, source.key, group
        self._positions = history.positions
        saved = history.positions.get(self._place)
        self.away: list[Away] = saved.away if saved is not None else []
        """The consumers with filters that the group had."""
        self.missed = CatchUp(history.reader, history.turns, self._place, take)
        self.holds: Callable[[int], bool] = lambda _: True
        """Whether the group has a partition that its host has."""
        self._settled = saved or Position("", {})
        """Every change up to these revisions is settled."""
        self._from_history = self._settled.history
        self._from = dict(self._settled.revisions)
        """Where partitions that have not begun here are to begin."""
        self._here: set[int] = set()

    def is_new(self, change: Change) -> bool:
        """Notes a change from the worker; returns whether it is to be taken."""
        return self.missed.is_new(change, self._source.history)

    def is_ahead(self, partition: int) -> bool:
        """Whether the group may have had changes of a partition that the worker does not have yet."""
        return self.missed.is_ahead(partition, self._source.applied(), self._source.history)

    def look(self) -> bool:
        """Begins and ends partitions; says whether something is to be read, and nothing was before."""
        applied, history = self._source.applied(), self._source.history
        self.missed.applied(applied, history)
        read_before = bool(self.missed)
        for partition in self._here - applied.keys():
            self._end(partition)
        for partition in set(self._source.loaded()) - self._here:
            self._begin(partition, applied[partition], history)
        return not read_before and bool(self.missed)

    def applied(self) -> None:
        """As :meth:`look`, where :meth:`hold` and :meth:`lose` say which partitions the group has."""
        self.missed.applied(self._source.applied(), self._source.history)

    def hold(self, partition: int, since: Settled, *, current: bool) -> bool:
        """The group has a partition now, and goes on ``since``; ``current``: that is as far as the worker is.

        Says whether something is to be read, and nothing was before.
        """
        self.missed.pass_over(partition, since)
        if current and not since.pending:
            return False
        read_before = bool(self.missed)
        self.missed.add(partition, since)
        return not read_before

    def lose(self, partition: int) -> None:
        """The group does not have a partition any more."""
        self.missed.lose(partition)

    def saved(self, partition: int) -> Settled | None:
        """What is remembered on this host of a partition."""
        revision = self._settled.revisions.get(partition)
        return Settled(self._settled.history, revision) if revision is not None else None

    def reached(self, partition: int, applied: int) -> int | None:
        """Up to which revision all of a partition was taken; ``None`` as long as it is to be read."""
        return self.missed.reached(partition, applied, self._source.history)

    def save(self, pending: Iterable[Change], away: list[Away]) -> None:
        """Remembers how far the group has come. ``pending``: every change that is not settled."""
        applied, history = self._source.applied(), self._source.history
        if not history or self.missed.reads_another(history):
            return  # what it began with holds until all of it was read
        lowest: dict[int, int] = {}
        for change in pending:
            lowest[change.partition] = min(change.version, lowest.get(change.partition, change.version))
        revisions = dict(self._settled.revisions) if self._settled.history == history else {}
        for partition, revision in applied.items():
            if partition not in self.missed and self.holds(partition):
                settled = min(revision, lowest.get(partition, revision + 1) - 1)
                revisions[partition] = max(settled, revisions.get(partition, 0))
        self._settled = Position(history, revisions, away)
        self._positions.put(self._place, self._settled)

    def _begin(self, partition: int, applied: int, history: str) -> None:
        """The partition is this host's now. What the group missed of it is read."""
        revision, same = self._from.get(partition), history == self._from_history
        self._here.add(partition)
        self._from.pop(partition, None)
        if revision is not None and (not same or applied > revision):
            self.missed.add(partition, Settled(self._from_history, revision))

    def _end(self, partition: int) -> None:
        """The partition is another host's now. If it comes back, the group begins with the rows as they are then."""
        self._here.discard(partition)
