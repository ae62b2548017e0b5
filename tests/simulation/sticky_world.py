"""Exclusive ownership under faults: processes with clocks of their own, a store with compare-and-set, and a judge.

The machines of ``ringcast._protocol.sticky`` run as they are, records and codecs included. Time is virtual, everything
random comes from one seed. A process that is halted is halted between calls: within one nobody can fence it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import ClassVar, Self

from ringcast._protocol.sticky.fence import CLOCK_SKEW
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast._protocol.sticky.plan import Wishes
from ringcast_wire import names
from ringcast_wire.owner_records import decode_term

from tests.simulation.sticky_host import Host
from tests.simulation.sticky_judge import Judge, Violation
from tests.simulation.sticky_machines import HOSTS, KEY, PARTITIONS, TIMES, Machines, table_among
from tests.simulation.sticky_process import TICK_S, Process
from tests.simulation.sticky_store import Store

FAULTS_S = 120.0
QUIET_S = 90.0
_APART_S = 60.0
"""Between the loss of a table and that of a state. A worker of which neither is known is not waited for."""


@dataclass
class World:
    """One run of one seed."""

    process_type: ClassVar[type[Process]] = Process
    seed: int
    machines: Machines = field(default_factory=Machines)

    def __post_init__(self) -> None:
        self.draw = Random(self.seed)
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.store = Store(3 * TIMES.ttl_s * (1.0 + self.draw.uniform(-CLOCK_SKEW, CLOCK_SKEW)))
        self.store.is_compared = self.machines.is_compared
        self.hosts: dict[str, Host] = {name: Host(self, name, KEY) for name in HOSTS}
        self.judge = Judge(PARTITIONS)
        self.wishes = Wishes()
        self.processes: list[Process] = []
        self.turns: list[Process] = []
        """The processes that something has happened in by the event that is being handled."""
        self.names = [f"w{n}" for n in range(self.draw.randint(2, 4))]
        self.spare = [f"w{n}" for n in range(len(self.names), 6)]
        self.faulty = True
        self.trace: list[str] = []
        self.doomed: dict[Process, OwnedState] = {}
        """Processes that are killed as soon as they have a partition in a state."""
        self.killed_in: set[OwnedState] = set()
        self.lost_at = {True: -math.inf, False: -math.inf}
        """When a state was lost last, and when a record of the leader."""

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + delay_s, next(self.numbers), what))

    def delay(self) -> float:
        slow = self.faulty and self.draw.random() < 0.03
        return self.draw.uniform(0.5, 1.4) if slow else self.draw.uniform(0.001, 0.04)

    def is_lost(self, process: Process) -> bool:
        return self.now < process.cut_until or (self.faulty and self.draw.random() < 0.03)

    def changed(self, name: str, entry: tuple[int, bytes]) -> None:
        """Every process that watches hears of it, sooner or later."""
        for process in self.processes:
            if not self.is_lost(process):
                self.after(self.delay(), partial(process.take, partial(process.hear, name, entry)))

    def log(self, text: str) -> None:
        self.trace.append(f"{self.now:8.2f} {text}")

    def start(self, worker_id: str) -> None:
        """A process starts once no other has the lease, as far as the server says."""
        if any(one.worker_id == worker_id and one.is_alive and not one.paused for one in self.processes):
            return
        lease = self.store.leases.get(worker_id)
        if lease is not None and self.now - lease.stored_at < TIMES.ttl_s * self.draw.uniform(0.9, 1.1):
            self.after(0.5, lambda: self.start(worker_id))
            return
        process = self.process_type(self, worker_id, next(self.numbers))
        process.lease_revision = lease.revision if lease is not None else 0
        self.log(f"start {process}")
        self.processes.append(process)
        self.after(self.draw.uniform(0.0, TICK_S), process.tick)

    def stop(self, process: Process) -> None:
        """The process is gone, and its calls with it."""
        self.log(f"stop {process}")
        process.is_alive = False
        process.host.sees_end(process)
        self.processes.remove(process)
        for call in process.open_calls:
            self.judge.ends(call)
        process.open_calls = []

    def leaves(self, process: Process) -> None:
        self.store.drop_lease(process.worker_id, self.now)
        self.stop(process)
        self.names = [name for name in self.names if name != process.worker_id]

    def fault(self) -> None:
        if not self.faulty:
            return
        self.after(self.draw.expovariate(1 / 4.0), self.fault)
        running = [one for one in self.processes if one.is_alive and not one.paused]
        if not running:
            return
        leader = self.store.nodes.get(names.term_key(KEY))
        process = self.draw.choice(running)
        if leader is not None and self.draw.random() < 0.35:
            process = next((one for one in running if one.worker_id == decode_term(leader[1]).leader), process)
        kinds = "pause pause cut stuck kill kill expire join leave drain lose agent"
        kind = self.draw.choice(kinds.split())
        self.log(f"{kind} {process}")
        match kind:
            case "pause" if not process.open_calls:
                process.paused = True
                process.host.loses(process)
                self.after(self.draw.choice((1.0, 9.0, 14.0, 25.0)) * self.draw.random() * 1.2, process.resume)
            case "agent":
                process.host.restarts() if self.draw.random() < 0.5 else process.host.cut(self.now + 5.0)
            case "cut":
                process.cut_until = self.now + self.draw.choice((2.0, 10.0, 22.0)) * self.draw.random()
            case "stuck":
                process.stuck_at, process.stuck_until = self.now, self.now + self.draw.uniform(2.0, 30.0)
            case "kill":
                self.doomed[process] = self.draw.choice(list(OwnedState))
            case "expire":  # the server lost it, or its clock has jumped
                self.store.drop_lease(process.worker_id, self.now)
                if self.draw.random() < 0.3:
                    self.stop_soon_for_another(process)
            case "join" if self.spare:
                self.names.append(self.spare.pop(0))
                self.start(self.names[-1])
            case "leave" if sum(not one.ownership.record.leaving for one in running) > 2:
                process.ownership.leave()
            case "drain" if self.names:
                drained = frozenset(self.draw.sample(self.names, self.draw.randint(0, len(self.names) - 1)))
                self.wishes = Wishes(drains=drained)
            case "lose":
                self.lose_record()

    def kill(self) -> None:
        """Kills the processes whose state has come."""
        for process, state in list(self.doomed.items()):
            state_of = process.ownership.state_of
            if not process.is_alive:
                del self.doomed[process]
            elif not process.paused and any(state_of(number) is state for number in range(PARTITIONS)):
                del self.doomed[process]
                self.log(f"killed {process} with a partition in {state.name}")
                self.killed_in.add(state)
                self.stop(process)
                self.after(self.draw.uniform(0.0, 15.0), partial(self.start, process.worker_id))

    def lose_record(self) -> None:
        """The server loses a record."""
        states = self.draw.random() < 0.5
        if self.now - self.lost_at[not states] < _APART_S:
            return
        self.lost_at[states] = self.now
        found = [name for name in self.store.nodes if name.startswith(names.state_key(KEY, "")) is states]
        if found:
            self.store.lose(self.draw.choice(found))

    def stop_soon_for_another(self, process: Process) -> None:
        """Another process takes the worker's id while the first is halted."""
        if not process.open_calls:
            process.paused = True
            process.host.loses(process)
            self.after(self.draw.uniform(0.5, 12.0), process.resume)
            self.after(0.1, lambda: self.start(process.worker_id))

    def run(self) -> Self:
        """Runs to the end.

        Raises:
            Violation: a promise was broken; the text has the seed and the last faults.
        """
        for name in self.names:
            self.after(self.draw.uniform(0.0, 2.0), partial(self.start, name))
        self.after(5.0, self.fault)
        self.after(FAULTS_S, self.calm)
        try:
            while self.queue and self.now < FAULTS_S + QUIET_S:
                self.now, _, what = heapq.heappop(self.queue)
                what()
                self.look()
            self.settle()
        except Violation as violation:
            last = "\n".join(self.trace[-25:])
            raise Violation(f"seed {self.seed}, at {self.now:.2f} s: {violation}\n{last}") from None
        return self

    def look(self) -> None:
        """After an event: most have happened to one process."""
        for process in self.turns:
            if process.is_alive:
                self.judge.look(process, self.processes)
        self.turns.clear()
        if self.doomed:
            self.kill()

    def settle(self) -> None:
        self.judge.settled(table_among(self.store.nodes), self.processes, self.wishes.drains)

    def calm(self) -> None:
        self.log("calm")
        self.faulty = False
        self.doomed.clear()
        for process in self.processes:
            process.cut_until = process.stuck_until = self.now
        for name in self.names:  # the one of two processes that lost its id is not replaced by itself
            self.after(0.0, partial(self.start, name))
