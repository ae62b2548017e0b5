"""Rules of recovery whose lack the simulation has shown (tests/simulation): each of these was once broken."""

from __future__ import annotations

from random import Random
from typing import TypeVar

import pytest
from ringcast._protocol.actions import Action, Announce, Apply, FetchBatch, FetchFull, FetchPartition, MissedEvents
from ringcast._protocol.anti_entropy import AntiEntropyTimer
from ringcast._protocol.assignment import GroupMembership
from ringcast._protocol.decode import read_batch
from ringcast._protocol.filters import FilterPlan
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.lease import LeaseKeeper, Refusal
from ringcast_core import row_partition
from ringcast_wire import (
    WIRE_VERSION,
    Change,
    EndedLeases,
    ErrorCode,
    Event,
    FetchReply,
    LeaseRecord,
    NodeRecord,
    PartitionRows,
    ProtocolError,
    Row,
    StoreSettings,
    encode,
    encode_record,
    names,
)

A = TypeVar("A", bound=Action)

LEASE = LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1)
SETTINGS = StoreSettings(partition_count=4)


def test_a_view_that_is_not_whole_wakes_nobody() -> None:
    """A changed membership was due, could not be polled yet, and so was due again at once: the worker span."""
    peers = GroupMembership(["k"], "w1", SETTINGS, settle_s=0.05, grace_s=5.0)
    peers.reconnected(1.0)
    peers.changed(1.0)
    peers.membership.nodes.replace({})
    assert peers.wake_at is None
    assert peers.poll(2.0) == []
    peers.membership.leases.replace({})
    assert peers.wake_at == 1.05


@pytest.mark.parametrize("reported", [True, False])
def test_a_member_that_others_have_given_up_is_not_waited_for(*, reported: bool) -> None:
    """The share of a worker that died belonged to nobody for the grace of one that was cut off meanwhile."""
    peers = GroupMembership(["k"], "w1", SETTINGS, settle_s=0.0, grace_s=5.0)
    nodes, leases = peers.membership.nodes, peers.membership.leases
    workers = {f"w{slot}": NodeRecord(slot=slot, lease=f"w{slot}", incarnation="i") for slot in range(3)}
    entries = {names.node_key("k", name): Entry(1, encode_record(record)) for name, record in workers.items()}
    nodes.replace(entries)
    leases.replace({name: Entry(1, encode_record(LEASE)) for name in workers})
    peers.changed(0.0)
    assert len(peers.poll(0.0)) == 1
    peers.reconnected(10.0)
    leases.correct("w2", Entry(1, None))
    if reported:
        nodes.replace(entries | {names.ended_key("w0"): Entry(2, encode_record(EndedLeases(leases=("w2",))))})
    found = peers.poll(10.0)
    assert [sorted(set(assignment.owners)) for assignment, _ in found] == ([["w0", "w1"]] if reported else [])


def test_an_update_that_timed_out_may_have_taken_effect() -> None:
    """A partition lost and gained again while the update without it got no answer was never heard of again."""
    plan = FilterPlan()
    plan.want({"a", "b"})
    plan.update_sent(0, frozenset({"a", "b"}))
    plan.confirm(0, frozenset({"a", "b"}))
    plan.want({"a"})
    plan.update_sent(0, frozenset({"a"}))  # and no answer comes
    assert plan.confirmed == frozenset({"a"})
    plan.want({"a", "b"})
    assert plan.confirmed == frozenset({"a"})
    assert plan.due() == [(0, frozenset({"a", "b"}))]
    plan.update_sent(0, frozenset({"a", "b"}))
    plan.confirm(0, frozenset({"a", "b"}))
    assert plan.due() == []
    assert plan.confirmed == frozenset({"a", "b"})


def test_a_deletion_that_timed_out_is_asked_for_again() -> None:
    plan = FilterPlan()
    plan.want({"a"})
    plan.update_sent(0, frozenset({"a"}))
    plan.confirm(0, frozenset({"a"}))
    plan.want(set())
    plan.update_sent(0, frozenset())
    assert plan.due() == [(0, frozenset())]
    plan.want({"a"})
    assert plan.due() == [(0, frozenset({"a"}))]
    assert plan.confirmed == frozenset()


def test_a_consumer_whose_events_do_not_come_is_given_its_filters_again() -> None:
    """A paused process with the same worker id, whose place was taken, had put its own filters on the consumer."""
    plan = FilterPlan(1)
    plan.want({"a", "b"})
    for index, filters in plan.due():
        plan.update_sent(index, filters)
        plan.confirm(index, filters)
    plan.suspect("b")
    assert plan.due() == [(1, frozenset({"b"}))]
    assert plan.confirmed == frozenset({"a", "b"})
    plan.confirm(1, frozenset({"b"}))
    assert plan.due() == []
    plan.suspect("c")
    assert plan.due() == []


def test_a_consumer_that_is_lost_when_nobody_wants_it_is_done_with() -> None:
    """Its pull was never told to end: it asked for ever for what was not there, and came late to the next consumer."""
    plan = FilterPlan()
    plan.want({"a"})
    plan.update_sent(0, frozenset({"a"}))
    plan.confirm(0, frozenset({"a"}))
    plan.want(set())
    plan.lost(0)
    assert plan.due() == [(0, frozenset())]
    plan.confirm(0, frozenset())
    assert plan.due() == []


def test_a_lease_that_was_found_gone_is_not_forgotten_when_the_next_write_fails() -> None:
    """NATS had lost its disk: the lease was gone long before its time, and the write after that timed out."""
    keeper = LeaseKeeper(LEASE, Random(1).random, refresh_s=5.0, ttl_s=10.0)
    assert keeper.refused(None) is Refusal.GONE  # an expired one of a process before us, at the start
    assert keeper.written(1, 100.0) is False
    assert keeper.written(2, 105.0) is False
    assert keeper.refused(None) is Refusal.GONE
    keeper.failed(107.0)
    assert keeper.refused(LEASE) is Refusal.OURS  # it had landed after all
    assert keeper.written(4, 108.0) is True
    assert keeper.written(5, 113.0) is False
    assert keeper.written(6, 123.0) is True  # a whole lease has passed


def test_a_comparison_that_failed_is_made_again_soon() -> None:
    """One that a lost lease had called for waited for the next regular one."""
    timer = AntiEntropyTimer(Random(1).random, 600.0)
    assert 450.0 <= timer.next_s() <= 750.0
    delays = [timer.next_s(failed=True) for _ in range(8)]
    assert 0.5 <= delays[0] <= 1.0
    assert max(delays) <= 30.0
    assert timer.next_s() >= 450.0
    assert timer.next_s(failed=True) <= 1.0


def test_a_gap_that_only_the_heads_show_is_told() -> None:
    machine = KeyMachine("s", "k", full=True, partition_count=1, random=Random(1).random)
    machine.assign(frozenset({0}))
    machine.filters_ready({0}, 0.0)
    pending = machine.poll(0.0)
    machine.handover.done(next(action.number for action in pending if isinstance(action, Announce)), 0.0)
    (full,) = [action for action in machine.poll(0.0) + pending if isinstance(action, FetchFull)]
    machine.fetches.full_reply(full.request, [])
    assert machine.poll(0.0) == []
    machine.compare_heads(machine.known_revisions(), [1], 1.0)
    machine.event(0, Event(1, 0, 1, 7, [Change("a", 1, False, "x")]), "t", 1.1)  # it was only late
    assert not [action for action in machine.poll(2.0) if isinstance(action, MissedEvents)]
    machine.handover.done(machine.last_number, 2.0)
    machine.compare_heads(machine.known_revisions(), [2], 3.0)
    assert MissedEvents(0) in machine.poll(4.0)


class Bench:
    """A machine with two live partitions, of which the first waits for a row that could not be fetched."""

    def __init__(self) -> None:
        self.pending: list[Action] = []
        self.machine = KeyMachine("s", "k", full=False, partition_count=2, random=Random(1).random)
        self.machine.assign(frozenset({0, 1}))
        self.machine.filters_ready({0, 1}, 0.0)
        self.finish_jobs()
        for fetch in self.poll(FetchPartition):
            self.machine.fetches.partition_reply(fetch.request, PartitionRows(fetch.partition, 0, True, []), 0.0)
        self.finish_jobs()
        self.machine.event(0, Event(1, 0, 1, 7, [Change("a", 1)]), "t0", 1.0)
        for _ in range(5):
            for batch in self.poll(FetchBatch):
                self.machine.fetches.failed(batch.request, ErrorCode.UNAVAILABLE, 1.0)
        assert self.machine.wake_at is not None
        self.machine.event(1, Event(1, 0, 1, 7, [Change("b", 1, False, "now")]), "t1", 1.0)
        assert not self.changes()

    def poll(self, kind: type[A]) -> list[A]:
        self.pending += self.machine.poll(1.1)
        found: list[A] = [action for action in self.pending if isinstance(action, kind)]
        self.pending = [action for action in self.pending if not isinstance(action, kind)]
        return found

    def finish_jobs(self) -> None:
        while self.machine._deliveries or self.machine.announcements:
            self.pending += self.machine.poll(0.0)
            for job in self.machine.announcements.active:
                self.machine.handover.done(job, 0.0)
            if self.machine._deliveries.active is not None:
                self.machine.handover.done(self.machine._deliveries.active[0], 0.0)

    def changes(self) -> list[str]:
        found = []
        for job in self.poll(Apply):
            found += [change.row_id for change in job.changes]
            self.machine.handover.done(job.number, 1.1)
            found += self.changes()
        return found


def test_what_a_partition_fetch_has_brought_keeps_nobody_waiting() -> None:
    """The batch waited for its next try, for up to 30 s, and all changes of the key behind it."""
    bench = Bench()
    bench.machine.compare_heads(bench.machine.known_revisions(), [2, 0], 0.0)
    (fetch,) = bench.poll(FetchPartition)
    rows = [Row("a", "x", 1), Row("c", "y", 2)]
    bench.machine.fetches.partition_reply(fetch.request, PartitionRows(0, 2, False, rows), 1.1)
    assert sorted(bench.changes()) == ["a", "b", "c"]


def test_a_row_of_a_partition_that_was_lost_keeps_nobody_waiting() -> None:
    bench = Bench()
    bench.machine.assign(frozenset({1}))
    assert bench.changes() == ["b"]


def test_an_answer_that_says_nothing_of_a_partition_deletes_none_of_its_rows() -> None:
    """Rows that an answer leaves out were taken for deleted, even if it did not speak of their partition."""
    row_ids = [f"row{number}" for number in range(20)]
    here = [row_id for row_id in row_ids if row_partition(row_id, 4) == 1]
    assert 0 < len(here) < len(row_ids)
    parts = [PartitionRows(number, 9, False, []) for number in range(4)]
    assert len(read_batch(encode(FetchReply(WIRE_VERSION, parts)), row_ids, 4).parts) == 4
    assert read_batch(encode(FetchReply(WIRE_VERSION, parts[1:2])), here, 4).parts
    with pytest.raises(ProtocolError, match=r"nothing of partitions \[1\]"):
        read_batch(encode(FetchReply(WIRE_VERSION, [parts[0], *parts[2:]])), row_ids, 4)
