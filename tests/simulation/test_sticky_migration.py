"""A store migrates to exclusive ownership and back under faults, and every broken migration is noticed."""

from __future__ import annotations

import pytest
from ringcast_wire import Stage

from tests.simulation.known_seeds import MIGRATION
from tests.simulation.sticky_migration import DeclaringWorld, MigratingWorld, SuccessorWorld


@pytest.mark.parametrize("seed", range(4))
def test_the_promises_hold(seed: int) -> None:
    world = MigratingWorld(seed).run()
    assert world.judge.begun > 50
    assert world.judge.of_peers > 50


def test_the_promises_hold_where_an_operator_says_which_workers_are_gone() -> None:
    declared = 0
    for seed in range(4):
        declared += DeclaringWorld(seed).run().declared
    assert declared > 4


def test_the_promises_hold_where_a_process_has_its_id_again_after_a_later_one() -> None:
    for seed in range(4):
        world = SuccessorWorld(seed).run()
        assert world.taken[Stage.VALIDATE] == 2
        assert world.first is not None
        assert not world.first.is_alive, "it ends, whatever it has got back"


def test_every_step_is_taken() -> None:
    taken = dict.fromkeys(Stage, 0)
    for seed in range(100, 112):
        for stage, times in MigratingWorld(seed).run().taken.items():
            taken[stage] += times
    assert taken.pop(Stage.FINISH) > 1, "at most once in each run"
    assert min(taken.values()) > 4


@pytest.mark.parametrize("name", MIGRATION.variants)
def test_a_broken_variant_is_noticed(name: str) -> None:
    variant = MIGRATION.variants[name]
    assert MIGRATION.is_noticed(name), f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    assert [row for row in MIGRATION.rows() if row[0] in MIGRATION.variants] == MIGRATION.wanted_rows()
