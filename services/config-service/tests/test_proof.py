"""What a round of reports proves: random schedules of a small fleet, against what its processes have really done."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from ringcast_config_service.proof import MAX_NAMED, Fleet, ProofTarget, Registration, Verdict, judge
from ringcast_wire import WIRE_VERSION
from ringcast_wire.reports import Refusal, ReportRound, RowFailure, WorkerKind, WorkerReport, spans_of

SCHEDULES: Final = 10_000
PARTITIONS: Final = 3
IDS: Final = ("a", "b", "c")

CONDITIONS: Final = {
    "a worker that comes, goes or starts again": r"worker \w has come, gone or started again",
    "a lease that begins or ends": r"the lease of worker \w has begun or ended",
    "a lease of another process": r"the lease of worker \w is another process's by now",
    "a lease of the registered process": r"the lease of worker \w is another process's$",
    "an answer of each": r"worker \w does not answer",
    "an answer of the registered process": r"another process than the registered one",
    "partitions of one that is not registered": r"worker \w has partitions and is not registered",
    "answers that come twice": r"\d+ answers came twice",
    "an assignment": r"worker \w knows of no assignment",
    "one assignment": r"workers \w and \w share",
    "the table that there is": r"the workers do not go by the table",
    "one history": r"worker \w has another history",
    "all rows loaded": r"worker \w still loads",
    "everything applied": r"worker \w has applied partition",
    "an owner": r"no worker owns|no worker is registered",
    "one owner": r"more than one worker owns",
    "every row taken": r"row '\w+' was dropped",
    "a build that says what it refused": r"worker \w is of an older build",
    "every refusal named": r"worker \w may have refused",
}
"""What each condition says when it does not hold."""
NEEDED: Final = set(CONDITIONS) - {
    # A lock beside another one: what each of them keeps off, the others keep off too in this model.
    "partitions of one that is not registered",
    "answers that come twice",
    "an assignment",
    "one owner",
    "the table that there is",
}


@dataclass(eq=False)
class Process:
    """One process of a worker, as it really is."""

    worker_id: str
    incarnation: str
    history: str
    assignment: str = ""
    runs: bool = True
    hears: bool = True
    is_old: bool = False
    """A build that does not say what it refused."""
    applied: dict[int, int] = field(default_factory=dict)
    loading: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    """Partitions whose row of the release the handler has refused."""
    forgot: bool = False


@dataclass(frozen=True)
class Answer:
    """What a process really was when it answered."""

    process: Process
    assignment: str
    owned: frozenset[int]
    lacking: frozenset[int]


class World:
    """Three workers, three partitions, and a release that has just been published."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.exclusive = self.random.random() < 0.4
        self.history, self.heads = "h1", dict.fromkeys(range(PARTITIONS), 5)
        self.processes: list[Process] = []
        self.records: dict[str, Registration] = {}
        self.leases: dict[str, str] = {}
        self.table: tuple[int, tuple[str, ...]] = (0, ())
        self.marks = self.born = 0
        for worker_id in IDS[: self.random.choice((2, 2, 3))]:
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
            process.hears = False
            process.runs = self.random.random() < 0.5
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
        elif what < 0.64:
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

    def start(self, worker_id: str) -> None:
        """A process begins: its lease first, then its record. The one before may still run."""
        self.born += 1
        process = Process(worker_id, f"i{self.born}", self.history, is_old=self.random.random() < 0.03)
        process.hears = self.random.random() < 0.9  # else a moment later
        self.processes.append(process)
        self.leases[worker_id] = process.incarnation
        if self.random.random() < 0.8:
            self.register(process)

    def register(self, process: Process) -> None:
        self.marks += 1
        self.records[process.worker_id] = Registration(process.worker_id, self.marks, process.incarnation)

    def stop(self, process: Process) -> None:
        """It leaves in good order."""
        self.processes.remove(process)
        if self.is_registered(process):
            del self.records[process.worker_id]
        if self.leases.get(process.worker_id) == process.incarnation:
            del self.leases[process.worker_id]

    def expire(self, worker_id: str) -> None:
        holder = next((each for each in self.processes if each.incarnation == self.leases.get(worker_id)), None)
        if holder is None or not holder.hears or self.random.random() < 0.1:
            self.leases.pop(worker_id, None)

    def grant_again(self, process: Process) -> None:
        """It has lost its lease, and gets it again; it writes its record once more a little later, if at all."""
        if process.hears and process.runs and process.worker_id not in self.leases:
            self.leases[process.worker_id] = process.incarnation
            if not self.is_registered(process) or self.random.random() < 0.4:
                self.register(process)

    def plan(self) -> None:
        """The leader writes a table, in a store that has one: it names processes."""
        if self.exclusive and (members := self.members()):
            owners = tuple(self.records[worker_id].incarnation for worker_id in self.owners(members))
            self.table = self.table[0] + 1, owners

    def restore(self) -> None:
        """The database goes back to an earlier state, from before the release, which is published again."""
        self.history = f"h{int(self.history[1:]) + 1}"

    def learn(self, process: Process) -> None:
        """It takes up the assignment that there is now."""
        if not (process.runs and process.hears):
            return
        if process.history != self.history:
            process.history, process.applied = self.history, {}
        epoch, owners = self.table if self.exclusive else (0, self.owners(self.members()))
        process.assignment = f"epoch {epoch}" if self.exclusive else "/".join(owners)
        name = process.incarnation if self.exclusive else process.worker_id
        owned = {number for number, owner in enumerate(owners) if owner == name}
        if process.is_old and not owned:
            process.assignment = process.assignment if self.random.random() < 0.5 else ""
        for number in process.applied.keys() - owned:
            del process.applied[number]
        process.loading &= owned
        process.refused &= owned
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

    def is_registered(self, process: Process) -> bool:
        record = self.records.get(process.worker_id)
        return record is not None and record.incarnation == process.incarnation

    def members(self) -> list[str]:
        return sorted(worker_id for worker_id in self.records if worker_id in self.leases)

    def owners(self, members: list[str]) -> tuple[str, ...]:
        if not members:
            return ("",) * PARTITIONS
        return tuple(members[(number + len(members)) % len(members)] for number in range(PARTITIONS))

    def fleet(self) -> Fleet:
        """As the service reads it."""
        records = dict(self.records)
        if self.exclusive:  # a state does not say its process, the lease does
            records = {name: each._replace(incarnation=self.leases.get(name, "")) for name, each in records.items()}
        return Fleet(records, dict(self.leases), table=self.table[0] if self.exclusive else 0)

    def alive(self) -> set[Process]:
        """The processes that are registered, and whose lease it is."""
        return {each for each in self.processes if self.is_registered(each)} & {
            each for each in self.processes if self.leases.get(each.worker_id) == each.incarnation
        }

    def answer(self, process: Process) -> tuple[Answer, WorkerReport]:
        """What it says, and what it is."""
        owned = sorted(process.applied)
        lacking = {
            number
            for number in owned
            if process.applied[number] < 7
            or number in process.loading | process.refused
            or process.history != self.history
        }
        named = [Refusal(number, f"row{number}", 7, RowFailure.DROPPED) for number in sorted(process.refused)]
        report = WorkerReport(
            WIRE_VERSION,
            "0" * 16,
            process.incarnation,
            "1",
            0,
            WorkerKind.APPLICATION,
            process.assignment,
            process.history,
            spans_of(owned),
            [process.applied[number] for number in owned],
            loading=len(process.loading),
            refusals=None if process.is_old else [] if process.forgot else named,
            unnamed_refusals=len(named) if process.forgot else 0,
        )
        return Answer(process, process.assignment, frozenset(owned), frozenset(lacking)), report

    def round(self) -> tuple[Verdict, list[str]]:
        """One round, while things happen: what is judged, and what is not so although it would be certified."""
        before, alive = self.fleet(), self.alive()
        answers: dict[Process, Answer] = {}
        reports: dict[str, WorkerReport] = {}
        twice = 0
        order = list(self.processes)
        self.random.shuffle(order)
        for process in order:
            self.pass_by()
            if process.runs and process.hears and process in self.processes:
                answers[process], report = self.answer(process)
                twice += process.worker_id in reports
                reports.setdefault(process.worker_id, report)
        self.pass_by()
        silent = tuple(sorted(before.living.keys() - reports.keys()))
        found = ReportRound(reports, silent, {}, twice, 0.0)
        wanted = ProofTarget("k", self.history, self.ranges)
        refused = {f"row{number}": 7 for number in range(PARTITIONS)}
        verdict = judge(wanted, before, found, self.fleet(), refused)
        return verdict, list(self._untrue(alive, answers))

    def pass_by(self) -> None:
        while self.random.random() < 0.12:
            self.happen()

    def _untrue(self, alive: set[Process], answers: dict[Process, Answer]) -> Iterator[str]:
        """What the theorem says and is not so."""
        if alive != self.alive():
            yield "other processes work at the end than at the beginning"
        if missing := [each.incarnation for each in alive if each not in answers]:
            yield f"{missing} work and have not answered"
        given = [answers[each] for each in alive if each in answers]
        if len({each.assignment for each in given}) > 1:
            yield "they go by two assignments"
        owned = Counter(number for each in given for number in each.owned)
        if any(owned[number] != 1 for number in self.ranges):
            yield f"partitions have so many owners: {owned}"
        for each in given:
            if each.lacking:
                yield f"{each.process.incarnation} lacks {sorted(each.lacking)}"


def test_no_schedule_gives_a_false_certificate_and_without_each_condition_some_do() -> None:
    proven, false = 0, Counter[str]()
    for seed in range(SCHEDULES):
        verdict, untrue = World(seed).round()
        if verdict.certificate is not None:
            proven += 1
            assert not untrue, f"seed {seed}: {untrue}"
        elif untrue and not verdict.more:
            for name, pattern in CONDITIONS.items():
                if all(re.match(pattern, lack.sentence) for lack in verdict.lacks):
                    false[name] += 1
    assert proven > SCHEDULES / 20, "hardly any round proves anything"
    assert false.keys() >= NEEDED, sorted(NEEDED - false.keys())


# ---- what the model has not


def fleet(*worker_ids: str, **changes: Any) -> Fleet:
    workers = {name: Registration(name, 1, f"of-{name}") for name in worker_ids}
    return Fleet(**{"workers": workers, "leases": {name: f"of-{name}" for name in worker_ids}, **changes})


def reports(*worker_ids: str, **facts: Any) -> ReportRound:
    made = {
        name: WorkerReport(
            WIRE_VERSION,
            "0" * 16,
            f"of-{name}",
            "1",
            0,
            WorkerKind.APPLICATION,
            **{"assignment": "d", "history": "h", "spans": [0, 2], "applied": [3, 3], "refusals": [], **facts},
        )
        for name in worker_ids
    }
    return ReportRound(made, (), {}, 0, 0.0)


WANTED: Final = ProofTarget("k", "h", {0: (2, 3), 1: (1, 1)})


def test_a_certificate_says_what_each_worker_has_applied() -> None:
    found = judge(WANTED, fleet("a"), reports("a"), fleet("a"), {}).certificate
    assert found is not None
    assert (found.key, found.history, dict(found.partitions())) == ("k", "h", {0: 3, 1: 1})
    assert [(each.worker_id, each.incarnation, each.spans) for each in found.workers] == [("a", "of-a", (0, 2))]


@pytest.mark.parametrize(
    ("before", "found", "after", "why"),
    [
        (Fleet(), reports(), Fleet(), "no worker is registered and alive"),
        (fleet("a"), reports("a", "b"), fleet("a"), "worker b has partitions and is not registered"),
        (
            fleet("a"),
            ReportRound({}, (), {"a": "bad"}, 0, 0.0),
            fleet("a"),
            "the answer of worker a can't be read: bad",
        ),
        (fleet("a"), ReportRound(reports("a").reports, (), {}, 2, 0.0), fleet("a"), "2 answers came twice"),
        (fleet("a", unreadable=("k.b",)), reports("a"), fleet("a"), "what NATS has under k.b can't be read"),
        (fleet("a", table=4), reports("a", assignment="epoch 3"), fleet("a", table=4), "the workers do not go by the"),
        (fleet("a"), reports("a", refused="gone"), fleet("a"), "worker a refuses what the config service has: gone"),
        (fleet("a", "b"), reports("a", "b"), fleet("a", "b"), "more than one worker owns partition 0 and 1 more"),
        (fleet("a"), reports("a", applied=[2, 0]), fleet("a"), "worker a has applied partition 0 up to revision 2 and"),
        (fleet("a"), reports("a", assignment=""), fleet("a"), "worker a knows of no assignment of the partitions yet"),
    ],
)
def test_what_lacks_is_said(before: Fleet, found: ReportRound, after: Fleet, why: str) -> None:
    verdict = judge(WANTED, before, found, after, {})
    assert verdict.certificate is None
    assert any(lack.sentence.startswith(why) for lack in verdict.lacks), verdict.lacks


@pytest.mark.parametrize(("spans", "proves"), [([], True), ([1, 1], False)])
def test_a_worker_without_partitions_needs_no_history(spans: list[int], proves: bool) -> None:
    """Where there are more workers than partitions, some have never held a row."""
    rest = reports("b", history="", spans=spans, applied=[3] * (len(spans) // 2)).reports
    mine = reports("a", spans=[0, 2 - len(spans) // 2], applied=[3] * (2 - len(spans) // 2)).reports
    verdict = judge(WANTED, fleet("a", "b"), ReportRound({**mine, **rest}, (), {}, 0, 0.0), fleet("a", "b"), {})
    assert (verdict.certificate is not None) is proves
    assert [lack.sentence for lack in verdict.lacks] == ([] if proves else ["worker b has another history of the key"])


@pytest.mark.parametrize(
    ("what", "version", "counts"),
    [(RowFailure.BLOCKED, 3, True), (RowFailure.DEAD_LETTERED, 3, True), (RowFailure.DROPPED, 2, False)],
)
def test_a_refused_row_of_the_release_is_named_and_another_write_to_it_does_not_count(
    what: RowFailure, version: int, counts: bool
) -> None:
    found = reports("a", refusals=[Refusal(0, "r", version, what, "ValueError('no')")])
    verdict = judge(WANTED, fleet("a"), found, fleet("a"), {"r": 3})
    assert (verdict.certificate is None) is counts
    assert [(lack.worker_id, lack.row_id) for lack in verdict.lacks] == ([("a", "r")] if counts else [])
    assert all("ValueError('no')" in lack.sentence for lack in verdict.lacks)


@pytest.mark.parametrize(("given_up", "sentences"), [(4, 0), (3, 1), (1, 1), (0, 1)])
def test_rows_that_are_not_named_count_as_refused_once_they_are_given_up(given_up: int, sentences: int) -> None:
    """Of one named and three others; the rest is tried again, or not remembered, so nothing is known of it yet."""
    named = [Refusal(0, "r", 3, RowFailure.DROPPED, "no")]
    found = reports("a", refusals=named, unnamed_refusals=3, given_up=given_up)
    verdict = judge(WANTED, fleet("a"), found, fleet("a"), {"r": 3})
    assert verdict.certificate is None
    assert sum(lack.rows for lack in verdict.given_up) == max(1, given_up)
    unknown = [lack.sentence for lack in verdict.pending]
    assert len(unknown) == sentences
    assert all(re.match(r"worker a may have refused \d more rows?, which it does not name$", each) for each in unknown)
    others = judge(WANTED, fleet("a"), found, fleet("a"), {"r": 2})
    assert sum(lack.rows for lack in others.given_up) == max(0, given_up - 1), "the named one is another's"
    assert others.certificate is None


def test_where_every_worker_has_everything_each_of_them_counts() -> None:
    both = fleet("a", "b")
    assert judge(WANTED, both, reports("a", "b"), both, {}, everybody=True).certificate is not None
    found = {**reports("a").reports, **reports("b", spans=[0, 1], applied=[3]).reports}
    verdict = judge(WANTED, both, ReportRound(found, (), {}, 0, 0.0), both, {}, everybody=True)
    assert [lack.sentence for lack in verdict.lacks] == ["worker b lacks partition 1"]


def test_what_lacks_is_named_up_to_a_number() -> None:
    many = fleet(*(f"w{number}" for number in range(MAX_NAMED + 5)))
    verdict = judge(WANTED, many, reports(), many, {})
    assert len(verdict.lacks) == MAX_NAMED
    assert verdict.more == 6, "25 workers do not answer, and nobody owns a partition"
