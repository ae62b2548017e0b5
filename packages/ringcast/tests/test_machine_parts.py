"""Membership, slots, assignment, lease, filters and back-off: the decisions that are not about rows."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast._protocol.assignment import Assignor, owners
from ringcast._protocol.filters import FilterPlan
from ringcast._protocol.kv_mirror import Entry, KvMirror
from ringcast._protocol.lease import LeaseKeeper, Refusal
from ringcast._protocol.membership import Member, Membership
from ringcast._protocol.slots import Slots
from ringcast_wire import (
    Backoff,
    LeaseRecord,
    LimitExceededError,
    NodeRecord,
    SlotClaim,
    StoreSettings,
    Strategy,
    encode_record,
    limits,
    names,
)

LEASE = LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1)


class Buckets:
    """The buckets of a store, as the mirrors see them."""

    def __init__(self) -> None:
        self.membership = Membership()
        self.revision = 0

    def put(self, mirror: KvMirror, key: str, value: bytes | None) -> None:
        self.revision += 1
        mirror.put(key, Entry(self.revision, value))

    def join(self, worker_id: str, slot: int, *, alive: bool = True, claim: bool = True) -> None:
        record = NodeRecord(slot=slot, lease=worker_id, incarnation="i")
        self.put(self.membership.nodes, names.node_key("k", worker_id), encode_record(record))
        if claim:
            self.claim(worker_id, slot)
        if alive:
            self.put(self.membership.leases, worker_id, encode_record(LEASE))

    def claim(self, worker_id: str, slot: int) -> None:
        record = encode_record(SlotClaim(worker_id=worker_id, lease=worker_id))
        self.put(self.membership.nodes, names.slot_key("k", slot), record)

    def die(self, worker_id: str) -> None:
        self.put(self.membership.leases, worker_id, None)

    def members(self) -> list[tuple[str, int]]:
        return [(member.worker_id, member.slot) for member in self.membership.members("k")]


def test_a_member_is_a_node_whose_lease_lives() -> None:
    buckets = Buckets()
    buckets.join("a", 0)
    buckets.join("b", 1, alive=False)
    buckets.put(buckets.membership.nodes, "other.c", encode_record(NodeRecord(slot=2, lease="a", incarnation="i")))
    buckets.put(buckets.membership.nodes, "k.broken", b"{")
    assert buckets.members() == [("a", 0)]
    buckets.die("a")
    assert buckets.members() == []


def test_of_two_with_one_slot_the_claim_decides_else_the_lower_id() -> None:
    buckets = Buckets()
    buckets.join("b", 0)
    buckets.join("a", 0, claim=False)
    assert buckets.members() == [("b", 0)]
    buckets.put(buckets.membership.nodes, names.slot_key("k", 0), None)
    assert buckets.members() == [("a", 0)]


def test_repeats_and_late_arrivals_do_no_harm_and_a_refresh_is_no_news() -> None:
    mirror = KvMirror()
    assert mirror.put("x", Entry(5, b"new"))
    assert not mirror.put("x", Entry(5, b"new"))
    assert not mirror.put("x", Entry(3, b"old"))
    assert not mirror.put("x", Entry(6, b"new"))
    assert mirror.put("x", Entry(7, None))
    assert mirror.revision("x") == 7
    assert mirror.revision("never") == 0
    mirror.replace({"y": Entry(1, b"after the server lost its disk")})
    assert set(mirror.entries) == {"y"}


def test_the_lowest_free_slot_is_chosen_and_an_own_one_is_kept() -> None:
    buckets = Buckets()
    assert Slots(buckets.membership).choose("k", "a").slot == 0
    buckets.join("a", 0)
    buckets.join("b", 1)
    buckets.join("c", 2)
    assert Slots(buckets.membership).choose("k", "d").slot == 3
    buckets.die("b")
    choice = Slots(buckets.membership).choose("k", "d")
    assert (choice.slot, choice.is_ours) == (1, False)
    assert choice.revision == buckets.membership.nodes.revision(names.slot_key("k", 1))
    assert (Slots(buckets.membership).choose("k", "b").slot, Slots(buckets.membership).choose("k", "b").is_ours) == (
        1,
        True,
    )
    buckets.claim("c", 7)
    assert Slots(buckets.membership).choose("k", "c").surplus == (7,)


def test_one_worker_too_many_is_refused() -> None:
    buckets = Buckets()
    for slot in range(limits.MAX_WORKERS_PER_KEY):
        buckets.join(f"w{slot}", slot)
    with pytest.raises(LimitExceededError, match="200"):
        Slots(buckets.membership).choose("k", "late")
    assert Slots(buckets.membership).choose("k", "w7").is_ours
    buckets.die("w9")
    assert Slots(buckets.membership).choose("k", "late").slot == 9


def test_a_worker_keeps_the_slot_of_its_record_whatever_others_claim() -> None:
    buckets = Buckets()
    for number, worker_id in enumerate("abc"):
        buckets.join(worker_id, number)
    for claimant in ("a", "b", "c", "nobody"):  # any worker of a key can write any claim, in any name
        for slot in range(limits.MAX_WORKERS_PER_KEY):
            buckets.claim(claimant, slot)
        for number, worker_id in enumerate("abc"):
            choice = Slots(buckets.membership).choose("k", worker_id)
            assert choice.slot == number
            assert choice.is_ours == (claimant == worker_id)
            assert len(choice.surplus) == (limits.MAX_WORKERS_PER_KEY - 1 if claimant == worker_id else 0)
            assert number not in choice.surplus
        assert buckets.members() == [("a", 0), ("b", 1), ("c", 2)]
    buckets.put(buckets.membership.leases, "nobody", encode_record(LEASE))
    assert Slots(buckets.membership).choose("k", "d").slot == 3, "no record stands behind these claims"


def test_of_two_records_with_one_slot_that_without_the_claim_moves() -> None:
    buckets = Buckets()
    buckets.join("b", 0)
    buckets.join("a", 0, claim=False)
    assert Slots(buckets.membership).choose("k", "b").slot == 0
    assert Slots(buckets.membership).choose("k", "a").slot == 1
    buckets.die("b")
    assert Slots(buckets.membership).choose("k", "a").slot == 0


@given(
    st.sets(st.integers(0, 40), min_size=1, max_size=20),
    st.sampled_from([Strategy.JUMP, Strategy.RING]),
    st.integers(1, 128),
)
def test_every_partition_has_an_owner_whatever_the_order_of_the_members(
    slots: set[int], strategy: Strategy, partitions: int
) -> None:
    settings = StoreSettings(partition_count=partitions, strategy=strategy)
    members = [Member(f"w{slot}", slot) for slot in slots]
    found = owners(settings, members)
    assert len(found) == partitions
    assert set(found) <= {member.worker_id for member in members}
    assert owners(settings, members[::-1]) == found


def assignor(**settings: float) -> Assignor:
    return Assignor("k", "a", StoreSettings(partition_count=32), **settings)


A, B, C = Member("a", 0), Member("b", 1), Member("c", 2)


def test_changes_settle_from_the_first_of_them() -> None:
    peer = assignor(settle_s=0.05)
    peer.changed(10.0)
    peer.changed(10.04)
    assert peer.wake_at == 10.05
    assert peer.poll((A,), 10.049) is None
    first = peer.poll((A,), 10.05)
    assert first is not None
    assert (first.epoch, first.of("a"), first.of("b")) == (1, frozenset(range(32)), frozenset())
    assert peer.wake_at is None


def test_epochs_rise_with_every_difference_and_only_then() -> None:
    peer = assignor(settle_s=0.0)
    epochs = []
    for now, members in enumerate([(A,), (A, B), (A, B), (A,), (A, C)]):
        peer.changed(now)
        assignment = peer.poll(members, now)
        epochs.append(assignment.epoch if assignment is not None else None)
    assert epochs == [1, 2, None, 3, 4]


def test_a_worker_that_does_not_see_itself_keeps_what_it_has() -> None:
    peer = assignor(settle_s=0.0)
    peer.changed(0.0)
    first = peer.poll((A, B), 0.0)
    peer.changed(1.0)
    assert peer.poll((B, C), 1.0) is None
    assert peer.current is first


def test_after_a_reconnect_missing_members_are_waited_for() -> None:
    peer = assignor(settle_s=0.0, grace_s=5.0)
    peer.changed(0.0)
    peer.poll((A, B), 0.0)
    peer.reconnected(10.0)
    assert peer.poll((A,), 10.0) is None
    assert peer.wake_at == 15.0
    peer.changed(11.0)
    assert peer.poll((A, B), 11.0) is None  # b is back: nothing changes
    peer.reconnected(20.0)
    assert peer.poll((A,), 20.0) is None
    alone = peer.poll((A,), 25.0)
    assert alone is not None
    assert len(alone.of("a")) == 32


def test_after_a_reconnect_members_that_are_known_to_have_left_are_not_waited_for() -> None:
    """Those who stayed have given up what is this worker's already: nobody would own it for the grace."""
    peer = assignor(settle_s=0.0, grace_s=5.0)
    peer.changed(0.0)
    peer.poll((A, B, C), 0.0)
    peer.reconnected(10.0)
    assert peer.poll((A, B), 10.0) is None
    peer.changed(10.1)
    shared = peer.poll((A, B), 10.1, {"c"})
    assert shared is not None
    assert set(shared.owners) == {"a", "b"}


def test_the_grace_ends_as_soon_as_all_former_members_are_back() -> None:
    peer = assignor(settle_s=0.1, grace_s=5.0)
    peer.changed(0.0)
    peer.poll((A, B), 0.1)
    peer.reconnected(10.0)
    assert peer.poll((A,), 10.1) is None
    peer.changed(10.5)  # b is back, and c is new
    assert peer.wake_at == 10.6
    found = peer.poll((A, B, C), 10.6)
    assert found is not None
    assert found.of("c")


def test_a_former_member_that_is_back_with_another_slot_is_not_waited_for() -> None:
    """As after the loss of the server's disk, when slots are claimed anew."""
    peer = assignor(settle_s=0.0, grace_s=5.0)
    peer.changed(0.0)
    before = peer.poll((A, B), 0.0)
    peer.reconnected(10.0)
    after = peer.poll((Member("a", 1), Member("b", 0)), 10.0)
    assert before is not None
    assert after is not None
    assert after.owners != before.owners


def test_a_lease_is_refreshed_in_time_and_sooner_after_a_failure() -> None:
    keeper = LeaseKeeper(LEASE, Random(1).random, refresh_s=5.0, ttl_s=10.0)
    assert keeper.expired(0.0)
    keeper.written(3, 100.0)
    assert (keeper.revision, keeper.due, keeper.expired(109.9)) == (3, 105.0, False)
    keeper.failed(105.0)
    assert 105.0 < keeper.due <= 105.25
    assert keeper.failures == 1
    assert keeper.expired(110.0)
    keeper.refresh_now(111.0)
    assert keeper.due == 111.0


def test_three_tries_of_a_heartbeat_fit_into_two_seconds() -> None:
    keeper = LeaseKeeper(LEASE, lambda: 0.999, refresh_s=5.0, ttl_s=10.0)
    keeper.written(3, 100.0)
    now = 0.0
    for _ in range(3):
        assert not keeper.in_trouble
        now = max(now, keeper.due) + keeper.patience_s
        keeper.failed(now)
    assert keeper.in_trouble
    assert now <= 107.0
    assert keeper.patience_s == 2.5  # a slow network is no dead one
    while not keeper.expired(now):
        now = max(now, keeper.due) + keeper.patience_s
        keeper.failed(now)
    assert now <= 115.0  # the end of the lease is noticed soon
    keeper.written(4, now)
    assert not keeper.in_trouble
    assert keeper.patience_s == 0.5


@pytest.mark.parametrize(
    ("held", "refusal"),
    [
        (None, Refusal.GONE),
        (LEASE, Refusal.OURS),
        (LeaseRecord(incarnation="j", host="h", pid=2, started_at_ms=2), Refusal.TAKEN),
    ],
)
def test_a_refused_lease_is_ours_or_gone_or_taken(held: LeaseRecord | None, refusal: Refusal) -> None:
    assert LeaseKeeper(LEASE, Random(1).random).refused(held) is refusal


@given(st.lists(st.sets(st.integers(0, 30)), max_size=20), st.integers(1, 7))
def test_filters_are_spread_within_the_limit_and_stay_where_they_are(steps: list[set[int]], most: int) -> None:
    plan, server = FilterPlan(most), dict[int, frozenset[str]]()
    for step in steps:
        wanted = {str(number) for number in step}
        before = {subject: index for index, filters in server.items() for subject in filters}
        plan.want(wanted)
        for index, filters in plan.due():
            assert filters != server.get(index, frozenset())
            assert len(filters) <= most
            server[index] = filters
            plan.confirm(index, filters)
        assert plan.due() == []
        assert plan.confirmed == wanted
        after = [(subject, index) for index, filters in server.items() for subject in filters]
        assert sorted(subject for subject, _ in after) == sorted(wanted)
        assert all(before.get(subject, index) == index for subject, index in after)


def test_a_consumer_that_was_lost_is_due_again() -> None:
    plan = FilterPlan()
    plan.want({"a", "b"})
    plan.confirm(0, frozenset({"a", "b"}))
    plan.lost(0)
    assert plan.confirmed == frozenset()
    assert plan.due() == [(0, frozenset({"a", "b"}))]


@given(st.integers(0, 2**32))
def test_back_off_doubles_up_to_its_limit_with_jitter(seed: int) -> None:
    backoff = Backoff(Random(seed).random, first_s=1.0, most_s=30.0)
    for full in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        assert full / 2 <= backoff.next_s() <= full
    backoff.reset()
    assert backoff.next_s() <= 1.0
