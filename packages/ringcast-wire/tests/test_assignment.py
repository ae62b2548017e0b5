from __future__ import annotations

import pytest
from ringcast_core import assign_jump, assign_ring
from ringcast_wire import InvalidInputError, StoreSettings, Strategy, assign
from ringcast_wire._stores.assignment import ASSIGNMENTS

WORKERS = {"gamma": 0, "alpha": 2, "beta": 5}


def test_every_strategy_has_a_function_of_its_own() -> None:
    assert set(ASSIGNMENTS) == set(Strategy) - {Strategy.STICKY}, "a strategy without a function has no owners"
    assert len(set(ASSIGNMENTS.values())) == len(ASSIGNMENTS)


@pytest.mark.parametrize("workers", [WORKERS, {}])
def test_the_owners_of_exclusive_ownership_are_not_computed(workers: dict[str, int]) -> None:
    sentence = "the strategy sticky has no computed owners: the table of each key has them"
    with pytest.raises(InvalidInputError, match=f"^{sentence}$") as refused:
        assign(StoreSettings(partition_count=64, strategy=Strategy.STICKY), workers)
    assert refused.value.field == "strategy"


@pytest.mark.parametrize("strategy", list(ASSIGNMENTS))
def test_every_partition_has_one_of_the_workers(strategy: Strategy) -> None:
    settings = StoreSettings(partition_count=64, strategy=strategy)
    owners = assign(settings, WORKERS)
    assert len(owners) == 64
    assert set(owners) == set(WORKERS)
    assert assign(settings, dict(reversed(WORKERS.items()))) == owners


def test_jump_goes_by_slots_and_ring_by_ids() -> None:
    jump = assign(StoreSettings(partition_count=64, load_factor=1.0), WORKERS)
    by_slot = {0: "gamma", 2: "alpha", 5: "beta"}
    assert jump == tuple(by_slot[slot] for slot in assign_jump(64, [0, 2, 5], 1.0))
    ring = assign(StoreSettings(partition_count=64, strategy=Strategy.RING), WORKERS)
    ids = ["alpha", "beta", "gamma"]
    assert ring == tuple(ids[index] for index in assign_ring(64, ids))
    swapped = {"alpha": 0, "beta": 2, "gamma": 5}
    assert assign(StoreSettings(partition_count=64, strategy=Strategy.RING), swapped) == ring


@pytest.mark.parametrize("strategy", list(ASSIGNMENTS))
def test_nobody_can_own_nothing(strategy: Strategy) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        assign(StoreSettings(partition_count=8, strategy=strategy), {})
