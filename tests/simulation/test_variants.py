"""Every worker or service that is broken on purpose is noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.run import run
from tests.simulation.variants import VARIANTS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
ROWS = re.findall(r"^\| `(\w+)` \| (.+?) \| (\d+) \| (\d+) \|$", GUIDE.read_text(), re.MULTILINE)
CAUGHT_BY = {name: int(seed) for name, _, _, seed in ROWS}


@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_noticed(name: str) -> None:
    variant = VARIANTS[name]
    # The seed that once caught it comes first: a change of the product may give that seed another history, and then the
    # others find it, after a longer time.
    seeds = sorted(range(variant.within), key=lambda seed: seed != CAUGHT_BY.get(name))
    with variant.applied():
        caught = any(run(seed).violations for seed in seeds)
    assert caught, f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    rows = [(name, what, within) for name, what, within, _ in ROWS]
    assert rows == [(name, variant.what, str(variant.within)) for name, variant in VARIANTS.items()]
