"""The coordinator of exclusive ownership. ``docs/sticky.md`` has what it promises, and why that holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from ringcast_wire import EventLog, LeaseRecord, event_before
from ringcast_wire.migrating import Step

from ringcast._bus.buckets import Buckets
from ringcast._bus.bus import TRANSIENT
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import lasting
from ringcast._coordination.sticky.leader import KeyLeader
from ringcast._coordination.sticky.loads import LoadReporter, read_loads
from ringcast._coordination.sticky.measures import KeyReport
from ringcast._coordination.sticky.migration import Migrates, StoreMigration
from ringcast._coordination.sticky.ownership import ExclusiveCall, ExclusiveParticipant, KeyOwnership
from ringcast._coordination.sticky.records import OwnerRecords
from ringcast._coordination.sticky.session import FAILURES, Refresh, SessionKeeper, read_sessions
from ringcast._coordination.sticky.times import Clock, StickyTimes, loop_time, steady_clock
from ringcast._protocol.sticky.ownership import OwnedState

_GAP: Final = 0.2
"""Two readings of sessions are at least this share of ``read_s`` apart, unless a leader's process has ended."""


class StickyCoordinator:
    """Each partition of each key has one owner at every moment: at most one worker is let start calls of it.

    The participant calls :meth:`ready`, :meth:`begin_call` and :meth:`end_last_call`, from the loop of the coordinator;
    its calls of before go on counting when :meth:`run` has ended, until the fence. ``report_sessions`` is called with a
    key and the first and the last session of this process, for an agent that sees the process end. ``revisions`` is
    asked what each partition of a key that is owned is at; where it is ``None`` no loads are reported. ``migrated``:
    the last step of a store that has finished migrating, which its tables may follow.
    """

    def __init__(
        self,
        buckets: Buckets,
        config: WorkerConfig,
        partitions: int,
        *,
        record: LeaseRecord,
        participant: ExclusiveParticipant,
        log: EventLog,
        times: StickyTimes | None = None,
        clock: Clock = steady_clock,
        report_sessions: Callable[[str, int, int], None] | None = None,
        migrates: Migrates | None = None,
        migrated: Step | None = None,
        revisions: Callable[[str], Mapping[int, int]] | None = None,
    ) -> None:
        self._buckets = buckets
        self._worker_id = worker_id = config.worker_id
        self._times = times = times or StickyTimes()
        self._clock = clock
        self._log = log
        self._read_wake = asyncio.Event()
        self._hurry = asyncio.Event()
        """Sessions are to be read however short a time ago that was done."""
        self._read_at = -times.read_s
        self._records = records = OwnerRecords(
            buckets, config.store, config.keys, partitions, self._changed, self._progressed, log
        )
        self._owned = {
            key: KeyOwnership(
                key,
                worker_id,
                partitions,
                records,
                participant,
                times,
                clock,
                log,
                capacity=config.capacity,
                refresh_now=self._refresh_now,
                report_sessions=report_sessions,
            )
            for key in config.keys
        }
        self._leaders = {
            key: KeyLeader(
                key,
                worker_id,
                partitions,
                records,
                times,
                clock,
                log,
                read_now=self._read_wake.set,
                read_at_once=self._read_at_once,
            )
            for key in config.keys
        }
        self.migration = (
            StoreMigration(migrates, worker_id, records, self._owned, self._leaders) if migrates is not None else None
        )
        """Of a store that migrates: what is to be told of the operator's steps, and of the peer rule."""
        if migrated is not None:
            self._has_migrated(migrated)
        self._reporter = (
            LoadReporter(records.bucket, worker_id, config.keys, revisions, times, clock, log)
            if revisions is not None
            else None
        )
        self._keeper = SessionKeeper(
            buckets,
            records.bucket,
            worker_id,
            record,
            times,
            clock,
            log,
            refreshed=self._refreshed,
            taken=self._close_all,
        )

    # ---- the coordinator

    async def run(self) -> None:
        """Takes part until cancelled.

        Raises:
            InUseError: another live process takes part under this worker's id.
            MismatchError: the bucket of owners was deleted, and created again.
        """
        await self._keeper.take()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lasting("refreshes its session", self._keeper.run))
            tasks.create_task(lasting("watches the owners", lambda: self._records.watch(self._worker_id)))
            tasks.create_task(lasting("reads the sessions", self._read))
            tasks.create_task(lasting("reads the tables", self._check_tables))
            if self._reporter is not None:
                tasks.create_task(lasting("reports loads", self._reporter.run))
                tasks.create_task(lasting("reads loads", self._read_loads))
            for owned in self._owned.values():
                tasks.create_task(lasting("watches its fence", owned.watch_fence))
                tasks.create_task(lasting("writes its state", owned.state.run))
                tasks.create_task(lasting("tells what its share is", owned.share.run))
            for leader in self._leaders.values():
                tasks.create_task(lasting("leads a key", leader.run))

    def give_up(self, key: str) -> None:
        """Takes no part in a key any more, at once; the leader hears of it soon."""
        self._owned[key].close()

    def withdraw(self, key: str) -> bool:
        """Takes no part in a key, until :meth:`come_back`. The leader stays: it returns ``False`` there.

        So however many can't get its events, not all leave: its rows are better held than not.
        """
        if self._leaders[key].follows is None:
            return False
        self._owned[key].close()
        return True

    def come_back(self, key: str) -> None:
        """Takes part in a key again, with nothing at first."""
        self._owned[key].come_back()

    def witnessed_by(self, agent: str) -> None:
        """This agent sees the process end: what it then says of the sessions that were reported ends them at once. An
        agent without an id does not, and the death of this process takes as long as without an agent."""
        if not agent:
            self._log.warning("agent.sees_no_end")
            return
        for owned in self._owned.values():
            owned.witnessed_by(agent)

    def announce(self) -> None:
        """Nothing: no other worker gives away what is this one's because it presumes it dead."""

    async def give_notice(self) -> None:
        """Has the leaders give the partitions to others, and serves until they have.

        Bounded by twice the time that a worker may take to prepare. Returns at once for a key that no other worker
        takes part in, and where there is no connection.
        """
        if not self._buckets.is_connected:
            return
        for owned in self._owned.values():
            owned.leave()
        due = asyncio.get_running_loop().time() + 2 * self._times.leader.prepare_s
        for key, owned in self._owned.items():
            while not (owned.has_left or owned.is_among_peers):
                if not (self._leaders[key].serving() and await owned.until(due)):
                    break

    def close(self) -> None:
        """Starts no call from now on. Only last calls are let through, until the fence."""
        self._close_all()

    async def leave(self) -> None:
        """Starts no call from now on, says so once those that run have ended, and deletes the session entry.

        What can't be said within ``ttl_s`` others find out by themselves. Raises what is transient.
        """
        self._close_all()
        due = asyncio.get_running_loop().time() + self._times.fence.ttl_s
        for owned in self._owned.values():
            while not owned.is_idle:
                if not await owned.until(due):
                    return
        async with asyncio.timeout_at(due):
            for owned in self._owned.values():
                owned.say_ended()
                await owned.state.finish()
            await self._keeper.drop()

    async def drop_session(self) -> None:
        """Deletes the session entry, and says nothing of calls: of a worker whose calls are not let start by this."""
        async with asyncio.timeout(self._times.fence.ttl_s):
            await self._keeper.drop()

    # ---- the participant

    def ready(self, key: str, partition: int, token: int) -> None:
        """A partition has been prepared for this token."""
        self._owned[key].ready(partition, token)

    def begin_call(self, key: str, partition: int) -> ExclusiveCall | None:
        """Lets one handler call start now, or not. It has to end within ``call_s``, and then :meth:`ExclusiveCall.end`.

        That bound is what the proof rests on: the caller enforces it, by what ``extended`` of the participant says.
        """
        return self._owned[key].begin_call(partition)

    def begin_last_call(self, key: str, partition: int) -> ExclusiveCall | None:
        """Lets the last call of a partition that is to stop start now, or not: as :meth:`begin_call`."""
        return self._owned[key].begin_last_call(partition)

    def end_last_call(self, key: str, partition: int) -> None:
        """The last call has ended, or there is none to make: follows each ``stop`` of the participant."""
        self._owned[key].end_last_call(partition)

    def strays_ended(self, key: str) -> None:
        """In a store that migrates: the calls that ran when a key got guarded have ended."""
        if self.migration is not None:
            self.migration.strays_ended(key)

    def state_of(self, key: str, partition: int) -> OwnedState:
        """How far this worker is with a partition."""
        return self._owned[key].state_of(partition)

    def leads(self, key: str) -> bool:
        """Whether this worker leads a key."""
        return self._leaders[key].leads

    def report(self, key: str) -> KeyReport:
        """What there is to measure of a key. From any thread."""
        table = self._owned[key].table
        load = self._reporter.load(key) if self._reporter is not None else 0.0
        return self._leaders[key].report()._replace(epoch=table.epoch if table is not None else 0, load=load)

    @property
    def revision(self) -> int:
        """The revision of the last refresh of its session entry; 0 before the first."""
        return self._keeper.revision

    def _has_migrated(self, step: Step) -> None:
        """Of a store that has finished migrating: no call of this process ever starts that this does not let start."""
        self._records.heard(step.number)
        for key, owned in self._owned.items():
            owned.say_guarded(step.number, is_free=False)
            self._leaders[key].heard(step)

    # ---- its tasks

    async def _read(self) -> None:
        """Reads sessions until cancelled. Where a leader waits for a proof, its own entry is written first."""
        failures = 0
        while True:
            await event_before(self._read_wake, loop_time(self._read_due(), self._clock))
            await event_before(self._hurry, loop_time(self._read_at + self._times.read_s * _GAP, self._clock))
            self._read_wake.clear()
            self._hurry.clear()
            self._read_at = self._clock()
            try:
                if any(self._is_due(leader) for leader in self._leaders.values()):
                    await self._keeper.refresh()
                wanted = frozenset[str]().union(*(leader.leases() for leader in self._leaders.values()))
                answers = await read_sessions(self._records.bucket, self._worker_id, wanted)
            except TRANSIENT as error:
                failures += 1
                level = logging.WARNING if failures == FAILURES else logging.DEBUG
                self._log.log(level, "sessions.read_failed", retries=failures, error=error)
                continue
            failures = 0
            for leader in self._leaders.values():
                leader.answered(wanted, answers)

    def _read_at_once(self) -> None:
        self._hurry.set()
        self._read_wake.set()

    def _read_due(self) -> float:
        wakes = (leader.wake_at for leader in self._leaders.values() if leader.leads and leader.wake_at is not None)
        return min([self._read_at + self._times.read_s, *wakes])

    def _is_due(self, leader: KeyLeader) -> bool:
        return leader.leads and leader.wake_at is not None and leader.wake_at <= self._clock()

    async def _check_tables(self) -> None:
        while True:
            await asyncio.sleep(self._times.check_s)
            try:
                for key in await self._records.lost_tables():
                    self._owned[key].table_is_lost()
            except TRANSIENT as error:
                self._log.debug("owners.read_failed", error=error)

    async def _read_loads(self) -> None:
        """Reads what is reported of the keys that this worker leads, until cancelled."""
        while True:
            await asyncio.sleep(self._times.report_s)
            leading = {key: leader for key, leader in self._leaders.items() if leader.leads}
            workers = frozenset[str]().union(*(leader.reporting() for leader in leading.values()))
            try:
                loads = await read_loads(self._records.bucket, workers, self._log)
            except TRANSIENT as error:
                self._log.debug("loads.read_failed", error=error)
                continue
            for key, leader in leading.items():
                leader.loads_are(loads.get(key, {}))

    def _refreshed(self, refresh: Refresh) -> None:
        for leader in self._leaders.values():
            leader.refreshed(refresh)
        for owned in self._owned.values():
            owned.refreshed(refresh)

    def _refresh_now(self) -> None:
        self._keeper.wake()

    def _changed(self, key: str) -> None:
        if key in self._owned:
            if self._owned[key].has_successor:
                self._keeper.give_way()
            self._owned[key].records_changed()
            if self.migration is not None:
                self.migration.follow(key)
            self._leaders[key].changed()

    def _progressed(self, key: str, worker_id: str) -> None:
        """A worker has got further, with its partitions or with a migration: that is for the leader alone."""
        if worker_id == self._worker_id:
            self._changed(key)
        elif self._leaders[key].leads:
            self._leaders[key].changed()

    def _close_all(self) -> None:
        for owned in self._owned.values():
            owned.close()
