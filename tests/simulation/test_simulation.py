"""Runs with faults keep every promise, and a run can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.agent import simulated_agent
from tests.simulation.process import modules_with_time
from tests.simulation.run import run
from tests.simulation.service import simulated_service
from tests.simulation.worker import simulated
from tests.simulation.world import World

SEEDS = 16
"""``make simulate`` runs thousands."""
CHUNK = 16
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(first: int) -> None:
    commits = handled = faults = 0
    for seed in range(first, first + CHUNK):
        outcome = run(seed)
        told = "\n".join(str(violation) for violation in outcome.violations[:20])
        assert not outcome.violations, f"replay: python -m tests.simulation --seed {seed} --trace\n{told}"
        commits, handled = commits + outcome.commits, handled + outcome.handled
        faults += sum(outcome.faults.values())
    # As much has to happen as happens now, or the promises would be cheap.
    assert commits > 100 * CHUNK
    assert handled > 100 * CHUNK
    assert faults > 4 * CHUNK


def test_the_same_seed_gives_the_same_trace() -> None:
    once, other, again = run(11, trace=True), run(12, trace=True), run(11, trace=True)
    assert len(once.trace) > 1_000
    assert once.trace == again.trace
    assert once.digest == again.digest
    assert other.digest != once.digest


def test_the_seeds_before_decide_nothing() -> None:
    before = run(1).digest
    run(10)  # kills workers that have the names of those of the other seed
    assert run(1).digest == before


def test_no_module_of_a_process_tells_the_real_time() -> None:
    def found() -> set[str]:
        packages = ("ringcast", "ringcast_config_service", "ringcast_heartbeat_agent")
        return {module.__name__ for package in packages for module in modules_with_time(package)}

    world = World(0)
    before = found()
    with simulated(0, world.settings.filters), simulated_service(world.random, world.database), simulated_agent(0):
        assert not found()
    assert found() == before > {"ringcast._delivery.poison", "ringcast._worker.reports"}


def test_the_order_of_sets_decides_nothing() -> None:
    """Another process has other hashes of strings: a replay must not depend on them."""

    def replay(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--seed", "11", "--trace"]
        paths = os.pathsep.join([str(ROOT), *sys.path])
        environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    first = replay("1")
    assert first.count("\n") > 1_000
    assert first == replay("2")
