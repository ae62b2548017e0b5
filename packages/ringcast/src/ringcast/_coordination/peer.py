"""Coordination of the workers of a store: registration, and the assignment of partitions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Protocol

from ringcast_wire import EventLog, LimitExceededError, StoreSettings, event_before, limits, names

from ringcast._bus.buckets import Buckets, ConflictError
from ringcast._bus.bus import TRANSIENT
from ringcast._bus.refusals import RefusedError
from ringcast._common.config import WorkerConfig
from ringcast._common.lasting import lasting
from ringcast._common.stats import Stats, Trigger
from ringcast._coordination.duplicate_id import DuplicateIdCheck, DuplicateIdError
from ringcast._coordination.key_records import TOUCH_S, KeyRecords
from ringcast._coordination.lease import LeaseSource
from ringcast._coordination.lease_reader import LeaseReader
from ringcast._coordination.own_records import OwnRecords
from ringcast._coordination.registrations import Registrations
from ringcast._coordination.reports import Reports
from ringcast._protocol.assignment import Assignment, GroupMembership
from ringcast._protocol.lease_reading import LeaseReadings
from ringcast._protocol.planned import MOST, PlannedChange

_ANNOUNCE_EVERY_S: Final = limits.LEASE_REFRESH_S
"""How often the records are written again at most because others presume this worker dead."""
_DUPLICATE_POLL_S: Final = 0.25


class Coordinator(Protocol):
    """Assigns the partitions to workers, by calling back with assignments whose epochs rise."""

    async def run(self) -> None:
        """Takes part until cancelled; raises what makes taking part impossible."""

    def give_up(self, key: str) -> None:
        """Takes no part in a key any more, soon."""

    def withdraw(self, key: str) -> bool:
        """Takes no part in a key, soon, until :meth:`come_back`; returns whether another worker has to stay."""

    def come_back(self, key: str) -> None:
        """Takes part in a key again, soon."""

    def announce(self) -> None:
        """Writes the records again, soon, so that the others see that this worker lives: they may presume it dead."""

    async def give_notice(self) -> None:
        """Announces that this worker is about to leave, and waits for others that leave or join, to do so together."""

    async def leave(self) -> None:
        """Gives everything up, so that others take over at once."""


class Participant(Protocol):
    """The worker that takes part, as its coordinator sees it."""

    def assign(self, assignment: Assignment, trigger: Trigger, /) -> None:
        """The partitions of a key are shared out in another way."""

    def registered(self, key: str, reason: str, /) -> None:
        """A key is registered, or it can't be, for a reason."""

    def enrolled(self, key: str, /) -> None:
        """The registration of a key was written: from now on every process that reads it knows of this worker."""

    def joining(self, key: str, /) -> None:
        """A key is registered, and its partitions are others' until several changes are made together."""

    def come_back(self, key: str, /) -> None:
        """No other worker is left for a key that the worker has left."""

    def leases_unreadable(self, reason: str, /) -> None:
        """Leases can't be read, for a reason; or they can again."""


class PeerCoordinator:
    """Every worker computes the assignment for itself from the membership that all of them see."""

    def __init__(
        self,
        buckets: Buckets,
        config: WorkerConfig,
        settings: StoreSettings,
        *,
        incarnation: str,
        participant: Participant,
        lease: LeaseSource,
        stats: Stats,
        log: EventLog,
    ) -> None:
        self._buckets = buckets
        self._config = config
        self._participant = participant
        self._lease = lease
        self._stats = stats
        self._log = log
        self._peers = GroupMembership(
            config.keys, config.worker_id, settings, settle_s=config.settle_s, grace_s=config.grace_s
        )
        self._membership = self._peers.membership
        self._nodes = buckets.bucket(names.nodes_bucket(config.store))
        self._records = KeyRecords(self._nodes, self._membership, config, incarnation, log)
        patterns = [*(f"{key}.>" for key in config.keys), names.ENDED_PATTERN]
        watch = names.watch_name(config.store, config.worker_id)
        self._watch = self._nodes.watch(watch, patterns, self._membership.nodes, self._changed, log)
        self._readings = LeaseReadings(config.keys, self._membership, grace_s=config.grace_s)
        self._reader = LeaseReader(
            buckets, self._readings, lambda: lease.id, self._changed, log, participant.leases_unreadable
        )
        self._duplicate_id = DuplicateIdCheck(
            self._nodes, self._membership, self._reader, lease, config, incarnation, log
        )
        self._membership.on_leases_due = self._wake_all
        self._reports = Reports(config.worker_id, self._readings, self._membership.nodes, self._records.write, log)
        self._planned = {
            key: PlannedChange(key, config.worker_id, self._membership, config.stabilisation_s) for key in config.keys
        }
        self._may_leave = asyncio.Event()
        self._wake = asyncio.Event()
        self._members_changed = asyncio.Event()
        self._announced_at = -_ANNOUNCE_EVERY_S
        self._own_records = OwnRecords(
            self._nodes,
            self._membership.nodes,
            worker_id=config.worker_id,
            keys=config.keys,
            corrected=self._changed,
            log=log,
        )
        self._leaving = False
        self._given_up: set[str] = set()
        self._withdrawn: set[str] = set()
        self._registrations = Registrations(participant.registered)
        self._bad_records = 0
        lease.on_change(self._wake.set)
        buckets.on_back(self._reconnected)

    async def run(self) -> None:
        """Takes part until cancelled.

        Raises:
            LimitExceededError: a key has as many workers as it may.
            InUseError: another live process takes part under this worker's id.
        """
        await self._duplicate_id.wait_until_alone()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lasting("watches the workers", self._watch.run))
            tasks.create_task(lasting("reads the leases", self._reader.run))
            tasks.create_task(lasting("looks after its own records", self._own_records.run))
            tasks.create_task(lasting("reports leases that have ended", self._reports.run))
            tasks.create_task(lasting("shares the partitions out", self._share_out))
            await self._follow()

    def give_up(self, key: str) -> None:
        """Takes no part in a key any more: its records go as soon as the server can be reached."""
        self._given_up.add(key)
        self._wake.set()

    def withdraw(self, key: str) -> bool:
        """Takes no part in a key. The worker of the lowest slot stays: all others may be no better off.

        So however many can't get its events, not all leave: its rows are better held than not.
        """
        first = min(self._membership.members(key), key=lambda member: member.slot, default=None)
        if first is None or first.worker_id == self._config.worker_id:
            return False
        self._withdrawn.add(key)
        self._wake.set()
        return True

    def come_back(self, key: str) -> None:
        """Takes part in a key again, with nothing at first."""
        self._withdrawn.discard(key)
        self._peers.start_over(key, asyncio.get_running_loop().time())
        self._members_changed.set()
        self._wake.set()

    def announce(self) -> None:
        """Writes the records again, soon: a record that comes has the others look at the lease that it names."""
        self._records.announce()
        self._wake.set()

    async def give_notice(self) -> None:
        """Announces that this worker is about to leave, and returns once it may; it goes on serving meanwhile.

        Bounded by a few times the stabilisation window, whatever the others or NATS do.
        """
        if not self._buckets.is_connected or not self._lease.held:
            return  # no other worker would see the announcement
        now = asyncio.get_running_loop().time()
        for key, planned in self._planned.items():
            planned.over = planned.over or key in self._given_up or key in self._withdrawn
            planned.leave(now)
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(MOST * self._config.stabilisation_s):
                while not all(planned.over for planned in self._planned.values()):
                    self._may_leave.clear()
                    await self._may_leave.wait()

    async def leave(self) -> None:
        """Deletes the node records and slot claims: to be called once no call of the worker runs."""
        self._leaving = True
        for key in self._config.keys:
            with suppress(RefusedError):  # what is not ours to delete ends with the lease
                await self._records.leave(key, may_call=False)
        with suppress(RefusedError):
            await self._records.drop(names.ended_key(self._config.worker_id))

    async def _follow(self) -> None:
        retry_at: float | None = None
        while True:
            touch_at = asyncio.get_running_loop().time() + TOUCH_S / 10
            await _until(self._wake, touch_at if retry_at is None else min(touch_at, retry_at))
            retry_at = None
            if not self._membership.complete:
                continue
            lease = self._lease.id
            if self._membership.ended(lease):
                self._lease.check()
            announce_at = self._announce_if_presumed_dead()
            planned_at = self._poll_planned()
            try:
                await self._register_all(lease)
            except DuplicateIdError:
                retry_at = asyncio.get_running_loop().time() + _DUPLICATE_POLL_S
                continue
            times = (announce_at, planned_at, self._registrations.retry_at)
            retry_at = min((time for time in times if time is not None), default=None)
            self._count_bad_records()

    def _poll_planned(self) -> float | None:
        """Has planned changes come about where it is time; returns when to look again."""
        now = asyncio.get_running_loop().time()
        for key, planned in self._planned.items():
            planned.poll(now)
            if planned.waits_for_share and self._records.registered(key):
                self._participant.joining(key)
        self._may_leave.set()
        return min((at for planned in self._planned.values() if (at := planned.wake_at) is not None), default=None)

    async def _share_out(self) -> None:
        """Computes assignments when the members are others. No write is waited for: a death is acted upon at once."""
        while True:
            await _until(self._members_changed, self._peers.wake_at)
            # What is computed with the records of another process of this id would be its partitions.
            if self._membership.complete and not any(self._duplicate_id.found(key) for key in self._config.keys):
                self._assign()
            elif self._peers.wake_at is not None:
                await asyncio.sleep(_DUPLICATE_POLL_S)

    def _announce_if_presumed_dead(self) -> float | None:
        """Has the records written again, not too often, when others report the end of a lease that is still held.

        Returns when to look again, if it was too soon.
        """
        if not self._readings.presumed_dead:
            return None
        now = asyncio.get_running_loop().time()
        if now < self._announced_at + _ANNOUNCE_EVERY_S:
            return self._announced_at + _ANNOUNCE_EVERY_S
        self._readings.presumed_dead = False
        self._announced_at = now
        self._records.announce()
        return None

    async def _register_all(self, lease: str) -> None:
        """Registers where that is due: a key that can't be registered does not keep the others from it.

        Raises:
            LimitExceededError: a key has as many workers as it may, and this one was never among them.
        """
        for key in sorted(self._config.keys, key=self._registrations.failures):
            others = (member for member in self._membership.members(key) if member.worker_id != self._config.worker_id)
            if key in self._withdrawn and not any(others):
                self._participant.come_back(key)
            if not self._registrations.due(key):
                continue
            try:
                await self._keep_registered(key, lease)
            except LimitExceededError as error:
                if not self._records.registered(key):
                    raise
                self._registrations.failed(key, error)
            except (ConflictError, *TRANSIENT) as error:
                self._log.debug("registration.retried", key=key, error=error)
                self._registrations.failed(key, error)
                if not isinstance(error, ConflictError | RefusedError):
                    return  # NATS does not answer: neither would it for the other keys
            else:
                self._registrations.done(key)
        if not self._registrations.failing:
            self._lease.recorded(lease)

    async def _keep_registered(self, key: str, lease: str) -> None:
        if key in self._given_up or key in self._withdrawn:
            await self._records.leave(key, may_call=True)
            return
        self._duplicate_id.check(key, registered=self._records.registered(key))
        await self._register(key, lease)

    def _assign(self) -> None:
        for assignment, trigger in self._peers.poll(asyncio.get_running_loop().time()):
            self._participant.assign(assignment, trigger)

    def _count_bad_records(self) -> None:
        bad = self._membership.nodes.unreadable + self._membership.leases.unreadable
        if bad > self._bad_records:
            self._log.warning("records.unreadable", records=bad - self._bad_records)
            self._stats.bad_records += bad - self._bad_records
            self._bad_records = bad

    async def _register(self, key: str, lease: str) -> None:
        planned = self._planned[key]
        planned.join(asyncio.get_running_loop().time())
        choice, written = await self._records.publish(key, lease, planned)
        if written:
            self._participant.enrolled(key)
            self._peers.changed(asyncio.get_running_loop().time(), key)
            self._members_changed.set()
            self._wake.set()
        planned.slot = None
        await self._records.drop_slots(key, choice.surplus)

    def _changed(self) -> None:
        if self._leaving:
            return
        self._peers.changed(asyncio.get_running_loop().time())
        self._wake_all()

    def _wake_all(self) -> None:
        self._wake.set()
        self._members_changed.set()
        self._reader.wake()
        self._reports.wake()

    def _reconnected(self) -> None:
        now = asyncio.get_running_loop().time()
        self._peers.reconnected(now)
        self._registrations.retry_now()
        self._readings.reconnected(now)
        self._wake_all()


async def _until(event: asyncio.Event, due: float | None) -> None:
    """Waits until something happens, or until a time."""
    await event_before(event, due)
    event.clear()
