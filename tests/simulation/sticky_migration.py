"""The migration of a store between peers and exclusive ownership, under the faults of ``sticky_world``.

An operator goes through the stages, forward and back, as fast as the checks let it. By the peer rule each process works
out its share from the members that it believes in, which it is often wrong about.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

from ringcast._protocol.sticky.leader import View
from ringcast._protocol.sticky.migration import Guard, said_guarded
from ringcast._protocol.sticky.ownership import OwnedState
from ringcast._protocol.sticky.plan import Wishes
from ringcast_wire import Stage, names, next_stages
from ringcast_wire.migrating import Step, may_end, may_finish, possible_members, unguarded
from ringcast_wire.owner_records import Rule

from tests.simulation.sticky_judge import Call, Violation
from tests.simulation.sticky_machines import KEY, PARTITIONS, gone_among, state_of, states_among, table_among
from tests.simulation.sticky_process import Process, ProcessWorld
from tests.simulation.sticky_world import World

_STEP_S: Final = 4.0
"""How often the operator looks whether the next step can be taken."""
_HEAR_S: Final = 1.0
"""How often a process reads which step there is."""
_THERE_AND_BACK: Final = (Stage.SHADOW, Stage.VALIDATE, Stage.SHADOW, Stage.VALIDATE, Stage.SWITCH)


class MigratingProcess(Process):
    """A worker that serves by the peer rule, unguarded until it hears of ``VALIDATE`` or where it starts later."""

    world: MigratingWorld

    def __init__(self, world: ProcessWorld, worker_id: str, incarnation: int) -> None:
        super().__init__(world, worker_id, incarnation)
        self.guard: Guard | None = None
        """``None`` until it is registered and has then read which step there is: no call starts before that."""
        self.believed: list[str] = []
        self.hear_at = -1e9
        self.is_leaving = False

    def tick(self) -> None:
        if self.is_alive and not self.paused:
            self.world.turns.append(self)
            if self.now >= self.hear_at:
                self.hear_at = self.now + _HEAR_S
                self.believe()
                is_registered = self.guard is not None and self.worker_id in self.world.members
                self.ask("step", self.world.read_step if is_registered else self.register, self.takes)
            if self.takes_no_part:
                self.world.after(0.2, self.tick)
                self.call()
                return
        super().tick()

    @property
    def takes_no_part(self) -> bool:
        return self.guard is None or (self.guard.step.stage is Stage.OFF and not self.guard.is_on)

    @property
    def has_no_fence(self) -> bool:
        """Whether nothing stops it while it is halted or cut off; one that has not begun may begin like that."""
        return self.guard is None or not self.guard.is_on

    @property
    def may_have_no_fence(self) -> bool:
        """Whether that is so, or the process has said that it starts calls which need none: it may be let go by that,
        whenever it goes on."""
        own = self.world.store.nodes.get(names.state_key(KEY, self.worker_id))
        said = state_of(own[1]) if own is not None else None
        return self.has_no_fence or said_guarded(said, self.ownership.session) == 0

    def register(self) -> Step | None:
        """The step that there is once the process is registered, not one that was there before; or it is lost."""
        if self.world.step.stage is not Stage.FINISH:  # else it starts with exclusive ownership, which has no members
            self.world.members.add(self.worker_id)
            self.world.left.discard(self.worker_id)
        return None if self.world.faulty and self.world.draw.random() < 0.1 else self.world.step

    def takes(self, step: Step | None) -> None:
        if step is None:
            if self.guard is not None or self.world.machines.waits_for_step:
                return
            step = self.world.past[0]
        if self.guard is None:
            self.guard = self.world.machines.guard(step)
        self.guard.heard(step)
        self.follow()

    def believe(self) -> None:
        """Believes in some of the members: in all of them once there are no faults."""
        world = self.world
        found = {name for name in sorted(world.members) if not world.faulty or world.draw.random() < 0.9}
        self.believed = sorted((found - {self.worker_id}) | ({self.worker_id} if not self.is_leaving else set()))
        self.ownership.share(self.share(), self.now)

    def share(self) -> frozenset[int]:
        return frozenset(number for number, name in enumerate(self.shares()) if name == self.worker_id)

    def shares(self) -> tuple[str | None, ...]:
        """The peer rule: a worker for each partition."""
        if not self.believed:
            return (None,) * PARTITIONS
        return tuple(self.believed[(5 * number + 3) % len(self.believed)] for number in range(PARTITIONS))

    def follow(self) -> None:
        """Whether it is guarded follows the step, and the table that it acts by."""
        if self.guard is not None:
            self.guard.saw(self.ownership.table, self.said_guarded())
            self.guard.strays_ended()  # within a call's bound here, which is less than the operator waits
            self.is_guarded = self.guard.is_on
            self.ownership.guarded = self.guard.number

    def said_guarded(self) -> int | None:
        """What its state in the bucket says, if that is its own."""
        own = self.nodes.get(names.state_key(KEY, self.worker_id))
        said = state_of(own[1]) if own is not None else None
        if not self.world.machines.knows_its_own:
            return said.guarded if said is not None else 0
        self.ownership.poll(self.now)
        return said_guarded(said, self.ownership.session)

    def act(self) -> None:
        self.follow()
        if not self.takes_no_part:
            super().act()

    def view(self) -> View:
        assert self.guard is not None
        step = self.guard.step
        return replace(super().view(), rule=step.rule, step=step.number, shares=self.shares())

    def call(self) -> None:
        if self.guard is None:
            return
        self.follow()
        if self.guard.is_on:
            super().call()
        elif share := sorted(self.share()):
            number = self.world.draw.choice(share)
            self.run(Call(self, number, 0, is_peers=True, is_guarded=False))

    def end(self, call: Call) -> None:
        if call.is_guarded:
            super().end(call)
        elif call in self.open_calls:
            self.open_calls.remove(call)
            self.world.judge.ends(call)


@dataclass
class MigratingWorld(World):
    """One run of one seed."""

    process_type: ClassVar[type[Process]] = MigratingProcess
    processes: list[MigratingProcess] = field(init=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.step = Step(Stage.OFF, 0)
        self.past = [self.step]
        self.left: set[str] = set()
        """Workers whose registration their agent has deleted, of which it has not seen the end."""
        self.members: set[str] = set()
        """Registered workers: one that is killed stays until it is started again, and leaves."""
        self.final = self.draw.choice((Stage.SHADOW, Stage.VALIDATE, Stage.SWITCH))
        if self.final is Stage.SWITCH and self.seed % 2:
            self.final = Stage.FINISH
        self.taken: dict[Stage, int] = dict.fromkeys(Stage, 0)
        self.after(self.draw.uniform(3.0, 8.0), self.operate)
        if self.draw.random() < 0.5:
            self.after(self.draw.uniform(1.0, 3.0), self.halt_one)

    def halt_one(self) -> None:
        """A process is halted before the migration begins, and for most of it; its agent gives it up for silence."""
        able = [one for one in self.processes if one.guard is not None and not (one.paused or one.open_calls)]
        if able:
            process = self.draw.choice(able)
            process.paused = True
            process.host.loses(process)
            self.give_up(process)
            self.after(self.draw.uniform(12.0, 30.0), process.resume)

    def give_up(self, process: Process) -> None:
        """The agent of a process deletes its registration, and has not seen its end."""
        self.members.discard(process.worker_id)
        self.left.add(process.worker_id)
        self.log(f"unheard {process}")

    def calm(self) -> None:
        super().calm()
        self.wishes = Wishes()  # or nobody may take anything, and there is no table to finish with

    def start(self, worker_id: str) -> None:
        """No process starts under the id of one that has no fence, or may have none soon, as it has said that it has
        calls which need none: the operator has to see to that."""
        if any(one.worker_id == worker_id and one.may_have_no_fence for one in self.processes):
            self.after(1.0, partial(self.start, worker_id))
        else:
            super().start(worker_id)

    def read_step(self) -> Step:
        """What a process reads may be out of date."""
        return self.draw.choice(self.past[-3:]) if self.faulty and self.draw.random() < 0.2 else self.step

    def operate(self) -> None:
        """Takes a step, if one may be taken."""
        self.after(self.draw.uniform(0.5, 1.5) * _STEP_S, self.operate)
        if not self.faulty:
            running = {one.worker_id for one in self.processes}
            self.members &= running  # for the others a day has passed
            self.left &= running
            for name, state in states_among(self.store.nodes).items():
                if name not in running and not state.guarded:
                    self.store.lose(names.state_key(KEY, name))
        able = [stage for stage in sorted(next_stages(self.step.stage)) if self.may_go_to(stage)]
        if not self.faulty:
            able = [] if self.step.stage is self.final else [stage for stage in able if stage is self.towards_final()]
        likely = 1.0 if not self.faulty else 0.3 if self.step.stage is Stage.SWITCH else 0.8
        if able and self.draw.random() < likely:
            self.take_step(self.draw.choice([*able, max(able), max(able)]))

    def take_step(self, stage: Stage) -> None:
        self.step = Step(stage, self.step.number + 1, is_back=stage is Stage.SHADOW < self.step.stage)
        self.past.append(self.step)
        self.taken[self.step.stage] += 1
        self.log(f"step {self.step.number}: {self.step.stage.name}")

    def may_go_to(self, stage: Stage) -> bool:
        states = states_among(self.store.nodes)
        registered = self.members | (self.left if self.machines.counts_left else set())
        counted = possible_members(registered, states, gone_among(self.store.nodes, states))
        if stage is Stage.FINISH:
            return self.final is stage and may_finish(self.step, self.members, table_among(self.store.nodes))
        if stage is Stage.SWITCH and self.machines.is_validated:
            return not unguarded(self.step, counted, states)
        return stage is not Stage.OFF or may_end(self.step, counted, states, table_among(self.store.nodes))

    def towards_final(self) -> Stage:
        is_before = self.step.stage < self.final
        return Stage(self.step.stage + 1) if is_before else Stage.SHADOW

    def stop(self, process: Process) -> None:
        super().stop(process)
        if self.draw.random() < 0.8:  # else its agent has not seen its end, and another process of its id has to start
            self.left.discard(process.worker_id)

    def leaves(self, process: Process) -> None:
        """A worker that is not guarded says that it starts no call any more, or others would wait for it."""
        if not process.ownership.record.guarded:
            process.ownership.close()
            return
        super().leaves(process)
        self.members.discard(process.worker_id)
        self.left.discard(process.worker_id)

    def fault(self) -> None:
        super().fault()
        if self.faulty and self.processes and self.draw.random() < 0.15:
            process = self.draw.choice(self.processes)
            self.cut(process, self.draw.uniform(15.0, 40.0))  # it misses steps
        for process in self.processes:
            hears_nothing = process.paused or self.now < process.cut_until
            if self.faulty and hears_nothing and process.worker_id in self.members and self.draw.random() < 0.3:
                self.give_up(process)
            if process.ownership.record.leaving and not process.is_leaving:
                process.is_leaving = True
                self.turns.append(process)
                process.believe()

    def stop_soon_for_another(self, process: Process) -> None:
        """The halted one is back steps later, hears of some of them, and may be cut off already."""
        if process.open_calls or (isinstance(process, MigratingProcess) and process.has_no_fence):
            return
        process.paused = True
        process.host.loses(process)
        self.after(0.1, partial(self.start, process.worker_id))
        back_s = self.draw.choice((12.0, 40.0)) * self.draw.random()
        self.after(back_s, process.resume)
        if self.draw.random() < 0.7:
            cut_s = back_s * self.draw.random()
            self.after(cut_s, partial(self.cut, process, back_s - cut_s + self.draw.uniform(15.0, 60.0)))

    def cut(self, process: Process, for_s: float) -> None:
        """The process hears nothing, and is not heard."""
        if not self.faulty:
            return
        process.cut_until = self.now + for_s
        self.log(f"cut {process} until {process.cut_until:.1f}")

    def settle(self) -> None:
        """The last step has come to its end."""
        table = table_among(self.store.nodes)
        if self.step.stage is not self.final:
            raise Violation(f"the operator could not get to {self.final.name}: {self.step}")
        if self.final >= Stage.SWITCH:
            if table is not None and table.rule is not Rule.OWNERS:
                raise Violation(f"the table has the rule {table.rule}")
            super().settle()
            return
        if table is None or table.rule is not Rule.PEERS:
            raise Violation(f"there is no table of peers: {table}")
        for process in self.processes:
            if process.ownership.session not in table.peers:
                raise Violation(f"{process} is not among the peers: {table.peers}")
            if process.is_guarded is not (self.final is Stage.VALIDATE):
                raise Violation(f"{process} is guarded: {process.is_guarded}")
            states = {process.ownership.state_of(number) for number in process.share()}
            if not states <= {OwnedState.ACTIVE}:
                raise Violation(f"{process} has {states} of its share")


@dataclass
class DeclaringWorld(MigratingWorld):
    """The operator says of dead workers that they are gone, in place of waiting for them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.declared = 0
        """How often it did."""

    def operate(self) -> None:
        running = {one.worker_id for one in self.processes}
        for name in sorted((self.members | self.left | states_among(self.store.nodes).keys()) - running):
            self.members.discard(name)
            self.left.discard(name)
            self.store.lose(names.state_key(KEY, name))
            self.declared += 1
            self.log(f"{name} is said to be gone")
        super().operate()


@dataclass
class SuccessorWorld(MigratingWorld):
    """While a guarded worker is halted, another process of its id is let go by a step back. That one is then cut off,
    and the server loses its lease: the first one goes on and has the lease again. There are no other faults."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.final = Stage.SWITCH
        self.first: MigratingProcess | None = None

    def halt_one(self) -> None:
        """None but the one that is succeeded."""

    def fault(self) -> None:
        """None but what becomes of the two."""

    @property
    def later(self) -> MigratingProcess | None:
        """The other process of the id, as long as it lives."""
        first = self.first
        if first is None:
            return None
        return next((one for one in self.processes if one.worker_id == first.worker_id and one is not first), None)

    def operate(self) -> None:
        self.after(self.draw.uniform(1.0, 2.0), self.operate)
        if self.step.number == len(_THERE_AND_BACK):
            return
        stage = _THERE_AND_BACK[self.step.number]
        if self.may_go_to(stage) and (self.step.number not in (2, 3) or self.may_go_on()):
            self.take_step(stage)

    def may_go_on(self) -> bool:
        """At the first ``VALIDATE``, once the later process is guarded; back from there, once it is let go."""
        later = self.later
        if self.first is None:
            self.succeed()
        elif later is not None and self.said(later) and self.step.stage is Stage.VALIDATE:
            return True
        elif later is not None and later.guard is not None and not later.guard.is_on:
            self.cut(later, 60.0)
            self.store.drop_lease(later.worker_id, self.now)
            self.after(self.draw.uniform(0.0, 3.0), self.first.resume)
            return True
        return False

    def succeed(self) -> None:
        """Halts a worker that is guarded, and starts another process of its id."""
        able = [each for each in self.processes if self.said(each) and not each.open_calls]
        if able:
            self.first = self.draw.choice(able)
            self.first.paused = True
            self.first.host.loses(self.first)
            self.store.drop_lease(self.first.worker_id, self.now)
            self.after(0.1, partial(self.start, self.first.worker_id))

    def said(self, process: Process) -> int | None:
        """Since which step a process is guarded, as the bucket has it."""
        state = states_among(self.store.nodes).get(process.worker_id)
        return said_guarded(state, process.ownership.session)
