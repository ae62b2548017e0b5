"""Whose lease is read when, and what an answer says of a lease that is missing from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ringcast._protocol import lease_reading
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.lease_reading import (
    AT_ONCE_S,
    ENDED_AFTER_S,
    IN_TURN,
    LATE_AFTER_S,
    LATE_EVERY_S,
    MOST_READ,
    MOST_READ_BYTES,
    MOST_SUSPECTED,
    PROVES_FOR_S,
    READ_EVERY_S,
    WATCHED,
    Lease,
    LeaseReadings,
)
from ringcast._protocol.membership import Membership
from ringcast._protocol.slots import Slots
from ringcast_wire import EndedLeases, LeaseRecord, NodeRecord, SlotClaim, encode_record, limits, names

VALUE = encode_record(LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1))


class View:
    """What one worker sees of key ``k``, and a bucket of leases to read."""

    def __init__(self, own: str, members: Iterable[str], *, grace_s: float = 5.0) -> None:
        self.own = own
        self.membership = Membership()
        self.readings = LeaseReadings(["k"], self.membership, grace_s=grace_s)
        self.leases: dict[str, Lease] = {}
        self.revision = 0
        self.asked: list[str] = []
        for member in members:
            self.refresh(member, 0.0)
        self.membership.nodes.replace({names.node_key("k", name): self._record(name) for name in members})

    def _record(self, worker_id: str) -> Entry:
        self.revision += 1
        record = NodeRecord(slot=self.revision % 200, lease=worker_id, incarnation="i")
        return Entry(self.revision, encode_record(record))

    def record(self, worker_id: str) -> None:
        """A worker writes its record, anew or again."""
        self.membership.nodes.put(names.node_key("k", worker_id), self._record(worker_id))

    def report(self, reporter: str, *leases: str) -> None:
        self.revision += 1
        entry = Entry(self.revision, encode_record(EndedLeases(leases=leases)))
        self.membership.nodes.put(names.ended_key(reporter), entry)

    def refresh(self, lease: str, now: float) -> None:
        self.revision += 1
        self.leases[lease] = Lease(self.revision, VALUE, 1_000.0 + now)

    def read(self, now: float) -> bool:
        self.asked = self.readings.ask(self.own, now)
        found = {lease: self.leases[lease] for lease in self.asked if lease in self.leases}
        return self.readings.answer(self.asked, found, now)

    def alive(self) -> set[str]:
        return {name for name in self.membership.leases.entries if self.membership.alive(name)}


def test_everything_is_read_once_before_anything_is_decided() -> None:
    view = View("a", ["a", "b", "c"])
    del view.leases["c"]
    assert not view.membership.complete
    assert view.read(0.0)
    assert view.membership.complete
    assert view.alive() == {"a", "b"}
    assert view.membership.ended("c")
    assert not view.readings.reports, "nobody needs to be told of what had ended before"
    assert view.readings.due == READ_EVERY_S


def test_a_few_leases_are_read_each_time_however_many_there_are_and_each_is_watched_by_as_many() -> None:
    members = [f"w{number}" for number in range(limits.MAX_WORKERS_PER_KEY)]
    watchers: Counter[str] = Counter()
    for own in members:
        view = View(own, members)
        view.read(0.0)
        view.read(READ_EVERY_S)
        assert len(view.asked) == 1 + WATCHED + IN_TURN
        watchers.update(view.asked[1 : 1 + WATCHED])
    assert set(watchers.values()) == {WATCHED}
    assert set(watchers) == set(members)


def test_the_others_are_read_in_turn() -> None:
    members = [f"w{number}" for number in range(40)]
    view = View("w0", members)
    view.read(0.0)
    seen: set[str] = set()
    rounds = -(-len(members) // IN_TURN)
    for number in range(rounds):
        view.read(number * READ_EVERY_S)
        seen.update(view.asked)
    assert seen == set(members)


def test_a_neighbour_that_ends_is_noticed_within_a_moment_and_told() -> None:
    view = View("a", ["a", "b"])
    view.read(0.0)
    now, late = 0.0, 0
    while not view.membership.ended("b"):
        due = view.readings.due
        assert due is not None
        assert due > now
        late += due - now == LATE_EVERY_S
        now = due
        if now >= limits.LEASE_TTL_S:
            view.leases.pop("b", None)  # nobody refreshed it
        view.refresh("a", now)
        view.read(now)
    assert now <= limits.LEASE_TTL_S + LATE_EVERY_S
    assert late <= (limits.LEASE_TTL_S - LATE_AFTER_S) / LATE_EVERY_S + 2
    assert view.readings.reports == ("b",)


def test_one_that_is_refreshed_in_time_is_never_late() -> None:
    view = View("a", ["a", "b"])
    view.read(0.0)
    now, refreshed = 0.0, 0.0
    for _ in range(100):
        due = view.readings.due
        assert due == now + READ_EVERY_S
        now = due
        while refreshed + limits.LEASE_REFRESH_S <= now:
            refreshed += limits.LEASE_REFRESH_S
            view.refresh("b", refreshed)
            view.refresh("a", refreshed)
        view.read(now)
    assert view.alive() == {"a", "b"}


def test_an_answer_without_the_own_lease_proves_nothing_of_the_others() -> None:
    """A server that has lost its disk, or a worker that is cut off, finds that all have ended."""
    view = View("a", ["a", "b"])
    view.read(0.0)
    view.leases.clear()
    assert view.read(20.0)
    assert view.alive() == {"b"}
    assert view.membership.ended("a"), "the worker is to look after its own lease"
    assert not view.readings.reports


def test_an_answer_with_an_old_own_lease_proves_nothing_of_the_others() -> None:
    """A server that lags lets leases run out whose refreshes it did not get yet."""
    view = View("a", ["a", "b"])
    view.read(0.0)
    lagging = {"a": view.leases["a"]}
    view.refresh("a", 5.0)
    view.refresh("b", 5.0)
    view.read(6.0)
    behind, view.leases = view.leases, lagging
    view.read(7.0)
    assert view.alive() == {"a", "b"}, "the own lease was seen newer"
    assert view.readings.due == 7.0 + LATE_EVERY_S
    view.leases = {"a": behind["a"]}
    view.read(6.1 + PROVES_FOR_S)
    view.read(15.0)
    assert view.alive() == {"a", "b"}, "the own lease was refreshed since, whatever this server says"
    view.refresh("a", 15.0)
    view.read(15.5)
    assert view.alive() == {"a"}


def test_a_bucket_that_was_created_again_proves_again_after_a_while() -> None:
    view = View("a", ["a", "b"])
    view.revision = 9_000
    view.refresh("a", 0.0)
    view.read(0.0)
    view.revision, now = 0, 5.0
    del view.leases["b"]
    while now < 5.0 + 2 * ENDED_AFTER_S:
        view.refresh("a", now)
        view.read(now)
        now += READ_EVERY_S
    assert view.alive() == {"a"}


def test_nothing_has_ended_for_a_while_after_the_connection_was_lost() -> None:
    view = View("a", ["a", "b"], grace_s=5.0)
    view.read(0.0)
    view.readings.reconnected(100.0)
    del view.leases["b"]
    view.refresh("a", 100.0)
    assert view.readings.due == 100.0
    view.read(100.0)
    view.read(104.9)
    assert view.alive() == {"a", "b"}
    view.read(105.0)
    assert view.alive() == {"a"}


def back_from_an_outage(view: View, now: float) -> None:
    """The own lease is taken again, and the records are a new snapshot."""
    view.readings.reconnected(now)
    view.refresh(view.own, now)
    view.membership.nodes.replace(dict(view.membership.nodes.entries))


def test_what_others_have_given_up_meanwhile_has_ended_at_once() -> None:
    """Only this worker was cut off: the others have shared out without the one that died, and wait for this one."""
    view = View("a", ["a", "b", "c", "d"], grace_s=5.0)
    view.read(0.0)
    for lease in ("b", "c", "d"):
        del view.leases[lease]
    view.report("b", "c")
    back_from_an_outage(view, 100.0)
    view.read(100.0)
    assert view.alive() == {"a", "b", "d"}, "of the others nobody has said anything: they may come back"
    view.read(105.0)
    assert view.alive() == {"a"}


def test_a_report_that_is_older_than_the_record_is_of_an_end_before() -> None:
    view = View("a", ["a", "b", "c"], grace_s=5.0)
    view.read(0.0)
    view.report("b", "c")
    view.record("c")
    del view.leases["c"]
    back_from_an_outage(view, 100.0)
    view.read(100.0)
    assert view.alive() == {"a", "b", "c"}


def test_a_report_ends_no_lease_that_is_there_or_that_no_answer_proves_gone() -> None:
    view = View("a", ["a", "b", "c"], grace_s=5.0)
    view.read(0.0)
    view.report("b", "c")
    back_from_an_outage(view, 100.0)
    view.refresh("c", 100.0)
    view.read(100.0)
    assert view.alive() == {"a", "b", "c"}
    del view.leases["a"], view.leases["c"]
    view.read(100.5)
    assert view.alive() == {"b", "c"}, "its own is all that an answer without it proves gone"
    view.refresh("a", 101.0)
    view.read(101.0)
    assert view.alive() == {"a", "b"}


def test_reports_of_before_an_outage_count_once_the_records_are_new() -> None:
    """One that was reported may have written its record again meanwhile."""
    view = View("a", ["a", "b", "c"], grace_s=5.0)
    view.read(0.0)
    view.report("b", "c")
    del view.leases["c"]
    view.readings.reconnected(100.0)
    view.refresh("a", 100.0)
    view.read(100.0)
    assert view.alive() == {"a", "b", "c"}
    view.membership.nodes.replace(dict(view.membership.nodes.entries))
    view.read(100.2)
    assert view.alive() == {"a", "b"}


def test_a_report_of_its_own_lease_that_a_worker_did_not_hear_is_contradicted_later() -> None:
    """Without a younger record it would cut the grace short at each outage."""
    view = View("a", ["a", "b"])
    view.read(0.0)
    records = dict(view.membership.nodes.entries)
    report = Entry(50, encode_record(EndedLeases(leases=("a",))))
    view.membership.nodes.replace(records | {names.ended_key("b"): report})
    assert view.readings.presumed_dead
    view.readings.presumed_dead, view.revision = False, 50
    view.record("a")
    view.membership.nodes.replace(dict(view.membership.nodes.entries))
    assert not view.readings.presumed_dead


def test_a_report_is_a_hint_and_each_reads_for_itself() -> None:
    members = [f"w{number}" for number in range(20)]
    view = View("w0", members)
    view.read(0.0)
    view.read(1.0)
    far = next(name for name in members if name not in view.asked)
    view.report("w9", far, "unheard-of")
    assert view.readings.due == 1.0 + AT_ONCE_S
    view.read(1.1)
    assert far in view.asked
    assert far in view.alive(), "it is there"
    assert view.readings.due == 1.1 + LATE_EVERY_S, "it may be about to end"
    view.refresh(far, 1.2)
    view.read(1.6)
    assert view.readings.due == 1.6 + READ_EVERY_S, "it was refreshed: the report was wrong"
    view.report("w9", far)
    del view.leases[far]
    view.read(2.0)
    assert view.membership.ended(far)
    assert not view.readings.reports, "the others were told already"


def test_one_that_is_taken_for_dead_is_told_and_its_new_record_has_it_read_again() -> None:
    dead, other = View("b", ["a", "b"]), View("a", ["a", "b"])
    for view in (dead, other):
        view.read(0.0)
    lease = other.leases.pop("b")  # a server that is late does not have it
    other.read(3.0)
    assert other.readings.reports == ("b",)
    dead.report("a", *other.readings.reports)
    assert dead.readings.presumed_dead
    other.leases["b"] = Lease(lease.revision + 1_000, VALUE, lease.stored_s + 4.0)
    other.record("b")
    assert not other.membership.ended("b")
    other.read(4.0)
    assert other.alive() == {"a", "b"}
    assert not other.readings.reports


def test_a_lease_that_some_server_has_still_has_ended_all_the_same() -> None:
    """A dead worker stayed a member for a minute: each look could be at the one server that had its lease."""
    view = View("a", ["a", "b"])
    view.read(0.0)
    view.refresh("a", ENDED_AFTER_S)
    view.read(ENDED_AFTER_S)
    assert view.alive() == {"a", "b"}, "no older than may be"
    view.refresh("a", ENDED_AFTER_S + 0.5)
    view.read(ENDED_AFTER_S + 0.5)
    assert view.alive() == {"a"}
    view.leases["a"] = Lease(9_000, VALUE, view.leases["b"].stored_s)
    view.read(20.0)
    assert view.alive() == {"a"}, "what has ended does not rise again, whatever the clocks of the servers say"
    view.refresh("b", 30.0)
    view.refresh("a", 30.0)
    view.read(30.0)
    assert view.alive() == {"a", "b"}


def test_after_a_new_snapshot_all_are_read_again_and_nobody_tells_of_what_all_find() -> None:
    members = [f"w{number}" for number in range(30)]
    view = View("w0", members)
    view.read(0.0)
    view.membership.nodes.replace(dict(view.membership.nodes.entries))
    del view.leases["w1"]
    view.read(1.0)
    assert set(view.asked) == set(members)
    assert view.membership.ended("w1")
    assert not view.readings.reports


def test_a_slot_whose_claim_names_a_lease_that_was_not_read_yet_is_not_free() -> None:
    """Of 25 workers that started at once most took the slots of others, again and again."""
    view = View("a", ["a"])
    view.read(0.0)
    slot = Slots(view.membership).choose("k", "late").slot
    claim = encode_record(SlotClaim(worker_id="b", lease="b"))
    view.revision += 1
    view.membership.nodes.put(names.slot_key("k", slot), Entry(view.revision, claim))
    assert Slots(view.membership).choose("k", "late").slot != slot
    view.read(0.1)
    assert "b" in view.asked
    assert Slots(view.membership).choose("k", "late").slot == slot, "nobody holds its lease"
    view.refresh("b", 0.2)
    view.revision += 1
    view.membership.nodes.put(names.slot_key("k", slot), Entry(view.revision, claim))
    assert Slots(view.membership).choose("k", "late").slot != slot, "it was claimed since"


def test_what_no_record_names_any_more_is_forgotten() -> None:
    view = View("a", ["a", "b", "c"])
    view.read(0.0)
    del view.leases["b"]
    view.read(1.0)
    assert view.readings.reports == ("b",)
    view.membership.nodes.replace({names.node_key("k", "a"): view._record("a")})
    view.read(2.0)
    assert view.asked == ["a"]
    assert set(view.membership.leases.entries) == {"a"}
    assert not view.readings.reports


def test_a_worker_that_went_over_counts_until_its_new_lease_was_read() -> None:
    view = View("a", ["a", "b"])
    view.read(0.0)
    owners = view.membership.members("k")
    record = view.membership.nodes.get(names.node_key("k", "b"), NodeRecord)
    assert record is not None
    view.revision += 1
    other = NodeRecord(slot=record.slot, lease="host.agent", incarnation=record.incarnation)
    view.membership.nodes.put(names.node_key("k", "b"), Entry(view.revision, encode_record(other)))
    assert "host.agent" in view.readings.ask("a", 1.0)
    assert view.membership.members("k") == owners, "the answer is late, or lost"
    view.refresh("host.agent", 1.0)
    view.read(1.5)
    assert view.membership.members("k") == owners
    assert set(view.membership.leases.entries) >= {"a", "host.agent"}
    view.read(2.0)
    assert "b" not in view.membership.leases.entries, "nothing names it, and it counts for nothing"


def test_one_worker_can_have_few_leases_read_by_its_reports() -> None:
    members = [f"w{number}" for number in range(190)]
    view = View("w0", members)
    while not view.membership.leases.complete:
        view.read(0.0)
    for first in range(1, 181, 30):
        view.report("w189", *members[first : first + 30])
    view.report("w189", "w0")
    view.report("w188", "w185")
    assert view.readings.presumed_dead, "of itself a worker knows better"
    view.read(1.0)
    mine = [WATCHED + 1 + IN_TURN, MOST_SUSPECTED + 1]
    assert MOST_SUSPECTED <= len(view.asked) <= sum(mine)
    assert "w185" in view.asked, "what another reports is heard"
    for lease in view.asked:
        view.refresh(lease, 2.0)
    view.read(2.0)
    assert len(view.asked) <= sum(mine)
    view.read(1.0 + limits.LEASE_REFRESH_S)
    view.report("w189", *members[100:140])
    view.read(7.0)
    assert set(members[100:140]) <= set(view.asked), "later on it is heard again"


def test_one_question_is_bounded() -> None:
    members = [f"w{number}" for number in range(MOST_READ + 100)]
    view = View("w0", members)
    assert not view.read(0.0) or not view.membership.complete
    assert len(view.asked) == MOST_READ
    assert view.readings.due == AT_ONCE_S
    view.read(AT_ONCE_S)
    assert view.membership.complete


def test_a_question_is_bounded_in_bytes_and_all_are_read_all_the_same() -> None:
    hosts = [f"{number:0>64}.{number:0>64}" for number in range(MOST_READ)]
    view = View(hosts[0], [])
    for number, host in enumerate(hosts):
        view.refresh(host, 0.0)
        record = encode_record(NodeRecord(slot=number % 200, lease=host, incarnation="i"))
        view.membership.nodes.put(names.node_key("k", f"w{number}"), Entry(number + 1, record))
    now = 0.0
    while not view.membership.complete:
        view.read(now)
        assert sum(map(len, view.asked)) <= MOST_READ_BYTES
        now += AT_ONCE_S
    assert view.alive() == set(hosts)


def test_a_neighbourhood_that_died_at_once_is_found_as_fast_as_can_be_read() -> None:
    members = [f"w{number}" for number in range(100)]
    view = View("w0", members)
    view.read(0.0)
    for name in members[1:]:
        del view.leases[name]
    now = 1.0
    while view.alive() != {"w0"}:
        view.read(now)
        due = view.readings.due
        assert due is not None
        now = due
    assert now <= 1.0 + AT_ONCE_S * (1 + 99 / WATCHED) + LATE_EVERY_S
    assert len(view.readings.reports) == min(99, lease_reading.MOST_REPORTED)
