"""When workers that come and go do so: together, after a bounded wait, and never at the cost of a partition's owner."""

from __future__ import annotations

import pytest
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.membership import Membership
from ringcast._protocol.planned import COLD, COLD_MOST, MOST, PlannedChange
from ringcast._protocol.slots import Slots
from ringcast_wire import LeaseRecord, NodePhase, NodeRecord, SlotClaim, encode_record, names

LEASE = encode_record(LeaseRecord(incarnation="i", host="h", pid=1, started_at_ms=1))
JOINING, ACTIVE, LEAVING = NodePhase.JOINING, NodePhase.ACTIVE, NodePhase.LEAVING


class View:
    """What one worker sees of a key."""

    def __init__(self, **phases: NodePhase) -> None:
        self.membership = Membership()
        self._written = 0
        self.membership.nodes.replace({})
        self.membership.leases.replace({})
        for worker_id, phase in phases.items():
            self.says(worker_id, phase)

    def says(self, worker_id: str, phase: NodePhase | None, slot: int | None = None) -> None:
        """A worker writes its record, or deletes it. Slots are the numbers in the names, unless given."""
        self._written += 1
        slot = int(worker_id[1:]) if slot is None else slot
        record = NodeRecord(slot=slot, lease=worker_id, incarnation="i", phase=phase or ACTIVE)
        claim = SlotClaim(worker_id=worker_id, lease=worker_id)
        self._put(names.slot_key("k", slot), encode_record(claim) if phase else None)
        self._put(names.node_key("k", worker_id), encode_record(record) if phase else None)
        self.membership.leases.correct(worker_id, Entry(self._written, LEASE))

    def dies(self, worker_id: str) -> None:
        """The lease of a worker ends."""
        self.membership.leases.correct(worker_id, Entry(0, None))

    def _put(self, name: str, value: bytes | None) -> None:
        self._written += 1
        self.membership.nodes.put(name, Entry(self._written, value))

    def planned(self, worker_id: str = "w9", window_s: float = 1.0) -> PlannedChange:
        return PlannedChange("k", worker_id, self.membership, window_s)


def joining(view: View, worker_id: str = "w9") -> PlannedChange:
    planned = view.planned(worker_id)
    planned.join(0.0)
    planned.poll(0.0)
    return planned


def leaving(view: View, worker_id: str = "w9") -> PlannedChange:
    planned = view.planned(worker_id)
    planned.phase = ACTIVE
    planned.leave(0.0)
    planned.poll(0.0)
    return planned


def comes_at(planned: PlannedChange) -> float:
    """When the change comes about if nothing else does."""
    assert planned.wake_at is not None
    return planned.wake_at


def test_one_that_joins_waits_until_it_is_quiet() -> None:
    view = View(w1=ACTIVE)
    planned = joining(view)
    assert planned.phase is JOINING
    assert planned.waits_for_share
    assert comes_at(planned) == 1.0
    view.says("w2", JOINING)
    planned.poll(0.9)
    assert comes_at(planned) == 1.9
    view.says("w2", JOINING)
    planned.poll(1.5)
    assert comes_at(planned) == 1.9
    planned.poll(1.9)
    assert planned.phase is ACTIVE
    assert not planned.waits_for_share
    assert planned.wake_at is None


def test_it_never_waits_for_more_than_a_few_windows() -> None:
    view = View(w1=ACTIVE)
    planned = joining(view)
    for number in range(2, 7):
        view.says(f"w{number}", JOINING)
        planned.poll(0.9 * (number - 1))
    assert comes_at(planned) == MOST
    planned.poll(MOST)
    assert planned.phase is ACTIVE


def test_the_first_has_all_the_others_come() -> None:
    view = View(w1=ACTIVE, w2=JOINING)
    planned = joining(view)
    view.says("w2", ACTIVE)
    planned.poll(0.1)
    assert planned.phase is ACTIVE


def test_where_nobody_owns_anything_the_wait_is_short() -> None:
    view = View()
    planned = joining(view)
    assert not planned.waits_for_share
    assert comes_at(planned) == COLD
    for number in range(1, 7):
        view.says(f"w{number}", JOINING)
        planned.poll(0.45 * number)
        assert comes_at(planned) == min(COLD_MOST, 0.45 * number + COLD)


def test_when_all_who_served_are_dead_nobody_waits() -> None:
    view = View(w1=ACTIVE)
    planned = joining(view)
    view.dies("w1")
    planned.poll(0.1)
    assert planned.phase is ACTIVE


def test_the_death_of_one_moves_nobody_else() -> None:
    view = View(w1=ACTIVE, w2=ACTIVE)
    planned = joining(view)
    view.dies("w1")
    planned.poll(0.1)
    assert planned.phase is JOINING
    assert [member.worker_id for member in view.membership.members("k")] == ["w2"]


def test_one_that_leaves_is_a_member_and_one_that_joins_is_none() -> None:
    view = View(w1=ACTIVE, w2=JOINING, w3=LEAVING)
    assert [member.worker_id for member in view.membership.members("k")] == ["w1", "w3"]


def test_one_that_leaves_goes_on_until_it_is_quiet() -> None:
    view = View(w1=ACTIVE)
    planned = leaving(view)
    assert planned.phase is LEAVING
    assert comes_at(planned) == 1.0
    view.says("w2", LEAVING)
    planned.poll(0.5)
    assert comes_at(planned) == 1.5
    view.says("w2", None)
    planned.poll(0.6)
    assert planned.over


def test_the_last_one_leaves_at_once() -> None:
    assert leaving(View()).over
    assert leaving(View(w1=ACTIVE)).over is False


def test_one_that_has_not_come_yet_leaves_at_once() -> None:
    planned = joining(View(w1=ACTIVE))
    planned.leave(0.5)
    assert planned.over


def test_those_who_go_are_first_and_one_that_comes_takes_the_place() -> None:
    view = View(w1=LEAVING, w2=ACTIVE)
    planned = joining(view)
    assert comes_at(planned) == MOST
    view.says("w1", None)
    planned.poll(2.0)
    assert planned.phase is ACTIVE
    assert planned.slot == 1


def test_each_that_comes_takes_the_place_of_another() -> None:
    view = View(w1=LEAVING, w2=LEAVING, w7=JOINING, w8=JOINING, w3=ACTIVE)
    planned = {worker_id: joining(view, worker_id) for worker_id in ("w7", "w8", "w9")}
    view.says("w9", JOINING)
    for each in planned.values():
        each.poll(0.1)
    view.says("w1", None)
    view.says("w2", None)
    for each in planned.values():
        each.poll(0.2)
    assert [each.slot for each in planned.values()] == [1, 2, None]


def test_a_place_that_another_took_first_is_left_to_it() -> None:
    view = View(w1=ACTIVE, w9=JOINING)
    choice = Slots(view.membership).choose("k", "w9", 1)
    assert choice.slot == 9
    view.says("w1", None)
    choice = Slots(view.membership).choose("k", "w9", 1)
    assert (choice.slot, choice.surplus) == (1, (9,))
    view.says("w4", JOINING, slot=1)
    assert Slots(view.membership).choose("k", "w9", 1).slot == 9


@pytest.mark.parametrize("phase", [JOINING, LEAVING])
def test_a_process_that_comes_again_joins_like_a_new_one(phase: NodePhase) -> None:
    assert joining(View(w1=ACTIVE, w9=phase)).phase is JOINING


def test_one_that_was_never_missed_does_not_wait() -> None:
    """Its process was killed, and another has its lease: the others may count it, so its partitions have no owner."""
    assert joining(View(w1=ACTIVE, w9=ACTIVE)).phase is ACTIVE
    assert joining(View(w9=ACTIVE)).phase is JOINING  # nobody counts it


def test_without_a_window_nothing_waits() -> None:
    view = View(w1=ACTIVE)
    planned = view.planned(window_s=0.0)
    planned.join(0.0)
    assert planned.phase is ACTIVE
    planned.leave(1.0)
    assert planned.over
