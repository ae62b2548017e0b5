"""A worker's lease, its watches, and its part in sharing out the partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ringcast._common.backoff import Backoff
from ringcast._protocol.lease import LeaseKeeper, Refusal
from ringcast._protocol.lease_reading import Lease, LeaseReadings
from ringcast._protocol.membership import Entry, Mirror
from ringcast._protocol.peers import Peers
from ringcast._protocol.planned import MOST, PlannedChange
from ringcast_wire import (
    EndedLeases,
    LeaseRecord,
    NodePhase,
    NodeRecord,
    SlotClaim,
    StoreSettings,
    decode_record,
    encode_record,
    limits,
    names,
)

from tests.simulation.broker import Watcher
from tests.simulation.engine import FatalError, Signal, Steps
from tests.simulation.network import ConflictError, TransientError

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

SILENT_S: Final = 3.5
ANNOUNCE_EVERY_S: Final = limits.LEASE_REFRESH_S
PATIENCE_S: Final = limits.LEASE_TTL_S + 2.0
POLL_S: Final = 0.25
REPORT_AGAIN_S: Final = 0.5


class LeaseHolder:
    """Mirrors ``LeaseHolder`` with the real ``LeaseKeeper``."""

    def __init__(self, worker: Worker, retaken: Callable[[], None]) -> None:
        self._worker = worker
        self._id = worker.worker_id
        record = LeaseRecord(incarnation=worker.name, host="h", pid=1, started_at_ms=0)
        self._keeper = LeaseKeeper(record, worker.random.random)
        self._value = encode_record(record)
        self._retaken = retaken
        self._wake = Signal()
        self._taken = False
        worker.link.on_back.append(self.check)

    def take(self) -> Steps:
        """Mirrors ``LeaseHolder.take``."""
        worker = self._worker
        deadline = worker.clock() + PATIENCE_S
        while True:
            entry = yield from worker.get(names.LEASES_BUCKET, self._id)
            held = _record(entry)
            if held is None or self._keeper.refused(held) is Refusal.OURS:
                asked_at = worker.clock()
                try:
                    last = entry.revision if entry is not None else 0
                    revision = yield from worker.put(names.LEASES_BUCKET, self._id, self._value, last)
                except ConflictError:
                    continue
                self._keeper.written(revision, asked_at)
                return
            if worker.clock() >= deadline:
                raise FatalError(f"worker id {self._id} is in use")
            yield POLL_S

    def run(self) -> Steps:
        """Mirrors ``LeaseHolder.run``."""
        worker = self._worker
        while True:
            self._wake.clear()
            woken = yield self._wake, self._keeper.due
            if woken:
                self._keeper.hurry(worker.clock())
            try:
                lost = yield from self._refresh()
            except TransientError:
                self._keeper.failed(worker.clock())
                continue
            if lost:
                worker.note("lease_back")
                self._retaken()

    def holds(self) -> bool:
        """Mirrors ``LeaseHolder.holds``."""
        return not self._taken and not self._keeper.expired(self._worker.clock())

    def check(self) -> None:
        """Mirrors ``LeaseHolder.check``."""
        self._wake.set()

    def release(self) -> Steps:
        """Mirrors ``LeaseHolder.release``."""
        with contextlib.suppress(ConflictError):
            yield from self._worker.put(names.LEASES_BUCKET, self._id, None, self._keeper.revision)

    def _refresh(self) -> Steps:
        """Mirrors ``LeaseHolder._refresh`` and ``_reconsider``."""
        worker = self._worker
        until = worker.clock() + self._keeper.patience_s
        while True:
            asked_at = worker.clock()
            within_s = max(0.0, until - asked_at)
            try:
                last = self._keeper.revision
                revision = yield from worker.put(names.LEASES_BUCKET, self._id, self._value, last, within_s)
            except ConflictError:
                within_s = max(0.0, until - worker.clock())
                entry = yield from worker.get(names.LEASES_BUCKET, self._id, within_s)
                if self._keeper.refused(_record(entry)) is Refusal.TAKEN:
                    self._taken = True
                    raise FatalError(f"worker id {self._id} was taken") from None
                self._keeper.revision = entry.revision if entry is not None else 0
                continue
            return self._keeper.written(revision, asked_at)


def _record(entry: Entry | None) -> LeaseRecord | None:
    return decode_record(entry.value, LeaseRecord) if entry is not None and entry.value is not None else None


class Watch:
    """Mirrors ``BucketWatch``. Heartbeats are taken to come as long as the server has the consumer."""

    def __init__(
        self,
        worker: Worker,
        bucket: str,
        prefixes: tuple[str, ...],
        mirror: Mirror,
        changed: Callable[[], None],
    ) -> None:
        self.established = False
        self._worker = worker
        self._bucket = bucket
        self._prefixes = prefixes
        self._mirror = mirror
        self._changed = changed
        self._broken = Signal()
        self._number = 0
        worker.link.on_back.append(self._broken.set)

    def run(self) -> Steps:
        """Mirrors ``BucketWatch.run`` and ``_watch_once``."""
        worker = self._worker
        name = names.watch_name(worker.settings.store, worker.worker_id)
        backoff = Backoff(worker.random.random, first_s=0.2, most_s=5.0)
        while True:
            self._broken.clear()
            self.established = False
            self._number += 1
            watcher = Watcher(worker.link, name, self._prefixes, self._take_for(self._number))
            try:
                yield from worker.link.request(worker.broker.unwatch, self._bucket, name)
                yield from worker.link.request(
                    worker.broker.watch, self._bucket, watcher, self._snapshot_for(self._number)
                )
                backoff.reset()
                self.established = True
                while True:
                    broken = yield self._broken, worker.clock() + SILENT_S
                    if broken or not worker.broker.watches(self._bucket, watcher):
                        break
                if worker.link.connected:
                    yield from worker.link.request(worker.broker.unwatch, self._bucket, name)
            except TransientError:
                yield backoff.next_s()

    def _take_for(self, number: int) -> Callable[[str, Entry], None]:
        def take(key: str, entry: Entry) -> None:
            if number == self._number and self._mirror.put(key, entry):
                self._changed()

        return take

    def _snapshot_for(self, number: int) -> Callable[[dict[str, Entry]], None]:
        def complete(found: dict[str, Entry]) -> None:
            if number == self._number:
                self._mirror.replace(found)
                self._changed()

        return complete


class Coordinator:
    """Mirrors ``PeerCoordinator`` with the real ``Peers``."""

    def __init__(self, worker: Worker, settings: StoreSettings, lease: LeaseHolder) -> None:
        self._peers = Peers(
            worker.settings.keys, worker.worker_id, settings, settle_s=0.05, grace_s=worker.settings.grace_s
        )
        self.membership = self._peers.membership
        self._readings = LeaseReadings(worker.settings.keys, self.membership, grace_s=worker.settings.grace_s)
        self._worker = worker
        self._lease = lease
        self._bucket = names.nodes_bucket(worker.settings.store)
        prefixes = (*(f"{key}." for key in worker.settings.keys), names.ENDED_PATTERN.removesuffix("*"))
        self.watches = [Watch(worker, self._bucket, prefixes, self.membership.nodes, self._on_change)]
        self.membership.called = self._wake_all
        self._planned = {
            key: PlannedChange(key, worker.worker_id, self.membership, worker.settings.stabilisation_s)
            for key in worker.settings.keys
        }
        self._may_leave = Signal()
        self._wake = Signal()
        self._members_changed = Signal()
        self._find = Signal()
        self._read = Signal()
        self._written: set[str] = set()
        self._unannounced: set[str] = set()
        self._announced_at = -ANNOUNCE_EVERY_S
        self._told_finds = 0
        self._leaving = False
        worker.link.on_back.append(self._reconnected)

    def start(self) -> None:
        """Mirrors the task group of ``PeerCoordinator.run``."""
        for watch in self.watches:
            self._worker.spawn(watch.run())
        self._worker.spawn(self._read_leases())
        self._worker.spawn(self._run_reports())
        self._worker.spawn(self._share_out())
        self._worker.spawn(self._follow())

    def announce(self) -> None:
        """Mirrors ``PeerCoordinator.announce``."""
        self._unannounced.update(self._worker.settings.keys)
        self._wake.set()

    def give_notice(self) -> Steps:
        """Mirrors ``PeerCoordinator.give_notice``."""
        worker = self._worker
        if not worker.link.connected or not self._lease.holds():
            return
        now = worker.clock()
        for planned in self._planned.values():
            planned.leave(now)
        self._wake.set()
        until = now + MOST * worker.settings.stabilisation_s
        while not all(planned.over for planned in self._planned.values()) and worker.clock() < until:
            self._may_leave.clear()
            yield self._may_leave, until

    def leave(self) -> Steps:
        """Mirrors ``PeerCoordinator.leave``."""
        self._leaving = True
        for key in self._worker.settings.keys:
            for slot in self.membership.slots_of(key, self._worker.worker_id):
                yield from self._drop(names.slot_key(key, slot))
            yield from self._drop(names.node_key(key, self._worker.worker_id))
        yield from self._drop(names.ended_key(self._worker.worker_id))

    def _read_leases(self) -> Steps:
        """Mirrors ``LeaseReader.run``."""
        worker = self._worker
        while True:
            while (due := self._readings.due) is None or worker.clock() < due:
                self._read.clear()
                yield self._read, due
            asked = self._readings.ask(worker.worker_id, worker.clock())
            try:
                found = yield from worker.link.request(worker.broker.read, names.LEASES_BUCKET, asked)
            except TransientError:
                continue
            leases = {key: Lease(entry.revision, entry.value, at) for key, (entry, at) in found.items()}
            if self._readings.answer(asked, leases, worker.clock()):
                self._on_change()

    def _follow(self) -> Steps:
        """Mirrors ``PeerCoordinator._follow`` and ``_sleep``."""
        worker = self._worker
        backoff = Backoff(worker.random.random, first_s=0.1, most_s=5.0)
        retry_at: float | None = None
        while True:
            yield self._wake, retry_at
            self._wake.clear()
            retry_at = None
            if not self.membership.complete:
                continue
            if self.membership.ended(worker.worker_id):
                self._lease.check()
            times = [self._heed_doubt(), self._poll_planned()]
            try:
                for key in worker.settings.keys:
                    yield from self._register(key)
                backoff.reset()
            except (ConflictError, TransientError):
                times.append(worker.clock() + backoff.next_s())
            retry_at = min((time for time in times if time is not None), default=None)

    def _poll_planned(self) -> float | None:
        """Mirrors ``PeerCoordinator._poll_planned``."""
        for planned in self._planned.values():
            planned.poll(self._worker.clock())
        self._may_leave.set()
        return min((at for planned in self._planned.values() if (at := planned.wake_at) is not None), default=None)

    def _share_out(self) -> Steps:
        """Mirrors ``PeerCoordinator._share_out`` and ``_assign``."""
        while True:
            yield self._members_changed, self._peers.wake_at
            self._members_changed.clear()
            for assignment, _ in self._peers.poll(self._worker.clock()):
                self._worker.assign(assignment)

    def _heed_doubt(self) -> float | None:
        """Mirrors ``PeerCoordinator._heed_doubt``."""
        if not self._readings.doubted:
            return None
        now = self._worker.clock()
        if now < self._announced_at + ANNOUNCE_EVERY_S:
            return self._announced_at + ANNOUNCE_EVERY_S
        self._readings.doubted = False
        self._announced_at = now
        self._unannounced.update(self._worker.settings.keys)
        return None

    def _run_reports(self) -> Steps:
        """Mirrors ``Reports.run`` and ``_tell``."""
        name = names.ended_key(self._worker.worker_id)
        while True:
            yield self._find, None
            self._find.clear()
            while self._told_finds != self._readings.finds:
                finds = self._readings.finds
                value = encode_record(EndedLeases(leases=self._readings.reports))
                try:
                    yield from self._write(name, value, self.membership.nodes.revision(name))
                    self._told_finds = finds
                except (ConflictError, TransientError):
                    yield REPORT_AGAIN_S

    def _register(self, key: str) -> Steps:
        """Mirrors ``PeerCoordinator._register``."""
        worker_id = self._worker.worker_id
        planned = self._planned[key]
        planned.join(self._worker.clock())
        choice = self.membership.choose_slot(key, worker_id, planned.slot)
        stale = key not in self._written
        if not choice.held or stale:
            claim = encode_record(SlotClaim(worker_id=worker_id, lease=worker_id))
            yield from self._write(names.slot_key(key, choice.slot), claim, choice.revision)
        phase = planned.phase or NodePhase.ACTIVE
        record = NodeRecord(slot=choice.slot, lease=worker_id, incarnation=self._worker.name, phase=phase)
        name = names.node_key(key, worker_id)
        if stale or key in self._unannounced or self.membership.nodes.get(name, NodeRecord) != record:
            yield from self._write(name, encode_record(record), self.membership.nodes.revision(name))
            self._peers.changed(self._worker.clock(), key)
            self._members_changed.set()
            self._wake.set()
            self._written.add(key)
            self._unannounced.discard(key)
        planned.slot = None
        for surplus in choice.surplus:
            yield from self._drop(names.slot_key(key, surplus))

    def _write(self, name: str, value: bytes, last: int) -> Steps:
        """Mirrors ``PeerCoordinator._write``."""
        try:
            revision = yield from self._worker.put(self._bucket, name, value, last)
        except ConflictError:
            self.membership.nodes.correct(name, (yield from self._worker.get(self._bucket, name)))
            raise
        self.membership.nodes.put(name, Entry(revision, value))

    def _drop(self, name: str) -> Steps:
        """Mirrors ``PeerCoordinator._drop``."""
        entry = self.membership.nodes.entries.get(name)
        if entry is None or entry.value is None:
            return
        with contextlib.suppress(ConflictError):
            yield from self._worker.put(self._bucket, name, None, entry.revision)

    def _on_change(self) -> None:
        """Mirrors ``PeerCoordinator._changed``."""
        if not self._leaving:
            self._peers.changed(self._worker.clock())
            self._wake_all()

    def _wake_all(self) -> None:
        self._wake.set()
        self._members_changed.set()
        self._read.set()
        self._find.set()

    def _reconnected(self) -> None:
        self._peers.reconnected(self._worker.clock())
        self._readings.reconnected(self._worker.clock())
        self._wake_all()
