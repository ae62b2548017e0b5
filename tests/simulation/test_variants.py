"""Every worker or service that is broken on purpose is noticed."""

from __future__ import annotations

import pytest

from tests.simulation.known_seeds import PEERS, SIMULATIONS, BrokenVariants


@pytest.mark.parametrize("name", PEERS.variants)
def test_it_is_noticed(name: str) -> None:
    # The seeds that once caught it come first: a change of the product may give a seed another history, and then the
    # others find it, after a longer time.
    variant = PEERS.variants[name]
    assert PEERS.is_noticed(name), f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    assert [row for row in PEERS.rows() if row[0] in PEERS.variants] == PEERS.wanted_rows()


@pytest.mark.parametrize("broken", SIMULATIONS)
def test_every_seed_within_the_limit_is_tried_once(broken: BrokenVariants) -> None:
    for name, variant in broken.variants.items():
        assert sorted(broken.in_order(name)) == list(range(variant.within))
