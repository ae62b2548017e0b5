"""A store migrates to exclusive ownership and back under faults, and every broken migration is noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ringcast_wire import Stage

from tests.simulation.sticky_judge import Violation
from tests.simulation.sticky_migration import MigratingWorld
from tests.simulation.sticky_migration_variants import VARIANTS, WITHIN

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "sticky.md"


@pytest.mark.parametrize("seed", range(8))
def test_the_promises_hold(seed: int) -> None:
    world = MigratingWorld(seed).run()
    assert world.judge.begun > 50
    assert world.judge.of_peers > 50


def test_every_step_is_taken() -> None:
    taken = dict.fromkeys(Stage, 0)
    for seed in range(100, 108):
        for stage, times in MigratingWorld(seed).run().taken.items():
            taken[stage] += times
    assert taken.pop(Stage.FINISH) > 1, "at most once in each run"
    assert min(taken.values()) > 4


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_variant_is_noticed(name: str) -> None:
    for seed in range(WITHIN):
        try:
            MigratingWorld(seed, VARIANTS[name].machines).run()
        except Violation:
            return
    pytest.fail(f"{WITHIN} seeds, and nobody noticed what {VARIANTS[name].what}")


def test_the_guide_names_every_broken_variant() -> None:
    migration = GUIDE.read_text().partition("\n## Migration\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", migration, re.MULTILINE)
    assert [row for row in rows if row[0] in VARIANTS] == [(name, variant.what) for name, variant in VARIANTS.items()]
