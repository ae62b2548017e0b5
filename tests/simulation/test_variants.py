"""Every worker or service that is broken on purpose is noticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.run import run
from tests.simulation.variants import VARIANTS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"


@pytest.mark.parametrize("name", VARIANTS)
def test_it_is_noticed(name: str) -> None:
    variant = VARIANTS[name]
    with variant.applied():
        caught = any(run(seed).violations for seed in range(variant.within))
    assert caught, f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (\d+) \|", GUIDE.read_text(), re.MULTILINE)
    assert rows == [(name, variant.what, str(variant.within)) for name, variant in VARIANTS.items()]
