"""The seeds that are known to show what a broken variant breaks: the last column of the tables in the guides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tests.simulation import (
    agent_variants,
    exclusive_variants,
    group_variants,
    group_world,
    release_variants,
    sticky_migration_variants,
    sticky_variants,
)
from tests.simulation.release_run import run_releases
from tests.simulation.run import run
from tests.simulation.sticky_judge import Violation
from tests.simulation.sticky_world import World
from tests.simulation.variants import VARIANTS
from tests.simulation.world import HOSTED

GUIDES: Final = Path(__file__).resolve().parents[2] / "docs"
KEPT: Final = 2
"""Seeds of each variant: a change of the product may give one of them another history."""

_ROW: Final = re.compile(r"^\| `(\w+)` \| (.+?) \| (\d+) \| ([\d, ]+) \|$", re.MULTILINE)


class Described(Protocol):
    """What a broken variant does, and within how many seeds that has to be noticed."""

    @property
    def what(self) -> str: ...

    @property
    def within(self) -> int: ...


@dataclass(frozen=True)
class BrokenVariants:
    """Those of one simulation, and the guide whose table names them.

    ``attempt`` runs one with a seed, and returns what that came to until it was noticed, in steps or in virtual
    seconds, or ``None`` where it was not.
    """

    guide: Path
    variants: Mapping[str, Described]
    attempt: Callable[[str, int], float | None]

    def rows(self) -> list[tuple[str, str, str]]:
        """The table: name, what is broken, and within how many seeds that has to be noticed."""
        return [(name, what, within) for name, what, within, _ in _ROW.findall(self.guide.read_text())]

    def wanted_rows(self) -> list[tuple[str, str, str]]:
        """The table as it should be."""
        return [(name, variant.what, str(variant.within)) for name, variant in self.variants.items()]

    def known_seeds(self) -> dict[str, list[int]]:
        """The seeds that have caught each variant."""
        found = _ROW.findall(self.guide.read_text())
        return {name: [int(seed) for seed in seeds.split(",")] for name, _, _, seeds in found}

    def in_order(self, name: str) -> list[int]:
        """All seeds within which a variant has to be noticed: the known ones first, then those that may show it."""
        seeds = range(self.variants[name].within)
        known = [seed for seed in self.known_seeds().get(name, ()) if seed in seeds]
        hosts = name in agent_variants.VARIANTS
        return known + sorted(set(seeds).difference(known), key=lambda seed: hosts and seed % 16 not in HOSTED)

    def is_noticed(self, name: str) -> bool:
        """Whether one of the seeds catches a variant."""
        return any(self.attempt(name, seed) is not None for seed in self.in_order(name))

    def caught_by(self, name: str, tries: int) -> list[int]:
        """The ``KEPT`` cheapest of the seeds that catch a variant, those that come to the least first.

        Sought among all up to the first that catches it, and ``tries`` more.
        """
        costs: dict[int, float] = {}
        left = tries
        for seed in self.in_order(name):
            cost = self.attempt(name, seed)
            if cost is not None:
                costs[seed] = cost
            left -= bool(costs)
            if left < 0:
                break
        return sorted(costs, key=costs.__getitem__)[:KEPT]


def _checked(name: str, seed: int) -> float | None:
    with VARIANTS[name].applied():
        outcome = run(seed)
    return outcome.steps if outcome.violations else None


class _Judged(Protocol):
    """One seed, whose judge raises what it notices."""

    @property
    def now(self) -> float: ...

    def run(self) -> object: ...


def _of_workers(name: str, seed: int) -> float | None:
    with exclusive_variants.applied(name):
        outcome = run(seed, exclusive=True)
    return outcome.steps if outcome.violations else None


def _of_releases(name: str, seed: int) -> float | None:
    with release_variants.VARIANTS[name].applied():
        outcome = run_releases(seed)
    return outcome.steps if outcome.violations else None


def _of_groups(name: str, seed: int) -> float | None:
    with group_variants.VARIANTS[name].applied():
        return _judged(group_world.World(seed))


def _judged(world: _Judged) -> float | None:
    try:
        world.run()
    except Violation:
        return world.now
    return None


PEERS: Final = BrokenVariants(GUIDES / "simulation.md", VARIANTS, _checked)
STICKY: Final = BrokenVariants(
    GUIDES / "sticky.md",
    sticky_variants.VARIANTS,
    lambda name, seed: _judged(World(seed, sticky_variants.VARIANTS[name].machines)),
)
MIGRATION: Final = BrokenVariants(
    GUIDES / "sticky.md",
    sticky_migration_variants.VARIANTS,
    lambda name, seed: _judged(sticky_migration_variants.world(name, seed)),
)
EXCLUSIVE: Final = BrokenVariants(GUIDES / "sticky.md", exclusive_variants.VARIANTS, _of_workers)
GROUPS: Final = BrokenVariants(GUIDES / "simulation.md", group_variants.VARIANTS, _of_groups)
RELEASES: Final = BrokenVariants(GUIDES / "simulation.md", release_variants.VARIANTS, _of_releases)
SIMULATIONS: Final = (PEERS, STICKY, MIGRATION, EXCLUSIVE, GROUPS, RELEASES)


def write(guide: Path, seeds: Mapping[str, list[int]]) -> None:
    """Puts seeds into the tables of a guide; a variant without any keeps those that it has."""

    def row(match: re.Match[str]) -> str:
        name, what, within, before = match.groups()
        return f"| `{name}` | {what} | {within} | {', '.join(map(str, seeds.get(name, ()))) or before} |"

    guide.write_text(_ROW.sub(row, guide.read_text()))
