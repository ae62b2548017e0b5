"""What a round of reports proves: random schedules of a small fleet, against what its processes have really done.

More of them than the tests run: ``.venv/bin/python services/config-service/tests/test_proof_schedules.py 10000``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import random
import sys
import types
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from ringcast_config_service.releases import proof
from ringcast_config_service.releases.proof import Fleet, ProofTarget, Registration, Verdict, judge
from ringcast_wire import WIRE_VERSION, names, reports, split_chunks
from ringcast_wire._reports import asking

SCHEDULES: Final = 6_000
"""So many in each run of the tests, which is enough for each broken variant."""
PARTITIONS: Final = 3
IDS: Final = ("a", "b", "c")
HOST: Final = "h.1"
"""The lease of the workers of a host, which its agent keeps, but for stores of exclusive ownership."""
REFUSED: Final = {f"row{number}": 7 for number in range(PARTITIONS)}
ANSWER: Final = partial(reports.WorkerReport, WIRE_VERSION)


@dataclass(eq=False)
class Process:
    """One process of a worker, as it really is."""

    worker_id: str
    incarnation: str
    history: str
    assignment: str = ""
    runs: bool = True
    hears: bool = True
    is_old: bool = False  # a build that does not say what it refused
    counts: bool = True  # it says how many rows it has given up
    withdrawn: bool = False
    """It is to let go of its partitions, and goes by no assignment."""
    refusing: bool = False
    """The record has gone back within its history: the process does not take what there is now."""
    applied: dict[int, int] = field(default_factory=dict)
    loading: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    """Partitions whose row of the release the handler has refused."""
    forgot: bool = False
    misnamed: bool = False
    """It has never been registered, and answers by a name that no worker may have."""
    earlier: reports.WorkerReport | None = None
    """What it answered in a round before."""


class Answer(NamedTuple):
    """What a process really was when it answered."""

    process: Process
    assignment: str
    owned: frozenset[int]
    lacking: frozenset[int]


class Case(NamedTuple):
    """One round: what is to be judged, and what is not so although a certificate would say it."""

    target: ProofTarget
    before: Fleet
    found: reports.ReportRound
    after: Fleet
    everybody: bool
    untrue: list[str]

    def judged(self, by: Callable[..., Verdict] = judge) -> Verdict:
        return by(self.target, self.before, self.found, self.after, REFUSED, everybody=self.everybody)


class World:
    """A few workers, three partitions, and a release that has just been published."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        kind = self.random.random()
        self.exclusive, self.everybody = kind < 0.4, kind > 0.85
        self.on_host = {worker_id for worker_id in IDS if not self.exclusive and self.random.random() < 0.25}
        self.history, self.heads = "h1", dict.fromkeys(range(PARTITIONS), 5)
        self.processes: list[Process] = []
        self.records: dict[str, Registration] = {}
        self.registered: dict[int, Process] = {}
        """By the mark of the record."""
        self.leases: dict[str, str] = {HOST: "agent1"}
        self.unreadable = {self.random.choice(IDS)} if self.random.random() < 0.04 else set()
        """Workers whose record a newer build has written, and leases of that kind."""
        self.tables: list[tuple[str, ...]] = [("",) * PARTITIONS]
        self.marks = self.born = 0
        for worker_id in IDS[: self.random.choice((1, 2, 2, 3))]:
            self.start(worker_id)
        self.plan()
        for process in self.processes:
            self.learn(process)
            for number in list(process.loading):
                self.load(process, number)
        # The release: revisions 6 and 7 of each partition.
        self.heads = {number: head + 2 for number, head in self.heads.items()}
        self.ranges = dict.fromkeys(range(PARTITIONS), (6, 7))
        for _ in range(self.random.randrange(12)):
            self.happen()
        if self.random.random() < 0.8:
            self.settle()
        while self.random.random() < 0.3:
            self.happen()

    # ---- what may happen

    def happen(self) -> None:
        """Something happens."""
        process = self.random.choice(self.processes) if self.processes else None
        what = self.random.random()
        if process is None or what < 0.06:
            self.start(self.random.choice(IDS))
        elif what < 0.10:
            self.stop(process)
        elif what < 0.16:  # it is killed, or cut off: its lease ends sooner or later
            process.hears, process.runs = False, self.random.random() < 0.5
        elif what < 0.20:
            process.hears = process.hears or process.runs
        elif what < 0.30:
            self.expire(self.random.choice(IDS))
        elif what < 0.36:
            self.grant_again(process)
        elif what < 0.44:
            self.plan()
        elif what < 0.46:
            self.restore()
        elif what < 0.48:
            process.refusing, process.withdrawn = bool(process.applied) and what < 0.47, what > 0.47
        elif what < 0.49:
            self.unreadable.add(self.random.choice((process.worker_id, self.lease_of(process.worker_id))))
        elif what < 0.65:
            self.learn(process)
        else:
            self.work(process)

    def settle(self) -> None:
        """Most of what is due is done."""
        self.plan()
        for process in self.processes:
            if self.random.random() < 0.95:
                self.learn(process)
                for _ in range(12):
                    self.work(process)
            process.earlier = self.answer(process, "0" * 16)[1]

    def start(self, worker_id: str) -> None:
        """A process begins: its lease first, then its record. The one before may still run."""
        self.born += 1
        process = Process(worker_id, f"i{self.born}", self.history, is_old=self.random.random() < 0.03)
        process.hears = self.random.random() < 0.9  # else a moment later
        process.counts = self.random.random() < 0.5
        self.processes.append(process)
        process.misnamed = self.everybody and self.random.random() < 0.06
        if not process.misnamed:
            self.grant(process)
            if self.random.random() < 0.8:
                self.register(process)

    def grant(self, process: Process) -> None:
        lease = self.lease_of(process.worker_id)
        if lease != HOST:
            self.leases[lease] = process.incarnation
        elif lease not in self.leases:  # the agent starts again
            self.born += 1
            self.leases[lease] = f"agent{self.born}"

    def register(self, process: Process) -> None:
        self.marks += 1
        self.registered[self.marks] = process
        lease = self.lease_of(process.worker_id)
        self.records[process.worker_id] = Registration(lease, self.marks, process.incarnation)

    def stop(self, process: Process) -> None:
        """It leaves in good order."""
        self.processes.remove(process)
        if self.is_registered(process):
            del self.records[process.worker_id]
        if self.leases.get(process.worker_id) == process.incarnation:
            del self.leases[process.worker_id]

    def expire(self, worker_id: str) -> None:
        lease = self.lease_of(worker_id)
        holder = next((each for each in self.processes if each.incarnation == self.leases.get(lease)), None)
        if (lease != HOST and (holder is None or not holder.hears)) or self.random.random() < 0.1:
            self.leases.pop(lease, None)

    def grant_again(self, process: Process) -> None:
        """It has lost its lease, and gets it again; it writes its record once more a little later, if at all."""
        if (
            not process.misnamed
            and process.hears
            and process.runs
            and self.lease_of(process.worker_id) not in self.leases
        ):
            self.grant(process)
            if not self.is_registered(process) or self.random.random() < 0.4:
                self.register(process)

    def plan(self) -> None:
        """The leader writes a table, in a store that has one: it names processes, and may give them other shares."""
        if self.exclusive and (members := self.members()):
            owners = self.owners(members)[:: self.random.choice((1, 1, -1))]
            self.tables.append(tuple(self.records[worker_id].incarnation for worker_id in owners))

    def restore(self) -> None:
        """The database goes back to an earlier state, from before the release, which is published again."""
        self.history = f"h{int(self.history[1:]) + 1}"

    def learn(self, process: Process) -> None:
        """It takes up the assignment that there is now."""
        if not (process.runs and process.hears):
            return
        if process.history != self.history:
            process.history, process.applied, process.refusing = self.history, {}, False
        process.withdrawn = False
        owners = self.tables[-1] if self.exclusive else self.owners(self.members())
        process.assignment = f"epoch {len(self.tables) - 1}" if self.exclusive else "/".join(owners)
        name = process.incarnation if self.exclusive else process.worker_id
        owned = {number for number, owner in enumerate(owners) if owner == name}
        if self.everybody:
            process.assignment, owned = "", {number for number in range(PARTITIONS) if self.random.random() < 0.98}
        if self.exclusive or self.random.random() < 0.8:  # else it lets go of the others a little later
            for number in process.applied.keys() - owned:
                del process.applied[number]
        process.loading &= process.applied.keys()
        process.refused &= process.applied.keys()
        for number in owned - process.applied.keys():
            process.applied[number] = 0
            process.loading.add(number)

    def work(self, process: Process) -> None:
        if not (process.runs and process.hears and process.applied):
            return
        number = self.random.choice(sorted(process.applied))
        if number in process.loading:
            self.load(process, number)
        elif process.applied[number] < self.heads[number]:
            process.applied[number] += 1
            if self.random.random() < 0.02:
                process.refused.add(number)
                process.forgot = self.random.random() < 0.3

    def load(self, process: Process, number: int) -> None:
        """The rows are there at once, and handed over a little later."""
        process.applied[number] = self.heads[number]
        if self.random.random() < 0.9:
            process.loading.discard(number)

    # ---- what can be seen of it

    def lease_of(self, worker_id: str) -> str:
        return HOST if worker_id in self.on_host else worker_id

    def is_registered(self, process: Process) -> bool:
        record = self.records.get(process.worker_id)
        return record is not None and self.registered[record.mark] is process

    def members(self) -> list[str]:
        return sorted(worker_id for worker_id in self.records if self.lease_of(worker_id) in self.leases)

    def owners(self, members: list[str]) -> tuple[str, ...]:
        if not members:
            return ("",) * PARTITIONS
        return tuple(members[(number + len(members)) % len(members)] for number in range(PARTITIONS))

    def fleet(self) -> Fleet:
        """As the service reads it."""
        records = {name: each for name, each in self.records.items() if name not in self.unreadable}
        leases = {lease: holder for lease, holder in self.leases.items() if lease not in self.unreadable}
        if self.exclusive:  # a state does not say its process; the session does
            records = {name: each._replace(incarnation=leases.get(name, "")) for name, each in records.items()}
        unreadable = (self.records.keys() | self.leases.keys()) & self.unreadable
        return Fleet(records, leases, tuple(sorted(unreadable)), len(self.tables) - 1 if self.exclusive else 0)

    def alive(self) -> set[Process]:
        """The processes that are registered, and whose lease it is."""
        holders = {*self.leases.values(), *self.leases}
        here = [each for each in self.processes if self.is_registered(each)]
        return {each for each in here if (HOST if each.worker_id in self.on_host else each.incarnation) in holders}

    def answer(self, process: Process, round_id: str) -> tuple[Answer, reports.WorkerReport]:
        """What it is, and what it says."""
        owned = sorted(process.applied)
        behind = {number for number in owned if process.applied[number] < 7} | process.loading | process.refused
        lacks_all = process.refusing or process.history != self.history
        named = [reports.Refusal(n, f"row{n}", 7, reports.RowFailure.DROPPED) for n in sorted(process.refused)]
        assignment = "" if process.withdrawn else process.assignment
        said: dict[str, Any] = {
            "loading": len(process.loading),
            "refused": "too many rows are gone" if process.refusing else "",
            "refusals": None if process.is_old else [] if process.forgot else named,
            "unnamed_refusals": len(named) if process.forgot else 0,
            "given_up": len(named) if process.counts else 0,
        }
        applied = [process.applied[number] for number in owned]
        place = (assignment, process.history, reports.spans_of(owned), applied)
        report = ANSWER(round_id, process.incarnation, "1", 0, reports.WorkerKind.APPLICATION, *place, **said)
        return Answer(process, assignment, frozenset(owned), frozenset(owned if lacks_all else behind)), report

    async def round(self, asker: type[reports.ReportAsker] = reports.ReportAsker) -> Case:
        """One round, while things happen."""
        before, alive, table = self.fleet(), self.alive(), len(self.tables) - 1
        bus = Bus(self, before.living)
        found = await asker(bus).ask("s", "k", [*before.living], timeout_s=0.0)
        self.pass_by()
        target = ProofTarget("k", self.history, self.ranges)
        untrue = [*self._untrue(alive, bus.answers, table)]
        return Case(target, before, found, self.fleet(), self.everybody, untrue)

    def pass_by(self) -> None:
        while self.random.random() < 0.12:
            self.happen()

    def _untrue(self, alive: set[Process], answers: dict[Process, Answer], table: int) -> Iterator[str]:
        """What the theorem says and is not so."""
        if not alive:
            yield "nobody takes part"
        if alive != self.alive():
            yield "other processes work at the end than at the beginning"
        if missing := [each.incarnation for each in alive if each not in answers]:
            yield f"{missing} work and have not answered"
        given = [answers[each] for each in answers if each in alive]
        for each in answers.values():
            if each.process not in alive and each.owned:
                yield f"{each.process.incarnation} has partitions, and takes no part"
        for each in given:
            if each.lacking:
                yield f"{each.process.incarnation} lacks {sorted(each.lacking)}"
            if self.everybody and len(each.owned) < PARTITIONS:
                yield f"{each.process.incarnation} has {sorted(each.owned)} only"
        if self.everybody:
            return
        if len({each.assignment for each in given}) > 1 or any(not each.assignment for each in given):
            yield "they do not go by one assignment"
        owners = tuple("".join(each.process.incarnation for each in given if n in each.owned) for n in self.ranges)
        if any(sum(number in each.owned for each in given) != 1 for number in self.ranges):
            yield f"partitions have other than one owner: {owners}"
        elif self.exclusive and owners not in self.tables[table:]:
            yield f"{owners} own them by no table that there was in this round"


class Bus:
    """Carries the question, and the answers of the processes of a world, while things happen there."""

    def __init__(self, world: World, expected: Collection[str]) -> None:
        self._world = world
        self._expected = set(expected)
        self._take: Any = None
        self.answers: dict[Process, Answer] = {}
        """Of the processes whose answer has come whole while the round was under way."""

    async def subscribe(self, _subject: str, *, cb: Any) -> Bus:
        self._take = cb
        return self

    async def unsubscribe(self) -> None:
        pass

    async def publish(self, _subject: str, payload: bytes) -> None:
        world, round_id = self._world, reports.decode_report_request(payload).round_id
        order = list(world.processes)
        world.random.shuffle(order)
        for process in order:
            world.pass_by()
            if not (process.runs and process.hears and process in world.processes):
                continue
            answer, report = world.answer(process, round_id)
            body, fate = reports.encode_report(report), world.random.random()
            if fate < 0.02:  # it is lost
                continue
            if fate < 0.04:  # what another build means by it can't be read
                body = body[:-1]
            elif fate < 0.05 and process.earlier is not None:
                body = reports.encode_report(process.earlier)
            else:
                self.answers[process] = answer
            subject = names.reported_subject("s", "k", process.worker_id, round_id)
            if process.misnamed:
                subject = subject.replace(f".{process.worker_id}.", ".a b.")
            for chunk in split_chunks(body, 65_536):
                headers = {names.HEADER_CHUNK: chunk.header}
                await self._take(types.SimpleNamespace(subject=subject, data=chunk.data, headers=headers))
            self._expected.discard("" if process.misnamed else process.worker_id)
            if not self._expected and world.random.random() < 0.5:
                break  # all have answered: the round is over before the others do


# ---- each condition broken


class Broken(NamedTuple):
    """One condition of a certificate that does not hold any more, and what is left of the module that has it."""

    what: str
    module: Any


def without_sentences() -> Iterator[Broken]:
    """For each sentence that refuses a certificate ``proof`` without it."""
    for index in range(len(_sentences(ast.parse(inspect.getsource(proof))))):
        tree = ast.parse(inspect.getsource(proof))
        sentence = _sentences(tree)[index]
        what = ast.unparse(sentence)
        sentence.value = ast.Constant(None)
        yield _built(proof, tree, what)


def _sentences(tree: ast.Module) -> list[ast.Expr]:
    """The statements that yield why there is no certificate."""
    return [each for each in ast.walk(tree) if isinstance(each, ast.Expr) and isinstance(each.value, ast.Yield)]


COMPARED: Final = {
    # What a sentence goes by, read less strictly.
    "before.workers.get(name) != after.workers.get(name)": "(name in before.workers) != (name in after.workers)",
    "applied < target.ranges[number][1]": "applied < target.ranges[number][0]",
}
TAKEN: Final = {
    # Which messages of a round count, and whether the others are counted.
    "worker_id in self.reports or worker_id in self.unreadable": "False",
    "report.round_id != self.id": "False",
    "except ProtocolError:\n            self.left_out += 1": "except ProtocolError:\n            pass",
    "len(message.data)):\n            self.left_out += 1": "len(message.data)):\n            pass",
}


def replaced(module: types.ModuleType, texts: dict[str, str]) -> Iterator[Broken]:
    """For each text the module with another one in its place."""
    for old, new in texts.items():
        source = ast.unparse(ast.parse(inspect.getsource(module)))
        assert source.count(old) == 1, f"{module.__name__} has no {old!r} any more: say here what has come in its place"
        yield _built(module, ast.parse(source.replace(old, new)), old)


def _built(module: types.ModuleType, tree: ast.Module, what: str) -> Broken:
    made = types.ModuleType(module.__name__)
    exec(compile(ast.fix_missing_locations(tree), f"<{what}>", "exec"), made.__dict__)
    return Broken(what, made)


async def find(first: int, count: int) -> tuple[int, dict[str, int | None]]:
    """Runs so many schedules: how many were certified, and for each broken condition the first falsely certified one.

    Fails where one was falsely certified with no condition broken.
    """
    seeds = range(first, first + count)
    rounds = {seed: await World(seed).round() for seed in seeds}
    proven = {seed for seed, case in rounds.items() if case.judged().certificate is not None}
    assert not (false := [(seed, rounds[seed].untrue) for seed in proven if rounds[seed].untrue]), false
    lied = {seed: case for seed, case in rounds.items() if case.untrue}

    def by(judged: Callable[[Case], Verdict]) -> int | None:
        return next((seed for seed, case in lied.items() if judged(case).certificate is not None), None)

    async def asked(asker: type[reports.ReportAsker]) -> int | None:
        for seed in lied:
            case = await World(seed).round(asker)
            if case.untrue and case.judged().certificate is not None:
                return seed
        return None

    found = {
        "the second reading": by(lambda case: case._replace(after=case.before).judged()),
        "a reading before the question": by(lambda case: case._replace(before=case.after).judged()),
    }
    for what, module in (*without_sentences(), *replaced(proof, COMPARED)):
        found[what] = by(lambda case, module=module: case.judged(module.judge))  # type: ignore[misc]
    for what, module in replaced(asking, TAKEN):
        found[what] = await asked(module.ReportAsker)
    return len(proven), found


async def test_no_schedule_gives_a_false_certificate_and_without_each_condition_some_do() -> None:
    proven, found = await find(0, SCHEDULES)
    assert proven > SCHEDULES / 20, "hardly any round proves anything"
    assert len(found) > 30
    assert not [what for what, seed in found.items() if seed is None]


if __name__ == "__main__":
    schedules = int(sys.argv[1]) if len(sys.argv) > 1 else SCHEDULES
    certified, caught = asyncio.run(find(int(sys.argv[2]) if len(sys.argv) > 2 else 0, schedules))
    print(f"{schedules} schedules: {certified} certificates, none is false")
    for condition, seed in caught.items():
        print(f"without {condition}: false in {seed}")
