"""The machine of a config key against a model: no row is lost, goes back or rises from the dead, come what may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ringcast._common.change import Change
from ringcast._protocol.actions import (
    Ack,
    Announce,
    Apply,
    FetchBatch,
    FetchFull,
    FetchPartition,
    GiveUpFetch,
    MissedEvents,
)
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.snapshots import CachedPartition, PartitionSave, Saving
from ringcast_wire import Change as WireChange
from ringcast_wire import ErrorCode, Event, PartitionRows, Row


@dataclass
class Service:
    """The rows of one key by partition, as the config service keeps them."""

    partitions: int
    heads: list[int] = field(init=False)
    rows: list[dict[str, Row]] = field(init=False)
    floors: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.heads = [0] * self.partitions
        self.floors = [0] * self.partitions
        self.rows = [{} for _ in range(self.partitions)]

    def write(self, partition: int, writes: list[tuple[str, str | None]], inline: Callable[[], bool]) -> Event:
        """One transaction on one partition; ``None`` deletes. Returns its event."""
        prev = self.heads[partition]
        changed: dict[str, Row] = {}
        for row_id, value in writes:
            self.heads[partition] += 1
            changed[row_id] = Row(row_id, value or "", self.heads[partition], value is None)
        self.rows[partition].update(changed)
        changes = [
            WireChange(r.row_id, r.version, r.deleted, r.value if not r.deleted and inline() else None)
            for r in changed.values()
        ]
        return Event(1, prev, self.heads[partition], 1000 + prev, changes)

    def compact(self, partition: int) -> None:
        """Forgets the tombstones of a partition."""
        self.floors[partition] = self.heads[partition]
        self.rows[partition] = {k: r for k, r in self.rows[partition].items() if not r.deleted}

    def live(self, partition: int) -> dict[str, Row]:
        return {k: r for k, r in self.rows[partition].items() if not r.deleted}

    def fetch(self, partition: int, since: int | None) -> PartitionRows:
        head = self.heads[partition]
        if since is None or since < self.floors[partition] or since > head:
            return PartitionRows(partition, head, True, list(self.live(partition).values()))
        rows = [r for r in self.rows[partition].values() if r.version > since]
        return PartitionRows(partition, head, False, rows)

    def batch(self, row_ids: list[str]) -> list[PartitionRows]:
        """Row ids start with the number of their partition."""
        parts = sorted({int(row_id.split("/")[0]) for row_id in row_ids})
        return [
            PartitionRows(p, self.heads[p], False, [self.rows[p][i] for i in row_ids if i in self.rows[p]])
            for p in parts
        ]


class World:
    """A machine, the service, and all that is on its way between them. ``random`` decides everything."""

    def __init__(self, random: Random, *, partitions: int = 3, full: bool = False) -> None:
        self.random = random
        self.service = Service(partitions)
        self.machine = KeyMachine("s", "k", full=full, partition_count=partitions, random=random.random)
        self.now = 0.0
        self.events: list[tuple[int, Event]] = []
        self.replies: list[Callable[[], None]] = []
        self.requests: list[FetchPartition | FetchBatch | FetchFull] = []
        self.job: Apply | None = None
        self.telling: list[Announce] = []
        self.tokens: dict[str, tuple[int, Event]] = {}
        self.acked: set[str] = set()
        self.seen: dict[tuple[int, str], int] = {}
        self.view: dict[tuple[int, str], Change] = {}
        self.announced: set[int] = set()
        self.done: dict[int, int] = {}
        self.unconfirmed: set[int] = set()

    # ---- what can happen

    def write(self) -> None:
        partition = self.random.randrange(self.service.partitions)
        rows = [f"{partition}/{self.random.randrange(5)}" for _ in range(self.random.randint(1, 4))]
        writes = [(row, None if self.random.random() < 0.3 else f"v{self.random.random()}") for row in rows]
        event = self.service.write(partition, writes, lambda: self.random.random() < 0.5)
        if self.random.random() < 0.15:
            event = Event(1, event.prev, event.rev, event.committed_at_ms, None)
        self.events.append((partition, event))

    def compact(self) -> None:
        self.service.compact(self.random.randrange(self.service.partitions))

    def deliver(self, *, lose: float = 0.15, repeat: float = 0.15) -> None:
        if not self.events:
            return
        at = self.random.randrange(len(self.events))
        partition, event = self.events[at] if self.random.random() < repeat else self.events.pop(at)
        if self.random.random() < lose:
            return
        token = f"t{len(self.tokens)}"
        self.tokens[token] = (partition, event)
        self.machine.event(partition, event, token, self.now)

    def serve(self, *, fail: float = 0.2) -> None:
        """The service answers a request now; the answer arrives later, or never and times out."""
        if not self.requests:
            return
        request = self.requests.pop(self.random.randrange(len(self.requests)))
        if self.random.random() < fail:
            code = self.random.choice([ErrorCode.UNAVAILABLE, ErrorCode.LIMIT_EXCEEDED, ErrorCode.INTERNAL])
            self.replies.append(lambda: self.machine.fetches.failed(request.request, code, self.now))
        elif isinstance(request, FetchPartition):
            part = self.service.fetch(request.partition, request.since)
            self.replies.append(lambda: self.machine.fetches.partition_reply(request.request, part, self.now))
        elif isinstance(request, FetchBatch):
            rows = self.service.batch(request.row_ids)
            self.replies.append(lambda: self.machine.fetches.batch_reply(request.request, rows, self.now))
        else:
            every = [self.service.fetch(p, None) for p in range(self.service.partitions) if self.service.heads[p]]
            self.replies.append(lambda: self.machine.fetches.full_reply(request.request, every))

    def reply(self) -> None:
        if self.replies:
            self.replies.pop(self.random.randrange(len(self.replies)))()

    def heads(self) -> None:
        asked, heads = self.machine.known_revisions(), list(self.service.heads)
        self.replies.append(lambda: self.machine.compare_heads(asked, heads, self.now))

    def assign(self) -> None:
        owned = frozenset(p for p in range(self.service.partitions) if self.random.random() < 0.7)
        self.own(owned)

    def own(self, owned: frozenset[int]) -> None:
        before = set(self.machine.partitions)
        self.machine.assign(owned)
        for gone in before - owned:
            self.done.pop(gone, None)
        self.unconfirmed = (self.unconfirmed | (owned - before)) & owned

    def confirm(self) -> None:
        self.machine.filters_ready(self.unconfirmed, self.now)
        self.unconfirmed = set()

    def finish(self) -> None:
        if self.job is not None and (not self.telling or self.random.random() < 0.5):
            job, self.job = self.job, None
            self.machine.handover.done(job.number, self.now)
        elif self.telling:
            told = self.telling.pop(self.random.randrange(len(self.telling)))
            if told.assigned:
                self.announced |= told.partitions
            self.machine.handover.done(told.number, self.now)

    def wait(self) -> None:
        self.now += self.random.choice([0.01, 0.1, 1.0, 10.0])

    # ---- carrying out, and checking, what the machine asks for

    def poll(self) -> None:
        for action in self.machine.poll(self.now):
            if isinstance(action, Ack):
                self._check_acks(action)
            elif isinstance(action, Announce):
                self._check_announcement(action)
                self.telling.append(action)
            elif isinstance(action, Apply):
                assert self.job is None, "two jobs at once"
                self.job = action
                self._check_job(action)
            elif isinstance(action, FetchPartition | FetchBatch | FetchFull):
                self.requests.append(action)
            elif isinstance(action, GiveUpFetch):
                assert not self.machine.fetches.awaits(action.request)
                self.requests = [asked for asked in self.requests if asked.request != action.request]
            else:
                assert isinstance(action, MissedEvents), "the database was never restored"
        self._check_applied()

    def _check_acks(self, ack: Ack) -> None:
        for token in ack.tokens:
            partition, event = self.tokens[token]
            held = self.machine.partitions.get(partition)
            assert held is None or held.applied >= event.rev or not held.live, "acknowledged before it was applied"
            self.acked.add(token)

    def _check_announcement(self, announce: Announce) -> None:
        for told in self.telling:
            assert told.partitions.isdisjoint(announce.partitions), "a partition is told of twice at once"
        for partition in announce.partitions:
            assert (partition in self.announced) is not announce.assigned
            if not announce.assigned:  # a partition that is gained again starts anew
                self.announced.discard(partition)
                self.view = {k: c for k, c in self.view.items() if k[0] != partition}
                self.seen = {k: v for k, v in self.seen.items() if k[0] != partition}

    def _check_job(self, job: Apply) -> None:
        rows = [(change.partition, change.row_id) for change in job.changes]
        assert len(rows) == len(set(rows)), "a row twice in one job"
        for change in job.changes:
            assert change.partition in self.announced, "a change of a partition that was not announced"
            row = (change.partition, change.row_id)
            assert change.version > self.seen.get(row, 0), "a row went back"
            assert change.deleted is (change.value is None)
            self.seen[row] = change.version
            if change.deleted:
                self.view.pop(row, None)
            else:
                self.view[row] = change

    def _check_applied(self) -> None:
        for number, partition in self.machine.partitions.items():
            assert partition.applied >= self.done.get(number, 0), "applied fell"
            assert partition.expected >= partition.applied
            assert all(version > partition.applied for version in partition.tombstones.values())
            self.done[number] = partition.applied

    # ---- the end of a run

    def settle(self) -> None:
        """Lets everything that is under way arrive, with no more losses, and compares heads until all is quiet."""
        self.confirm()
        for _ in range(400):
            self.poll()
            if self.job is not None or self.telling:
                self.finish()
            elif self.replies:
                self.reply()
            elif self.requests:
                self.serve(fail=0)
            elif self.events:
                self.deliver(lose=0, repeat=0)
            elif self.machine.wake_at is not None:
                self.now = max(self.now, self.machine.wake_at)
            elif self.behind():
                self.heads()
            else:
                return
        raise AssertionError("the machine never came to rest")

    def behind(self) -> bool:
        return any(p.applied != self.service.heads[n] for n, p in self.machine.partitions.items())

    def check_settled(self) -> None:
        owned = self.machine.partitions
        assert self.machine.ready
        assert self.announced == set(owned)
        for number, partition in owned.items():
            truth = self.service.live(number)
            assert partition.applied == self.service.heads[number]
            assert partition.rows == truth
            assert {k[1]: c.value for k, c in self.view.items() if k[0] == number} == {
                k: r.value for k, r in truth.items()
            }
            assert not partition.tokens
            assert not partition.tombstones
            assert not partition.waiting


class CachedWorld(World):
    """A world in which the worker has a disk, and dies now and then. ``written``: all that the service ever wrote."""

    def __init__(self, random: Random, *, full: bool = False) -> None:
        super().__init__(random, full=full)
        self.full = full
        self.disk: dict[int, CachedPartition] = {}
        self.written: dict[tuple[int, str], dict[int, Row]] = {}
        self.machine = self._new_machine()

    def _new_machine(self) -> KeyMachine:
        return KeyMachine(
            "s",
            "k",
            full=self.full,
            partition_count=self.service.partitions,
            random=self.random.random,
            saving=Saving(),
        )

    def write(self) -> None:
        super().write()
        for number, rows in enumerate(self.service.rows):
            for row_id, row in rows.items():
                self.written.setdefault((number, row_id), {})[row.version] = row

    def own(self, owned: frozenset[int]) -> None:
        super().own(owned)
        self.unconfirmed = {number for number, partition in self.machine.partitions.items() if not partition.filtered}

    def save(self, *, fail: float = 0.3) -> None:
        """Writes some of what is due; a write that is reported as failed may have been made all the same."""
        assert self.machine.saving is not None
        saves = self.machine.saving.take(self.random.choice([1, 5, 100]))
        failed = self.random.random() < fail
        if not failed or self.random.random() < 0.5:
            for save in saves:
                self._put(save)
        if failed:
            self.machine.saving.failed(saves)

    def _put(self, save: PartitionSave) -> None:
        if save.partition is None:
            self.disk.pop(save.number, None)
            return
        before = self.disk.get(save.number)
        rows = {} if save.whole or before is None else dict(before.rows)
        assert save.whole or before is not None, "a part of a partition that the disk does not have"
        for row_id in save.gone:
            rows.pop(row_id, None)
        rows |= {row.row_id: row for row in save.rows}
        assert len(rows) == save.row_count
        self.disk[save.number] = CachedPartition(save.number, save.applied, rows, dict(save.tombstones), 0.0)

    def crash(self) -> None:
        """Another life begins with what the disk has."""
        for cached in self.disk.values():
            self._check_cached(cached)
        self.machine = self._new_machine()
        self.replies, self.requests, self.job, self.unconfirmed = [], [], None, set()
        self.seen, self.view, self.announced, self.done, self.telling = {}, {}, set(), {}, []
        self.machine.restore(
            [
                CachedPartition(part.number, part.applied, dict(part.rows), dict(part.tombstones), self.now - 5)
                for part in self.disk.values()
            ],
            hand_over=True,
        )
        if self.full:
            self.own(frozenset(range(self.service.partitions)))

    def _check_cached(self, cached: CachedPartition) -> None:
        """All changes up to ``applied`` are in, and what is newer was written, too: old at most, never wrong."""
        for (number, row_id), versions in self.written.items():
            if number != cached.number:
                continue
            before = max((version for version in versions if version <= cached.applied), default=0)
            held = cached.rows.get(row_id)
            if held is not None:
                assert held == versions[held.version]
                assert held.version >= before
            elif before and row_id not in cached.tombstones:
                # Or later, if that tombstone was compacted: an answer that leaves the row out stands for it.
                assert any(row.deleted for version, row in versions.items() if version >= before)

    def settle(self) -> None:
        if not self.full:
            self.assign()
        super().settle()


def run_with_crashes(random: Random, *, full: bool, steps: int) -> CachedWorld:
    world = CachedWorld(random, full=full)
    if full:
        world.own(frozenset(range(world.service.partitions)))
    for _ in range(steps):
        step = random.choice([*STEPS, "save", "save", "save", "save", "crash"])
        if not (full and step == "assign"):
            getattr(world, step)()
        if random.random() < 0.7:
            world.poll()
    world.settle()
    world.check_settled()
    assert world.machine.saving is not None
    while world.machine.saving.pending:
        world.save(fail=0)
    assert world.disk.keys() == world.machine.partitions.keys()
    for number, partition in world.machine.partitions.items():
        assert (world.disk[number].applied, world.disk[number].rows) == (partition.applied, partition.rows)
    return world


STEPS = ["write"] * 6 + ["deliver"] * 8 + ["serve"] * 6 + ["reply"] * 6 + ["finish"] * 8
STEPS += ["wait"] * 4 + ["confirm"] * 2 + ["heads", "assign", "compact"]


def run(random: Random, *, full: bool, steps: int) -> World:
    world = World(random, full=full)
    if full:
        world.own(frozenset(range(world.service.partitions)))
    for _ in range(steps):
        step = random.choice(STEPS)
        if not (full and step == "assign"):
            getattr(world, step)()
        if random.random() < 0.7:
            world.poll()
    world.settle()
    world.check_settled()
    return world


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**63), st.booleans(), st.integers(1, 250))
def test_any_order_loss_repetition_and_delay_ends_in_the_truth(seed: int, full: bool, steps: int) -> None:
    run(Random(seed), full=full, steps=steps)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**63), st.booleans(), st.integers(1, 250))
def test_a_worker_with_a_disk_may_die_at_any_moment(seed: int, full: bool, steps: int) -> None:
    run_with_crashes(Random(seed), full=full, steps=steps)


def test_cached_rows_are_told_with_their_age_and_only_what_changed_is_fetched() -> None:
    world = run_with_crashes(Random(3), full=False, steps=300)
    world.crash()
    world.poll()
    assert world.job is None
    assert [told.assigned for told in world.telling] == [True]
    world.finish()
    world.poll()
    assert world.job is not None
    assert {change.cached_age_s for change in world.job.changes} == {5.0}
    assert all(change.stale for change in world.job.changes)
    before = world.machine.stats.fetches
    world.own(frozenset(world.machine.partitions))
    world.settle()
    assert world.machine.stats.fetches_since > before == 0


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [run(Random(7), full=False, steps=300) for _ in range(2)]
    assert runs[0].seen == runs[1].seen
    assert runs[0].machine.stats == runs[1].machine.stats
    assert runs[0].machine.stats.gaps > 0
    assert runs[0].machine.stats.batch_fetches > 0


@pytest.mark.parametrize("seed", range(20))
def test_every_delivery_of_an_owned_partition_is_acknowledged_in_the_end(seed: int) -> None:
    world = World(Random(seed))
    world.own(frozenset(range(3)))
    world.confirm()
    for _ in range(120):
        for step in ("write", "deliver", "serve", "reply", "finish", "wait"):
            getattr(world, step)()
            world.poll()
    world.settle()
    for partition, event in list(world.tokens.values()):
        token = f"t{len(world.tokens)}"
        world.tokens[token] = (partition, event)
        world.machine.event(partition, event, token, world.now)
        world.poll()
        assert token in world.acked
