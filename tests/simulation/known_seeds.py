"""The seeds that are known to show what a broken variant breaks: the last column of the table in docs/simulation.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.simulation import agent_variants
from tests.simulation.run import run
from tests.simulation.variants import VARIANTS
from tests.simulation.world import HOSTED

GUIDE: Final = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
KEPT: Final = 2
"""Seeds of each variant: a change of the product may give one of them another history."""

_ROW: Final = re.compile(r"^\| `(\w+)` \| (.+?) \| (\d+) \| ([\d, ]+) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str]]:
    """The table: name, what is broken, and within how many seeds that has to be noticed."""
    return [(name, what, within) for name, what, within, _ in _ROW.findall(GUIDE.read_text())]


def known_seeds() -> dict[str, list[int]]:
    """The seeds that have caught each variant."""
    return {name: [int(seed) for seed in seeds.split(",")] for name, _, _, seeds in _ROW.findall(GUIDE.read_text())}


def in_order(name: str) -> list[int]:
    """All seeds within which a variant has to be noticed: the known ones first, then those that may show it."""
    seeds = range(VARIANTS[name].within)
    known = [seed for seed in known_seeds().get(name, ()) if seed in seeds]
    hosts = name in agent_variants.VARIANTS
    return known + sorted(set(seeds).difference(known), key=lambda seed: hosts and seed % 16 not in HOSTED)


def caught_by(name: str, tries: int) -> list[int]:
    """The ``KEPT`` cheapest of the seeds that catch a variant, those with the fewest steps first.

    Sought among all up to the first that catches it, and ``tries`` more.
    """
    steps: dict[int, int] = {}
    left = tries
    with VARIANTS[name].applied():
        for seed in in_order(name):
            outcome = run(seed)
            if outcome.violations:
                steps[seed] = outcome.steps
            left -= bool(steps)
            if left < 0:
                break
    return sorted(steps, key=steps.__getitem__)[:KEPT]


def write(seeds: dict[str, list[int]]) -> None:
    """Puts seeds into the table; a variant without any keeps those that it has."""

    def row(match: re.Match[str]) -> str:
        name, what, within, before = match.groups()
        return f"| `{name}` | {what} | {within} | {', '.join(map(str, seeds.get(name, ()))) or before} |"

    GUIDE.write_text(_ROW.sub(row, GUIDE.read_text()))
