"""When a worker can tell what its share is: it need not be any, and no record says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from ringcast_wire import event_before
from ringcast_wire.owner_records import Rule, Session, Table

from ringcast._coordination.sticky.records import OwnerRecords
from ringcast._coordination.sticky.times import Clock, StickyTimes, loop_time


class _Situation(NamedTuple):
    """What must stay the same for a while."""

    session: int
    epoch: int
    members: frozenset[tuple[str, int, bool]]


class SettledShare:
    """Of one key. ``settled`` is called with the partitions that the table has for this worker, once in each session.

    A leader names a worker that joins in the table, once the members have been quiet for a while. So where neither
    table nor members have changed for longer than that, and the table neither offers the worker anything nor names it
    by a session of before, what the table says is its share.
    """

    def __init__(
        self,
        key: str,
        worker_id: str,
        records: OwnerRecords,
        times: StickyTimes,
        clock: Clock,
        *,
        session: Callable[[], Session | None],
        settled: Callable[[frozenset[int]], None],
    ) -> None:
        self._key = key
        self._worker_id = worker_id
        self._records = records
        self._clock = clock
        self._session = session
        self._settled = settled
        # The leader reads sessions twice at most before it counts a new one, and each of the two writes takes a while.
        self._quiet_s = times.leader.quiet_s + 2 * times.read_s + times.refresh_s
        self._wake = asyncio.Event()
        self._told = 0
        """The session that has been told of."""
        self._looked_at: tuple[Session, int] | None = None
        """The session and the epoch of which is known whether something is still to come of the table."""
        self._is_awaited = False
        self._last: _Situation | None = None
        self._since = 0.0

    def changed(self) -> None:
        """Records or the session may be others."""
        self._wake.set()

    async def run(self) -> None:
        """Tells, until cancelled."""
        while True:
            self._wake.clear()
            await event_before(self._wake, loop_time(self.look(self._clock()), self._clock))

    def look(self, now: float) -> float | None:
        """Tells if it is time to; returns when to look again if nothing changes before."""
        session, table = self._session(), self._records.table(self._key)
        if session is None or table is None or table.rule is not Rule.OWNERS or session.number == self._told:
            self._last = None
            return None
        situation = self._situation(session, table)
        if situation != self._last:
            self._last, self._since = situation, now
        if situation is None:
            return None
        if now < (due := self._since + self._quiet_s):
            return due
        self._told = session.number
        self._settled(frozenset(number for number, entry in enumerate(table.entries) if entry.owner == session))
        return None

    def _still_comes(self, session: Session, table: Table) -> bool:
        """Whether the table offers the worker something, or names it by a session of before."""
        is_former = any(named.worker_id == self._worker_id and named != session for named in table.sessions())
        return is_former or any(table.entries[number].next == session for number in table.naming(self._worker_id))

    def _situation(self, session: Session, table: Table) -> _Situation | None:
        """``None``: something is still to come of it."""
        if (session, table.epoch) != self._looked_at:
            self._looked_at, self._is_awaited = (session, table.epoch), self._still_comes(session, table)
        if self._is_awaited:
            return None
        states = self._records.states(self._key)
        if (own := states.get(self._worker_id)) is None or own.session != session.number:
            return None  # the leader can't know of this session yet
        members = frozenset((name, state.session, state.leaving) for name, state in states.items())
        return _Situation(session.number, table.epoch, members)
