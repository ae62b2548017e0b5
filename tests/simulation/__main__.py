"""Runs seeds: ``python -m tests.simulation --seeds 100000``, or one of them again: ``--seed 4711 --trace``.

With ``--sticky`` the seeds are of the machines of exclusive ownership, which have a simulation of their own, with
``--exclusive`` of the same in real workers, with ``--migration`` of stores that go between the two, with
``--groups`` of groups that hosts share, and with ``--releases`` of releases. ``--releases --seed 8 --every-crash`` runs
one release again and again, whose driver crashes at one of its steps after the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from tests.simulation import group_world, known_seeds, sticky_judge, sticky_migration, sticky_world
from tests.simulation.release_run import crashes, run_releases, steps_of
from tests.simulation.run import Outcome, run
from tests.simulation.variants import VARIANTS

_PROGRESS_S = 5.0
_CHUNK = 25
_SHOWN = 20
_TRIES = 6
"""Seeds that are tried for a cheaper one that catches a variant, once the first is found."""


@dataclass
class _Result:
    """What is told of a seed."""

    seed: int
    broken: str = ""
    totals: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)


def _peer(seed: int) -> _Result:
    return _of_workers(seed)


def _exclusive(seed: int) -> _Result:
    return _of_workers(seed, exclusive=True)


def _releases(seed: int) -> _Result:
    return _of_workers(seed, attempt=run_releases)


def _of_workers(seed: int, *, exclusive: bool = False, attempt: Callable[[int], Outcome] | None = None) -> _Result:
    try:
        outcome = attempt(seed) if attempt is not None else run(seed, exclusive=exclusive)
    except Exception as error:  # noqa: BLE001  # a broken machine may raise anything, and which seed it was matters
        return _Result(seed, f"{type(error).__name__}: {error}")
    totals = Counter(commits=outcome.commits, handled=outcome.handled, steps=outcome.steps)
    totals.update(virtual_s=int(outcome.virtual_s), double_owned_ms=int(outcome.double_owned_s * 1000))
    totals.update(outcome.releases)
    return _Result(seed, str(outcome.violations[0]) if outcome.violations else "", totals, Counter(outcome.faults))


def _sticky(seed: int) -> _Result:
    return _of_world(sticky_world.World(seed))


def _migration(seed: int) -> _Result:
    return _of_world(sticky_migration.MigratingWorld(seed))


def _groups(seed: int) -> _Result:
    return _of_world(group_world.World(seed))


def _of_world(world: sticky_world.World | group_world.World) -> _Result:
    broken = ""
    try:
        world.run()
    except sticky_judge.Violation as violation:
        broken = str(violation).partition("\n")[0]
    except Exception as error:  # noqa: BLE001  # as above
        broken = f"{type(error).__name__}: {error}"
    totals = Counter(calls=world.judge.begun, virtual_s=int(world.now))
    return _Result(world.seed, broken, totals, Counter(line.split()[1] for line in world.trace))


def _results(attempt: Callable[[int], _Result], first: int, count: int, jobs: int) -> Iterator[_Result]:
    seeds = range(first, first + count)
    if jobs == 1:
        yield from map(attempt, seeds)
        return
    with get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(attempt, seeds, _CHUNK)


def many(attempt: Callable[[int], _Result], first: int, count: int, jobs: int) -> int:
    """Runs seeds and tells how it goes; returns how many broke a promise."""
    begun = said = time.monotonic()
    broken: list[int] = []
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for done, result in enumerate(_results(attempt, first, count, jobs), 1):
        totals.update(result.totals)
        faults.update(result.faults)
        if result.broken:
            broken.append(result.seed)
            if len(broken) <= _SHOWN:
                print(f"seed {result.seed}: {result.broken}", flush=True)
        if time.monotonic() - said > _PROGRESS_S:
            said = time.monotonic()
            rate = done / (said - begun)
            left = (count - done) / rate
            print(f"{done} of {count} seeds, {len(broken)} broken, {rate:.0f}/s, {left:.0f} s left", file=sys.stderr)
    took = time.monotonic() - begun
    print(f"{count} seeds from {first} in {took:.1f} s: {len(broken)} with a broken promise {sorted(broken)[:_SHOWN]}")
    print("  " + ", ".join(f"{name} {number}" for name, number in totals.items()))
    print("  faults: " + ", ".join(f"{name} {number}" for name, number in sorted(faults.items())))
    if broken:
        options = {_sticky: " --sticky", _exclusive: " --exclusive", _migration: " --migration", _groups: " --groups"}
        options[_releases] = " --releases"
        option = next((option for known, option in options.items() if known is attempt), "")
        print(f"  replay: python -m tests.simulation{option} --seed {min(broken)} --trace")
    return len(broken)


def one(seed: int, *, trace: bool, exclusive: bool = False) -> int:
    """Runs one seed and tells all about it; returns the number of broken promises."""
    return _told(seed, run(seed, trace=trace, exclusive=exclusive))


def one_of_releases(seed: int, *, trace: bool) -> int:
    """The same of releases."""
    return _told(seed, run_releases(seed, trace=trace))


def every_crash(seed: int) -> int:
    """Has the driver of a release crash at each of its steps; returns how many of these broke a promise."""
    begun, broken, runs = time.monotonic(), 0, 0
    for number, step, outcome in crashes(seed):
        runs += 1
        broken += bool(outcome.violations)
        for violation in outcome.violations:
            print(f"crash at step {number} ({step}): {violation}", flush=True)
    took = time.monotonic() - begun
    print(f"seed {seed}: a crash at each of {len(steps_of(seed))} steps, {runs} runs in {took:.1f} s, {broken} broken")
    return broken


def _told(seed: int, outcome: Outcome) -> int:
    for line in outcome.trace:
        print(line)
    for violation in outcome.violations:
        print(violation)
    print(f"seed {seed}: {len(outcome.violations)} broken promises, {outcome.commits} commits, faults {outcome.faults}")
    print(f"digest {outcome.digest}")
    return len(outcome.violations)


def one_sticky(seed: int, *, trace: bool) -> int:
    """The same of exclusive ownership."""
    return _one_of_world(sticky_world.World(seed), trace=trace)


def one_migration(seed: int, *, trace: bool) -> int:
    """The same of a store that migrates."""
    return _one_of_world(sticky_migration.MigratingWorld(seed), trace=trace)


def one_of_groups(seed: int, *, trace: bool) -> int:
    """The same of groups that hosts share."""
    return _one_of_world(group_world.World(seed), trace=trace)


def _one_of_world(world: sticky_world.World | group_world.World, *, trace: bool) -> int:
    try:
        world.run()
    except sticky_judge.Violation as violation:
        print(violation)
        return 1
    finally:
        if trace:
            print("\n".join(world.trace))
    print(f"seed {world.seed}: 0 broken promises, {world.judge.begun} calls")
    return 0


def _caught_by(place: tuple[int, str]) -> tuple[str, list[int]]:
    simulation, name = place
    return name, known_seeds.SIMULATIONS[simulation].caught_by(name, _TRIES)


def write_known_seeds(jobs: int) -> int:
    """Looks for the seeds that catch each broken variant, and writes them into the guides; how many have none."""
    found: dict[str, list[int]] = {}
    simulations = known_seeds.SIMULATIONS
    places = [(number, name) for number, broken in enumerate(simulations) for name in broken.variants]
    with get_context("fork").Pool(jobs) as pool:
        for name, seeds in pool.imap_unordered(_caught_by, places):
            print(f"{name}: {', '.join(map(str, seeds)) or 'no seed catches it'}", flush=True)
            found[name] = seeds
    for guide in sorted({broken.guide for broken in simulations}):
        known_seeds.write(guide, found)
    return sum(not seeds for seeds in found.values())


def main() -> int:
    """Does what the arguments say; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every step")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="break the workers in this way")
    parser.add_argument(
        "--write-known-seeds", action="store_true", help="write into the guides which seeds catch each broken variant"
    )
    parser.add_argument("--sticky", action="store_true", help="seeds of exclusive ownership")
    parser.add_argument("--exclusive", action="store_true", help="seeds of exclusive ownership, with real workers")
    parser.add_argument("--migration", action="store_true", help="seeds of stores that migrate to it and back")
    parser.add_argument("--groups", action="store_true", help="seeds of groups that hosts share")
    parser.add_argument("--releases", action="store_true", help="seeds of releases")
    parser.add_argument(
        "--every-crash",
        action="store_true",
        help="with --releases --seed: once for each step of its driver, which dies",
    )
    given = parser.parse_args()
    if given.every_crash and not (given.releases and given.seed is not None):
        parser.error("--every-crash is for one seed of releases: --releases --seed 8 --every-crash")
    others = given.sticky or given.exclusive or given.migration or given.groups or given.releases
    if others and given.variant:
        parser.error("--variant breaks the workers of the other strategies")
    if given.write_known_seeds:
        return 1 if write_known_seeds(given.jobs) else 0
    attempt, alone = (_sticky, one_sticky) if given.sticky else (_peer, one)
    if given.exclusive:
        attempt, alone = _exclusive, partial(one, exclusive=True)
    if given.migration:
        attempt, alone = _migration, one_migration
    if given.groups:
        attempt, alone = _groups, one_of_groups
    if given.releases:
        attempt, alone = _releases, one_of_releases
    if given.every_crash:
        return 1 if every_crash(given.seed) else 0
    broken: AbstractContextManager[None] = VARIANTS[given.variant].applied() if given.variant else nullcontext()
    with broken:
        if given.seed is None:
            found = many(attempt, given.first, given.seeds, given.jobs)
        else:
            found = alone(given.seed, trace=given.trace)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
