"""One seed of releases from beginning to end, and one of a release whose driver crashes at each step in turn."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Final

from typing_extensions import override

from tests.simulation.agent import simulated_agent
from tests.simulation.checker import Checker
from tests.simulation.dispatch import simulated_dispatch
from tests.simulation.engine import CirclesError
from tests.simulation.release_service import simulated_releases
from tests.simulation.release_world import ReleaseFaults, ReleaseWorld
from tests.simulation.run import Outcome, come_to_rest, end
from tests.simulation.service import simulated_service
from tests.simulation.worker import simulated

CALM_S: Final = 10.0
"""How long all runs, beside an instance that crashes."""


def run_releases(seed: int, *, trace: bool = False, crash_at: Collection[int] | None = None) -> Outcome:
    """Runs a seed; ``crash_at``: with no other faults than that the instances that take these steps die."""
    return _run(seed, trace=trace, crash_at=crash_at)[0]


def steps_of(seed: int) -> list[str]:
    """The steps that a release of a seed takes where nothing goes wrong."""
    return _run(seed, trace=False, crash_at=())[1].steps.taken


def crashes(seed: int, every: int = 1) -> Iterator[tuple[int, str, Outcome]]:
    """Runs a seed again and again: its driver crashes at one step, then at the next one, or the one ``every`` later."""
    steps = steps_of(seed)
    for number in range(1, len(steps) + 1, every):
        yield number, steps[number - 1], run_releases(seed, crash_at=(number,))


def _run(seed: int, *, trace: bool, crash_at: Collection[int] | None) -> tuple[Outcome, ReleaseWorld]:
    lines: list[str] = []
    world = ReleaseWorld(seed, lines if trace else None, crash_at)
    counts: dict[str, int] = {}
    with (
        simulated(seed, world.settings.filters),
        simulated_service(world.random, world.database),
        simulated_releases(world.random, world.step_rows, world.wave_rows),
        simulated_agent(seed),
        simulated_dispatch(seed),
    ):
        try:
            counts = _live_through(world)
            if come_to_rest(world):
                end(world)
        except CirclesError as error:
            world.history.add(world.scheduler.now, "circles", str(error))
        outcome = _judge(seed, world, counts)
        world.end()
    outcome.trace += lines
    return outcome, world


def _live_through(world: ReleaseWorld) -> dict[str, int]:
    random = world.random
    for number in range(3 if world.is_calm else random.choice((2, 2, 3))):
        world.start_service(f"c{number}")
    for number in range(random.randint(1, 3)):
        world.start_worker(f"w{number}")
    world.touch_each(within_s=1.0)
    world.scheduler.run_until(2.0)
    if world.is_calm:
        world.begin_releases(within_s=0.3)
        world.scheduler.run_until(CALM_S)
        return {}
    until = random.uniform(12.0, 30.0)
    world.begin_releases(within_s=until / 2)
    world.write_until(until)
    faults = ReleaseFaults(world)
    faults.run_until(until)
    world.scheduler.run_until(until)
    return faults.counts


def _judge(seed: int, world: ReleaseWorld, counts: dict[str, int]) -> Outcome:
    violations = ReleaseChecker(full=world.full).judge(world.history) + world.judge.violations
    kinds = [fact[1] for fact in world.history.facts]
    judge = world.judge
    counts = {**counts, "crash_at_step": kinds.count("dies_at")}
    done = dict.fromkeys(("passed", "failed", "proven", "halves"), 0)
    done |= {"passed": judge.passed, "failed": judge.failed, "proven": judge.proven, "halves": judge.halves}
    for recorded in judge.recorded.values():
        done[recorded.state] = done.get(recorded.state, 0) + 1
    return Outcome(
        seed,
        violations,
        hashlib.sha256("\n".join(world.history.lines()).encode()).hexdigest(),
        counts,
        kinds.count("commit"),
        kinds.count("handled"),
        world.scheduler.fired,
        0.0,
        world.scheduler.now,
        releases=done,
    )


_UNKNOWN_SINCE_A_RESTORE: Final = frozenset(
    {"early ack", "invented", "stale", "lost", "risen", "wrong state", "callback", "put back"}
)
"""Of a database that goes back while all else goes wrong too, what workers do in between is not judged: that is what
drills do in the quiet. In the end they have what it has."""


class ReleaseChecker(Checker):
    """The promises of workers, in a run with releases."""

    @override
    def _wrong(self, kind: str, text: str) -> None:
        if not self._restored or kind not in _UNKNOWN_SINCE_A_RESTORE or ": holds " in text:
            super()._wrong(kind, text)

    def _on_dies_at(self, _service: str, _step: int, _what: str) -> None:
        """An instance is killed at a step."""
