"""Exclusive ownership keeps its promises under faults, and every broken variant of it is noticed."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast_wire import names

from tests.simulation.known_seeds import STICKY
from tests.simulation.sticky_judge import Violation
from tests.simulation.sticky_machines import KEY, Machines
from tests.simulation.sticky_process import Process
from tests.simulation.sticky_variants import ForgetsTheOneBefore
from tests.simulation.sticky_world import World


@pytest.mark.parametrize("seed", [*range(6), 34_236])
def test_the_promises_hold(seed: int) -> None:
    """The last one has a leader that lost a table found another while a worker served that it took for dead."""
    world = World(seed).run()
    assert world.judge.begun > 50
    assert len(world.trace) > 10


def test_workers_are_killed_in_every_state_of_a_partition() -> None:
    found: set[OwnedState] = set()
    for seed in range(100, 130):
        found |= World(seed).run().killed_in
        if found == set(OwnedState):
            return
    pytest.fail(f"no worker was killed with a partition in {set(OwnedState) - found}")


def test_agents_see_processes_end() -> None:
    assert sum(host.seen for seed in range(200, 204) for host in World(seed).run().hosts.values()) > 4


class SucceededWorld(World):
    """A worker that is cut off goes on by a lost table. The server loses its lease, and another process takes that."""

    succeeded = False

    def fault(self) -> None:
        able = [one for one in self.processes if one.ownership.tokens() and not one.open_calls]
        if not able:
            self.after(0.1, self.fault)
            return
        process = self.draw.choice(able)
        process.cut_until = self.now + 60.0
        self.store.lose(names.table_key(KEY))
        self.after(self.draw.uniform(5.0, 6.0), partial(self.succeed, process))

    def succeed(self, process: Process) -> None:
        if process.open_calls:
            self.after(0.01, partial(self.succeed, process))
            return
        self.succeeded = bool(process.ownership.tokens()) and process.now < process.true_fence
        self.store.drop_lease(process.worker_id, self.now)
        process.paused = True
        self.after(0.01, partial(self.start, process.worker_id))
        self.after(2.0, process.resume)


SUCCEEDED: Final = range(12)


@pytest.mark.parametrize("seed", SUCCEEDED)
def test_what_acts_by_a_lost_table_is_waited_for_though_another_process_has_its_id(seed: int) -> None:
    SucceededWorld(seed).run()


def test_it_is_noticed_if_the_other_process_does_not_say_what_the_one_before_has_said() -> None:
    worlds = [SucceededWorld(seed, Machines(ownership=ForgetsTheOneBefore)) for seed in SUCCEEDED]
    broken = 0
    for world in worlds:
        try:
            world.run()
        except Violation:
            broken += 1
    assert sum(world.succeeded for world in worlds) > len(SUCCEEDED) // 2
    assert broken > len(SUCCEEDED) // 3


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = World(3).run(), World(3).run()
    assert first.trace == second.trace
    assert first.judge.begun == second.judge.begun
    assert first.judge.last == second.judge.last > 10
    assert first.store.nodes == second.store.nodes


@pytest.mark.parametrize("name", STICKY.variants)
def test_a_broken_variant_is_noticed(name: str) -> None:
    variant = STICKY.variants[name]
    assert STICKY.is_noticed(name), f"{variant.within} seeds, and nobody noticed what {variant.what}"


def test_the_guide_names_every_broken_variant() -> None:
    assert [row for row in STICKY.rows() if row[0] in STICKY.variants] == STICKY.wanted_rows()
