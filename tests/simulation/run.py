"""One seed from beginning to end: faults, recovery, a quiet time with its own demands, and the verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.agent import simulated_agent
from tests.simulation.checker import Checker, Violation
from tests.simulation.dispatch import simulated_dispatch
from tests.simulation.drills import drill
from tests.simulation.engine import CirclesError
from tests.simulation.exclusive import ExclusiveChecker, ExclusiveFaults, ExclusiveWorld, simulated_ownership
from tests.simulation.faults import Faults
from tests.simulation.service import simulated_service
from tests.simulation.worker import simulated
from tests.simulation.world import REST_WITHIN_S, World

BACKOFFS_S: Final = 12.0
"""How long after all is in order the last short back-off may still run."""
HEADS_S: Final = 15.0
"""Within this time every worker has compared with the heads."""


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    seed: int
    violations: list[Violation]
    digest: str
    """Of the whole history: the same for the same seed."""
    faults: dict[str, int]
    commits: int
    handled: int
    steps: int
    double_owned_s: float
    virtual_s: float
    trace: list[str] = field(default_factory=list)
    releases: dict[str, int] = field(default_factory=dict)
    """How many releases have ended how, and what became of their gates."""


def run(seed: int, *, trace: bool = False, exclusive: bool = False) -> Outcome:
    """Runs a seed, of peers or of exclusive ownership; ``trace`` keeps a line of every step."""
    lines: list[str] = []
    world = (ExclusiveWorld if exclusive else World)(seed, lines if trace else None)
    with (
        simulated_ownership(world),
        simulated(seed, world.settings.filters),
        simulated_service(world.random, world.database),
        simulated_agent(seed),
        simulated_dispatch(seed),
    ):
        faults = (ExclusiveFaults if exclusive else Faults)(world)
        try:
            _live_through(world, faults)
            if come_to_rest(world) and _make_up(world):
                drill(world)
            end(world)
        except CirclesError as error:
            world.history.add(world.scheduler.now, "circles", str(error))
        outcome = _judge(seed, world, faults)
        world.end()
    outcome.trace += lines
    return outcome


def _judge(seed: int, world: World, faults: Faults) -> Outcome:
    checker = (ExclusiveChecker if isinstance(world, ExclusiveWorld) else Checker)(full=world.full)
    violations = checker.judge(world.history)
    kinds = [fact[1] for fact in world.history.facts]
    return Outcome(
        seed,
        violations,
        hashlib.sha256("\n".join(world.history.lines()).encode()).hexdigest(),
        faults.counts,
        kinds.count("commit"),
        kinds.count("handled"),
        world.scheduler.fired,
        checker.double_owned_s,
        world.scheduler.now,
    )


def _live_through(world: World, faults: Faults) -> None:
    """The time of the faults, under a load of writes."""
    random = world.random
    for host in world.hosts:
        world.start_agent(host)
    for number in range(random.choice((1, 2, 2))):
        world.start_service(f"c{number}")
    for number in range(random.randint(1, 4)):
        world.start_worker(f"w{number}")
    end = random.uniform(10.0, 45.0)
    world.write_until(end)
    faults.run_until(end)
    world.scheduler.run_until(end)


def _make_up(world: World) -> bool:
    """Writes to every partition: the comparison with the heads shows where events do not come, and sees to it."""
    world.touch_each(within_s=1.0)
    world.scheduler.run_until(world.scheduler.now + HEADS_S)
    return come_to_rest(world)


def come_to_rest(world: World) -> bool:
    """Mends everything and waits until all is in order; whether it is, after a very long time."""
    scheduler = world.scheduler
    world.heal()
    until = scheduler.now + REST_WITHIN_S
    while scheduler.now < until:
        scheduler.run_until(scheduler.now + 1.0)
        if not (unrest := world.unrest()):
            scheduler.run_until(scheduler.now + BACKOFFS_S)
            if not (unrest := world.unrest()):
                return True
    world.history.add(scheduler.now, "restless", unrest)
    return False


def end(world: World) -> None:
    """Waits until the last deliveries are acknowledged, which may take another delivery."""
    scheduler = world.scheduler
    until = scheduler.now + 70.0
    scheduler.run_until(scheduler.now + 15.0)
    while world.unacked() and scheduler.now < until:
        scheduler.run_until(scheduler.now + 5.0)
    world.note_the_end()
