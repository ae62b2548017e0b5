"""Exclusive ownership keeps its promises under faults, and every broken variant of it is noticed."""

from __future__ import annotations

import pytest
from ringcast._protocol.sticky.ownership import OwnedState

from tests.simulation.known_seeds import MIGRATION, STICKY
from tests.simulation.sticky_world import World


@pytest.mark.parametrize("seed", range(6))
def test_the_promises_hold(seed: int) -> None:
    world = World(seed).run()
    assert world.judge.begun > 50
    assert len(world.trace) > 10


def test_workers_are_killed_in_every_state_of_a_partition() -> None:
    found: set[OwnedState] = set()
    for seed in range(100, 130):
        found |= World(seed).run().killed_in
        if found == set(OwnedState):
            return
    pytest.fail(f"no worker was killed with a partition in {set(OwnedState) - found}")


def test_agents_see_processes_end() -> None:
    assert sum(host.seen for seed in range(200, 204) for host in World(seed).run().hosts.values()) > 4


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = World(3).run(), World(3).run()
    assert first.trace == second.trace
    assert first.judge.begun == second.judge.begun
    assert first.judge.last == second.judge.last > 10
    assert first.store.nodes == second.store.nodes


@pytest.mark.parametrize("name", STICKY.variants)
def test_a_broken_variant_is_noticed(name: str) -> None:
    variant = STICKY.variants[name]
    assert STICKY.is_noticed(name), f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    assert [row for row in STICKY.rows() if row[0] not in MIGRATION.variants] == STICKY.wanted_rows()
