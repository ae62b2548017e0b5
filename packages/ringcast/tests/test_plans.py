"""What becomes of the partitions of a key once workers are gone: by the rule that the workers go by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ringcast.plans import plan_without
from ringcast.topology import Exclusive, Member, Owned, Topology
from ringcast_wire import InvalidInputError, Mode, NodePhase, StoreSettings, Strategy, assign

SIZE = 64


def member(worker_id: str, slot: int | None, phase: NodePhase = NodePhase.ACTIVE, *, alive: bool = True) -> Member:
    return Member(worker_id, slot, alive, "host", 1, (), phase)


def shared(strategy: Strategy, *members: Member) -> Topology:
    """As those of these members own it that are alive and take part."""
    settings = StoreSettings(mode=Mode.PARTITIONED, partition_count=SIZE, strategy=strategy)
    owning = {each.worker_id: each.slot or 0 for each in members if each.alive and each.phase is not NodePhase.JOINING}
    return Topology("s", "k", settings, members, assign(settings, owning))


def exclusive(owners: str, *members: Member, **words: object) -> Topology:
    settings = StoreSettings(mode=Mode.PARTITIONED, partition_count=len(owners), strategy=Strategy.STICKY)
    partitions = tuple(Owned(owner, 1) for owner in owners)
    made = Exclusive(1, owners[0], partitions)
    return Topology("s", "k", settings, members, tuple(owners), replace(made, **words))  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [Strategy.JUMP, Strategy.RING])
def test_of_peers_by_the_slots_of_those_that_stay(strategy: Strategy) -> None:
    now = shared(strategy, *(member(name, slot) for slot, name in enumerate("abcd")))
    plan = plan_without(now, ["b"])
    assert plan.then == assign(now.settings, {"a": 0, "c": 2, "d": 3})
    assert plan.now == now.owners
    assert now.owners.count("b") <= plan.moves < SIZE / 2
    assert set(plan_without(now, ["a", "b", "c"]).then) == {"d"}


def test_of_peers_only_those_that_take_part_get_any() -> None:
    others = (
        member("joins", 2, NodePhase.JOINING),
        member("leaves", 3, NodePhase.LEAVING),
        member("dead", 4, alive=False),
    )
    now = shared(Strategy.JUMP, member("a", 0), member("b", 1), *others)
    assert set(plan_without(now, ["b"]).then) == {"a"}
    assert set(plan_without(now, ["dead"]).then) == {"a", "b"}, "who leaves is gone soon"


def test_of_exclusive_owners_as_few_as_can_be_by_capacity_drains_and_pins() -> None:
    a, b, c = (member(name, None) for name in "abc")
    plan = plan_without(exclusive("aaabbbccc", a, b, c), ["c"])
    assert plan.then[:6] == tuple("aaabbb")
    assert (plan.moves, sorted(plan.then).count("a")) in {(3, 4), (3, 5)}
    wide = plan_without(exclusive("aabbcc", a, replace(b, capacity=2), c), ["c"])
    assert (wide.then.count("a"), wide.then.count("b"), wide.moves) == (2, 4, 2)
    assert set(plan_without(exclusive("aaabbbccc", a, b, c, drains=("b",)), ["c"]).then) == {"a"}
    pinned = plan_without(exclusive("aaabbbccc", a, b, c, pins={8: "b", 0: "c"}), ["c"]).then
    assert (pinned[8], pinned[0]) == ("b", "a"), "a pin to one that is gone counts for nothing"


def test_a_partition_that_moves_counts_where_it_goes() -> None:
    moving = Owned("a", 1, "prepare", "b", 2)
    now = exclusive("ab", *(member(name, None) for name in "abc"), partitions=(moving, Owned("c", 1)))
    assert plan_without(now, ["a"]).then == ("b", "c")


@pytest.mark.parametrize("topology", [shared(Strategy.JUMP, member("a", 0)), exclusive("a", member("a", None))])
def test_what_can_not_be_planned_is_refused(topology: Topology) -> None:
    with pytest.raises(InvalidInputError, match=r"^s/k has no worker 'x'$"):
        plan_without(topology, ["a", "x"])
    with pytest.raises(InvalidInputError, match=r"^no worker of s/k is left to take partitions$"):
        plan_without(topology, ["a"])
    full = replace(topology, settings=StoreSettings(mode=Mode.FULL, partition_count=1))
    with pytest.raises(InvalidInputError, match=r"^every worker of s/k holds every partition: none moves$"):
        plan_without(full, ["a"])
