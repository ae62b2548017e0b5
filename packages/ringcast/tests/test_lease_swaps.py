"""Going over from one lease to another: which one counts, and that nobody's partitions move for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from ringcast._protocol.assignment import GroupMembership
from ringcast._protocol.kv_mirror import Entry, KvMirror
from ringcast._protocol.lease_choice import LINGER_S, PATIENCE_S, SURE_S, LeaseChoice
from ringcast._protocol.membership import Membership, orphaned_records
from ringcast_wire import LeaseRecord, NodeRecord, SlotClaim, StoreSettings, encode_record, names

WORKERS = ("a", "b", "c")
LEASE = encode_record(LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1))
LATE_S = LINGER_S - 0.1
"""How late a watch may be."""


@dataclass
class Buckets:
    """What was written, in order: time, bucket, key, entry."""

    log: list[tuple[float, str, str, Entry]] = field(default_factory=list)

    def write(self, now: float, bucket: str, key: str, value: bytes | None) -> None:
        self.log.append((now, bucket, key, Entry(len(self.log) + 1, value)))

    def record(self, now: float, worker_id: str, slot: int, lease: str) -> None:
        claim = SlotClaim(worker_id=worker_id, lease=lease)
        self.write(now, "nodes", names.slot_key("k", slot), encode_record(claim))
        node = NodeRecord(slot=slot, lease=lease, incarnation=worker_id)
        self.write(now, "nodes", names.node_key("k", worker_id), encode_record(node))


def seen_by(log: list[tuple[float, str, str, Entry]], delays: dict[str, list[float]]) -> list[tuple[float, KvMirror]]:
    """Runs a peer over a log of which each bucket comes late, in its own order; returns its assignments."""
    arrivals: list[tuple[float, int, str, str, Entry]] = []
    last = {"nodes": 0.0, "leases": 0.0}
    for number, (at, bucket, key, entry) in enumerate(log):
        last[bucket] = max(last[bucket], at + delays[bucket][number % len(delays[bucket])])
        arrivals.append((last[bucket], number, bucket, key, entry))
    peers = GroupMembership(["k"], "a", StoreSettings(partition_count=64), settle_s=0.0, grace_s=0.0)
    for mirror in (peers.membership.nodes, peers.membership.leases):
        mirror.replace({})
    found = []
    for at, _, bucket, key, entry in sorted(arrivals, key=lambda one: one[:2]):
        mirror = peers.membership.nodes if bucket == "nodes" else peers.membership.leases
        if mirror.put(key, entry):
            peers.changed(at, None)
            found += [(at, assignment.owners) for assignment, _ in peers.poll(at)]
    return found  # type: ignore[return-value]


delays = st.lists(st.floats(0, LATE_S), min_size=1, max_size=7)


@given(
    swaps=st.lists(st.tuples(st.sampled_from(WORKERS), st.floats(0, 3)), max_size=12),
    hosts=st.integers(1, 3),
    nodes=delays,
    leases=delays,
)
def test_live_workers_that_change_their_lease_move_nothing_however_late_the_watches_are(
    swaps: list[tuple[str, float]], hosts: int, nodes: list[float], leases: list[float]
) -> None:
    """Each worker is at its own lease or its host's; it has the new one first, and gives the old one back later."""
    buckets = Buckets()
    for worker_id in WORKERS:
        buckets.write(0.0, "leases", worker_id, LEASE)
    for slot, worker_id in enumerate(WORKERS):
        buckets.record(0.0, worker_id, slot, worker_id)
    at_host = dict.fromkeys(WORKERS, False)
    free_at = dict.fromkeys(WORKERS, 10.0)
    later: list[tuple[float, str]] = []
    taken: set[str] = set()
    pending = []
    for worker_id, pause in swaps:
        now = free_at[worker_id] + pause
        slot = WORKERS.index(worker_id)
        host = f"host.{slot % hosts}"
        free_at[worker_id] = now + LINGER_S + PATIENCE_S + LATE_S
        if at_host[worker_id]:
            pending.append((now - PATIENCE_S, "leases", worker_id, LEASE, slot))
            pending.append((now, "record", worker_id, worker_id.encode(), slot))
        else:
            if host not in taken:
                taken.add(host)
                pending.append((10.0, "leases", host, LEASE, slot))
            pending.append((now, "record", worker_id, host.encode(), slot))
            later.append((now + LINGER_S, worker_id))
        at_host[worker_id] = not at_host[worker_id]
    pending += [(at, "leases", worker_id, b"", 0) for at, worker_id in later]
    for at, what, key, value, slot in sorted(pending, key=lambda one: one[0]):
        if what == "record":
            buckets.record(at, key, slot, value.decode())
        else:
            buckets.write(at, what, key, value or None)
    found = seen_by(buckets.log, {"nodes": nodes, "leases": leases})
    assert not [at for at, _ in found if at >= 10.0]


def test_an_unseen_lease_counts_only_while_the_one_before_it_lives() -> None:
    membership = Membership()
    buckets = Buckets()
    buckets.write(0.0, "leases", "a", LEASE)
    buckets.record(0.0, "a", 0, "a")
    buckets.record(1.0, "a", 0, "host.1")
    membership.nodes.replace({})
    membership.leases.replace({})
    for _, bucket, key, entry in buckets.log:
        (membership.nodes if bucket == "nodes" else membership.leases).put(key, entry)
    assert [member.worker_id for member in membership.members("k")] == ["a"]
    membership.leases.put("a", Entry(90, None))
    assert not membership.members("k")
    membership.leases.put("a", Entry(91, LEASE))
    assert membership.members("k")
    membership.leases.put("host.1", Entry(92, None))  # it has been there, and has ended
    assert not membership.members("k")


def test_a_snapshot_of_the_leases_shows_every_one_that_lives() -> None:
    membership = Membership()
    membership.nodes.replace({})
    membership.leases.replace({"a": Entry(1, LEASE)})
    buckets = Buckets()
    buckets.record(0.0, "a", 0, "a")
    buckets.record(1.0, "a", 0, "host.1")
    for _, _, key, entry in buckets.log:
        membership.nodes.put(key, entry)
    assert membership.members("k")
    membership.leases.replace({"a": Entry(1, LEASE)})
    assert not membership.members("k")


def test_another_process_under_the_same_id_is_a_rival_while_its_lease_lives() -> None:
    membership = Membership()
    node = encode_record(NodeRecord(slot=0, lease="host.2", incarnation="theirs"))
    membership.nodes.put(names.node_key("k", "a"), Entry(1, node))
    assert membership.duplicate_worker("k", "a", "mine", {"a"}) is None
    membership.leases.put("host.2", Entry(2, LEASE))
    rival = membership.duplicate_worker("k", "a", "mine", {"a"})
    assert rival is not None
    assert rival.incarnation == "theirs"
    assert membership.duplicate_worker("k", "a", "theirs", {"a"}) is None
    assert membership.duplicate_worker("k", "a", "mine", {"a", "host.2"}) is None, "the host's agent lets only one in"
    assert membership.duplicate_worker("k", "b", "mine", set()) is None


def test_records_of_the_dead_that_name_a_hosts_lease_are_orphaned() -> None:
    membership, buckets = Membership(), Buckets()
    for slot, worker_id in enumerate(WORKERS):
        buckets.record(0.0, worker_id, slot, "elsewhere" if worker_id == "c" else "host.1")
    buckets.write(0.0, "nodes", "k.broken", b"{")
    for _, _, key, entry in buckets.log:
        membership.nodes.put(key, entry)
    assert [name for name, _ in orphaned_records(membership.nodes, "host.1", {("k", "a")})] == ["k.b", "k.slot.1"]
    found = orphaned_records(membership.nodes, "host.1", {("other", "a"), ("k", "b")})
    assert [name for name, _ in found] == ["k.a", "k.slot.0"]
    membership.nodes.drop(*found[0])
    assert [name for name, _ in orphaned_records(membership.nodes, "host.1", {("k", "b")})] == ["k.slot.0"]


def test_a_quick_restart_of_the_agent_changes_nothing_in_the_records() -> None:
    choice = LeaseChoice("own")
    assert not choice.answered("host", 0.0)
    choice.recorded("host", 0.0)
    assert not choice.wants_own(10.0)
    choice.lost(10.0)
    assert choice.wants_own(10.0)
    assert not choice.own_taken(10.1)
    assert not choice.poll(10.0 + PATIENCE_S - 0.1)
    assert not choice.answered("host", 11.0)
    assert choice.id == "host"
    assert not choice.wants_own(11.0)


def test_the_records_name_the_own_lease_only_once_it_is_held_and_the_agent_has_been_gone_for_long() -> None:
    choice = LeaseChoice("own")
    choice.answered("host", 0.0)
    choice.recorded("host", 0.0)
    choice.lost(10.0)
    assert not choice.poll(10.0 + PATIENCE_S), "it is not held yet"
    assert not choice.own_taken(12.5)
    assert choice.poll(12.5)
    assert choice.id == "own"
    choice.recorded("own", 12.6)
    assert not choice.poll(60.0)
    assert choice.wants_own(60.0)

    assert not choice.answered("next", 60.0)
    assert choice.id == "next"
    assert choice.wants_own(1000.0), "as long as records name it"
    choice.recorded("next", 1000.0)
    assert choice.wants_own(1000.0 + LINGER_S - 0.1)
    assert not choice.wants_own(1000.0 + LINGER_S)


def test_what_lived_by_no_lease_for_a_while_is_verified() -> None:
    given_up = LeaseChoice("own")
    given_up.answered("host", 0.0)
    given_up.lost(1.0, given_up=True)
    assert given_up.answered("host", 1.1)
    assert not given_up.answered("host", 1.2)

    late = LeaseChoice("own")
    late.answered("host", 0.0)
    late.lost(1.0)
    assert late.covered(1.0 + SURE_S)
    assert not late.covered(1.1 + SURE_S)
    assert late.own_taken(1.1 + SURE_S)
    assert late.poll(1.1 + SURE_S)

    back = LeaseChoice("own")
    back.answered("host", 0.0)
    back.lost(1.0)
    assert back.answered("host", 20.0), "neither lease was held for sure"


def test_without_an_agent_from_the_start_the_own_lease_counts() -> None:
    choice = LeaseChoice("own")
    assert (choice.id, choice.wants_own(0.0), choice.covered(0.0)) == ("own", True, False)
    choice.lost(0.0)
    assert not choice.own_taken(0.1)
    assert not choice.poll(100.0)
