"""Whether one round of reports proves that a release is applied. It is decided without NATS and without a database.

A round is: what NATS has of the workers of a key, their answers, and what NATS has of them afterwards.
``docs/releases.md`` has the theorem, and its proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ringcast_wire import CertifiedWorker, KeyCertificate, shown
from ringcast_wire.reports import Refusal, ReportRound, RowFailure, WorkerKind, WorkerReport, spans_of

MAX_NAMED: Final = 20
"""What lacks is named up to so often for each key; the rest is counted."""

_FAILED: Final = {
    RowFailure.RETRYING: "is handed over again",
    RowFailure.DROPPED: "was dropped",
    RowFailure.DEAD_LETTERED: "was dead-lettered",
    RowFailure.SENDING: "is being dead-lettered",
    RowFailure.BLOCKED: "is blocked",
}


class Registration(NamedTuple):
    """How a worker is registered for a key. ``mark`` is another with each registration of another process.

    ``incarnation``: of the process; empty where the registration does not say it.
    """

    lease: str
    mark: int
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What NATS has of the workers of a key at one moment. ``leases``: those that live, with their incarnation.

    ``table``: the number of the table of owners, 0 where the workers compute their owners, or there is none.
    """

    workers: Mapping[str, Registration] = field(default_factory=dict)
    leases: Mapping[str, str] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    """Records that can't be read."""
    table: int = 0

    @property
    def living(self) -> dict[str, Registration]:
        """The registered workers whose lease lives."""
        return {name: worker for name, worker in self.workers.items() if worker.lease in self.leases}


@dataclass(frozen=True, slots=True)
class ProofTarget:
    """What is to be proven of one key: of each partition the first and the last revision that the release gave it."""

    key: str
    history: str
    ranges: Mapping[int, tuple[int, int]]


class Lack(NamedTuple):
    """Why a release is not proven yet. ``worker_id`` and ``row_id`` are empty where it is about none.

    ``rows``: how many rows it is about, where a handler has given rows up.
    """

    key: str
    sentence: str
    worker_id: str = ""
    row_id: str = ""
    rows: int = 1


class Verdict(NamedTuple):
    """Of one key: the certificate, or what lacks, and how much more of that there is.

    ``given_up``: what lacks because a handler has given a row up for good. ``pending``: the first of all the rest.
    """

    certificate: KeyCertificate | None
    lacks: tuple[Lack, ...] = ()
    more: int = 0
    given_up: tuple[Lack, ...] = ()
    pending: tuple[Lack, ...] = ()


def judge(
    target: ProofTarget,
    before: Fleet,
    found: ReportRound,
    after: Fleet,
    refused: Mapping[str, int],
    *,
    everybody: bool = False,
) -> Verdict:
    """What a round proves. ``refused``: the version that the release gave to rows that reports name as refused, by row.

    ``everybody``: every worker is to have every partition (mode FULL).
    """
    refusals = [*_refusals(target, before, found, refused)]
    given_up = tuple(lack for lack, final in refusals if final)
    pending = [
        *incomplete(target.key, before, found, after),
        *(agreement(target.key, before, found) if not everybody else ()),
        *_partitions(target, before, found, everybody=everybody),
        *(lack for lack, final in refusals if not final),
    ]
    if lacks := [*pending, *given_up]:
        more = max(0, len(lacks) - MAX_NAMED)
        return Verdict(None, tuple(lacks[:MAX_NAMED]), more, given_up, tuple(pending[:1]))
    reports = counted(before, found)
    workers = tuple(
        CertifiedWorker(name, report.incarnation, report.kind, tuple(report.spans)) for name, report in reports.items()
    )
    numbers = sorted(target.ranges)
    revisions = tuple(target.ranges[number][1] for number in numbers)
    return Verdict(KeyCertificate(target.key, target.history, tuple(spans_of(numbers)), revisions, workers))


def counted(before: Fleet, found: ReportRound) -> dict[str, WorkerReport]:
    """The answers of the workers that are registered and live."""
    living = before.living
    return {name: found.reports[name] for name in sorted(found.reports) if name in living}


def incomplete(key: str, before: Fleet, found: ReportRound, after: Fleet) -> Iterator[Lack]:
    """Why a round may not have the answer of every worker of a key."""
    yield from _fleet(key, before, after)
    yield from _answers(key, before, found)


def _fleet(key: str, before: Fleet, after: Fleet) -> Iterator[Lack]:
    """The workers have to be the same before and after the round, and all of them known."""
    for name in sorted({*before.unreadable, *after.unreadable}):
        yield Lack(key, f"what NATS has under {name} can't be read")
    living = before.living
    if not living:
        yield Lack(key, "no worker is registered and alive")
    for name in sorted(before.workers.keys() | after.workers.keys()):
        if before.workers.get(name) != after.workers.get(name):
            yield Lack(key, f"worker {name} has come, gone or started again meanwhile", name)
        elif (lease := before.workers[name].lease) in before.leases.keys() ^ after.leases.keys():
            yield Lack(key, f"the lease of worker {name} has begun or ended meanwhile", name)
        elif before.leases.get(lease) != after.leases.get(lease):
            yield Lack(key, f"the lease of worker {name} is another process's by now", name)
    for name, worker in living.items():
        # A host's lease has a second part in its name, and is the agent's.
        if "." not in worker.lease and worker.incarnation not in ("", before.leases[worker.lease]):
            yield Lack(key, f"the lease of worker {name} is another process's", name)


def _answers(key: str, before: Fleet, found: ReportRound) -> Iterator[Lack]:
    """Every worker has to answer, once, and as the process that is registered."""
    for name, worker in sorted(before.living.items()):
        if name in found.unreadable:
            yield Lack(key, f"the answer of worker {name} can't be read: {found.unreadable[name]}", name)
        elif (report := found.reports.get(name)) is None:
            yield Lack(key, f"worker {name} does not answer", name)
        elif worker.incarnation and report.incarnation != worker.incarnation:
            yield Lack(key, f"another process than the registered one answers as worker {name}", name)
    for name, report in sorted(found.reports.items()):
        if name not in before.living and report.spans and report.kind is not WorkerKind.OBSERVER:
            yield Lack(key, f"worker {name} has partitions and is not registered, or its lease has ended", name)
    if found.left_out:
        yield Lack(key, f"{found.left_out} answers came twice, or were too many")


def agreement(key: str, before: Fleet, found: ReportRound) -> Iterator[Lack]:
    """All have to share the partitions out by the same assignment."""
    assignments = {name: report.assignment for name, report in counted(before, found).items()}
    for name, assignment in assignments.items():
        if not assignment:
            yield Lack(key, f"worker {name} knows of no assignment of the partitions yet", name)
    if len(set(assignments.values())) > 1:
        first, *others = sorted(assignments)
        other = next(name for name in others if assignments[name] != assignments[first])
        yield Lack(key, f"workers {first} and {other} share the partitions out in two ways")
    elif before.table and set(assignments.values()) != {f"epoch {before.table}"}:
        yield Lack(key, f"the workers do not go by the table of owners {before.table}")


def _partitions(target: ProofTarget, before: Fleet, found: ReportRound, *, everybody: bool) -> Iterator[Lack]:
    """Each partition has to have one owner, which has applied it; where ``everybody`` is to, all workers."""
    owners: dict[int, list[str]] = {number: [] for number in target.ranges}
    reports = counted(before, found)
    for name, report in reports.items():
        if report.refused:
            yield Lack(target.key, f"worker {name} refuses what the config service has: {report.refused}", name)
        # One that owns nothing has no rows, and so no history: there may be more workers than partitions.
        if report.spans and report.history != target.history:
            yield Lack(target.key, f"worker {name} has another history of the key", name)
        if report.loading:
            yield Lack(target.key, f"worker {name} still loads {_counting(report.loading, 'partition')}", name)
        behind = []
        for number, applied in report.partitions():
            if number in owners:
                owners[number].append(name)
                if applied < target.ranges[number][1]:
                    behind.append((number, applied))
        if behind:
            number, applied = behind[0]
            where = f"partition {number} up to revision {applied} and not {target.ranges[number][1]}"
            more = f", and {len(behind) - 1} more not far enough" if len(behind) > 1 else ""
            yield Lack(target.key, f"worker {name} has applied {where}{more}", name)
    if everybody:
        for name in reports:
            if missing := [number for number, having in owners.items() if name not in having]:
                yield Lack(target.key, f"worker {name} lacks {some_partitions(missing)}", name)
        return
    yield from ownership(target.key, owners)


def ownership(key: str, owners: Mapping[int, Sequence[str]]) -> Iterator[Lack]:
    """Each partition has to have one owner. ``owners``: of each the workers that say that they are."""
    if unowned := [number for number, having in owners.items() if not having]:
        yield Lack(key, f"no worker owns {some_partitions(unowned)}")
    if shared := [number for number, having in owners.items() if len(having) > 1]:
        yield Lack(key, f"more than one worker owns {some_partitions(shared)}")


def _refusals(
    target: ProofTarget, before: Fleet, found: ReportRound, refused: Mapping[str, int]
) -> Iterator[tuple[Lack, bool]]:
    """No handler may have refused a row of the release. With each whether that is for good."""
    for name, report in counted(before, found).items():
        if report.refusals is None:
            sentence = f"worker {name} is of an older build, which does not say what it refused"
            yield Lack(target.key, sentence, name), False
            continue
        for each in report.refusals:
            if refused.get(each.row_id) == each.version:
                yield _refusal(target, name, each), each.what is not RowFailure.RETRYING
        if given_up := report.unnamed_given_up:
            more = _counting(given_up, "more row")
            sentence = f"worker {name} has refused {more}, which it does not name"
            yield Lack(target.key, sentence, name, rows=given_up), True
        if unknown := report.unnamed_refusals - given_up:
            more = _counting(unknown, "more row")
            yield Lack(target.key, f"worker {name} may have refused {more}, which it does not name", name), False


def _refusal(target: ProofTarget, worker_id: str, each: Refusal) -> Lack:
    why = f": {each.error}" if each.error else ""
    sentence = f"row {shown(each.row_id)} {_FAILED[each.what]} at worker {worker_id}{why}"
    return Lack(target.key, sentence, worker_id, each.row_id)


def _counting(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def some_partitions(partitions: Collection[int]) -> str:
    """The first of some partitions, and how many more there are."""
    first = min(partitions)
    return f"partition {first}" if len(partitions) == 1 else f"partition {first} and {len(partitions) - 1} more"
