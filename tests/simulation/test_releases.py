"""Releases keep their promises under faults and after a crash at each step, and every broken variant is noticed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.known_seeds import RELEASES
from tests.simulation.release_run import crashes, run_releases, steps_of
from tests.simulation.run import Outcome

SEEDS = 6
"""``make simulate RELEASES=1`` runs thousands."""
UNDONE_BY_ITS_GATE = 21
"""A seed whose release passes two gates and is undone by the third one, where nothing else goes wrong."""
EVERY = 20
"""Of the steps at which a driver may crash every twentieth is tried; ``--every-crash`` tries all."""


def _check(outcome: Outcome, replay: str) -> None:
    told = "\n".join(str(violation) for violation in outcome.violations[:20])
    assert not outcome.violations, f"replay: python -m tests.simulation --releases {replay}\n{told}"


def test_every_promise_is_kept() -> None:
    done: Counter[str] = Counter()
    for seed in range(SEEDS):
        outcome = run_releases(seed)
        _check(outcome, f"--seed {seed} --trace")
        done.update(outcome.releases)
        done["crashes"] += outcome.faults["crash_at_step"]
    # As much has to happen as happens now, or the promises would be cheap.
    assert min(done[what] for what in ("passed", "failed", "proven", "undone", "published", "halves", "crashes")) > 0


def test_the_same_seed_gives_the_same_run() -> None:
    once, again = run_releases(0), run_releases(0)
    assert once.digest == again.digest
    assert once.releases == again.releases


def test_a_release_goes_on_after_a_crash_at_any_step() -> None:
    ended: set[str] = set()
    for number, step, outcome in crashes(UNDONE_BY_ITS_GATE, EVERY):
        _check(outcome, f"--seed {UNDONE_BY_ITS_GATE} --every-crash\ncrash at step {number}, {step}")
        assert outcome.faults["crash_at_step"] == 1, f"step {number}, {step}: nothing has crashed"
        ended |= outcome.releases.keys()
    assert "undone" in ended


def test_steps_are_those_of_the_database_and_of_the_bus() -> None:
    steps = steps_of(UNDONE_BY_ITS_GATE)
    assert {"driver write", "driver written", "driver read", "driver message", "driver request"} <= set(steps)
    assert {"caller write", "caller answer", "relay message", "relay write"} <= set(steps)


@pytest.mark.parametrize("name", RELEASES.variants)
def test_a_broken_variant_is_noticed(name: str) -> None:
    variant = RELEASES.variants[name]
    assert RELEASES.is_noticed(name), f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    assert [row for row in RELEASES.rows() if row[0] in RELEASES.variants] == RELEASES.wanted_rows()
