"""Real workers own their partitions alone under faults, and every broken variant of them is noticed."""

from __future__ import annotations

import pytest

from tests.simulation.known_seeds import EXCLUSIVE
from tests.simulation.run import run


@pytest.mark.parametrize("seed", range(6))
def test_the_promises_hold(seed: int) -> None:
    outcome = run(seed, exclusive=True)
    assert not outcome.violations
    assert outcome.handled > 10


def test_a_seed_has_one_history() -> None:
    assert run(7, exclusive=True).digest == run(7, exclusive=True).digest


@pytest.mark.parametrize("name", EXCLUSIVE.variants)
def test_a_broken_variant_is_noticed(name: str) -> None:
    variant = EXCLUSIVE.variants[name]
    assert EXCLUSIVE.is_noticed(name), f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    assert [row for row in EXCLUSIVE.rows() if row[0] in EXCLUSIVE.variants] == EXCLUSIVE.wanted_rows()
