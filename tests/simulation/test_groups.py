"""Groups that hosts share keep their promises under faults, and every broken variant of them is noticed."""

from __future__ import annotations

import pytest

from tests.simulation.group_world import World
from tests.simulation.known_seeds import GROUPS


def test_the_promises_hold() -> None:
    worlds = [World(seed).run() for seed in range(40)]
    assert sum(world.judge.begun for world in worlds) > 1_000
    assert sum(world.judge.repeats for world in worlds) > 0, "no host was killed between an answer and its seal"
    assert {line.split()[1] for world in worlds for line in world.trace} > {"kill", "stop", "pause", "cut", "slow"}


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = World(3).run(), World(3).run()
    assert first.trace == second.trace
    assert first.judge.begun == second.judge.begun
    assert first.bus.entries == second.bus.entries


@pytest.mark.parametrize("name", GROUPS.variants)
def test_a_broken_variant_is_noticed(name: str) -> None:
    variant = GROUPS.variants[name]
    assert GROUPS.is_noticed(name), f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    assert [row for row in GROUPS.rows() if row[0] in GROUPS.variants] == GROUPS.wanted_rows()
