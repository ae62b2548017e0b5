"""Every worker or service that is broken on purpose is noticed."""

from __future__ import annotations

import pytest

from tests.simulation import known_seeds
from tests.simulation.run import run
from tests.simulation.variants import VARIANTS


@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_noticed(name: str) -> None:
    variant = VARIANTS[name]
    # The seeds that once caught it come first: a change of the product may give a seed another history, and then the
    # others find it, after a longer time.
    with variant.applied():
        caught = any(run(seed).violations for seed in known_seeds.in_order(name))
    assert caught, f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    rows = known_seeds.rows()
    assert rows == [(name, variant.what, str(variant.within)) for name, variant in VARIANTS.items()]


def test_every_seed_within_the_limit_is_tried_once() -> None:
    for name, variant in VARIANTS.items():
        assert sorted(known_seeds.in_order(name)) == list(range(variant.within))
