"""Exclusive ownership keeps its promises under faults, and every broken variant of it is noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ringcast._protocol.sticky.ownership import OwnedState

from tests.simulation.sticky_judge import Violation
from tests.simulation.sticky_variants import VARIANTS, WITHIN
from tests.simulation.sticky_world import World

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "sticky.md"


@pytest.mark.parametrize("seed", range(12))
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


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_variant_is_noticed(name: str) -> None:
    for seed in range(WITHIN):
        try:
            World(seed, VARIANTS[name].machines).run()
        except Violation:
            return
    pytest.fail(f"{WITHIN} seeds, and nobody noticed what {VARIANTS[name].what}")


def test_the_guide_names_every_broken_variant() -> None:
    model = GUIDE.read_text().partition("\n## Migration\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", model, re.MULTILINE)
    assert rows == [(name, variant.what) for name, variant in VARIANTS.items()]
