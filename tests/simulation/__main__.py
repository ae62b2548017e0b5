"""Runs seeds: ``python -m tests.simulation --seeds 100000``, or one of them again: ``--seed 4711 --trace``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context

from tests.simulation.run import Outcome, run
from tests.simulation.variants import VARIANTS

_PROGRESS_S = 5.0
_CHUNK = 25
_SHOWN = 20


def _attempt(seed: int) -> Outcome | tuple[int, str]:
    try:
        return run(seed)
    except Exception as error:  # noqa: BLE001  # a broken machine may raise anything, and which seed it was matters
        return seed, f"{type(error).__name__}: {error}"


def _outcomes(first: int, count: int, jobs: int) -> Iterator[Outcome | tuple[int, str]]:
    seeds = range(first, first + count)
    if jobs == 1:
        yield from map(_attempt, seeds)
        return
    with get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(_attempt, seeds, _CHUNK)


def many(first: int, count: int, jobs: int) -> int:
    """Runs seeds and tells how it goes; returns how many broke a promise."""
    begun = said = time.monotonic()
    broken: list[int] = []
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for done, outcome in enumerate(_outcomes(first, count, jobs), 1):
        if isinstance(outcome, tuple):
            broken.append(outcome[0])
            print(f"seed {outcome[0]}: {outcome[1]}", flush=True)
        else:
            faults.update(outcome.faults)
            totals.update(commits=outcome.commits, handled=outcome.handled, steps=outcome.steps)
            totals["virtual_s"] += int(outcome.virtual_s)
            totals["double_owned_ms"] += int(outcome.double_owned_s * 1000)
            if outcome.violations:
                broken.append(outcome.seed)
                if len(broken) <= _SHOWN:
                    print(f"seed {outcome.seed}: {outcome.violations[0]}", flush=True)
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
        print(f"  replay: python -m tests.simulation --seed {min(broken)} --trace")
    return len(broken)


def one(seed: int, *, trace: bool) -> int:
    """Runs one seed and tells all about it; returns the number of broken promises."""
    outcome = run(seed, trace=trace)
    for line in outcome.trace:
        print(line)
    for violation in outcome.violations:
        print(violation)
    print(f"seed {seed}: {len(outcome.violations)} broken promises, {outcome.commits} commits, faults {outcome.faults}")
    print(f"digest {outcome.digest}")
    return len(outcome.violations)


def main() -> int:
    """Does what the arguments say; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every step")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="break the workers in this way")
    given = parser.parse_args()
    broken: AbstractContextManager[None] = VARIANTS[given.variant].applied() if given.variant else nullcontext()
    with broken:
        found = many(given.first, given.seeds, given.jobs) if given.seed is None else one(given.seed, trace=given.trace)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
