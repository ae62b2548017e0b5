"""Where a row is stuck on its way from the config service to the handler of a worker, as one sentence."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ringcast.fleet import RowAnswers
from ringcast_client import RowReleaseInfo
from ringcast_wire import Mode, ReleaseOutcome, ReleaseState
from ringcast_wire.reports import RowFailure, RowReport, WorkerKind, WorkerReport


class Place(StrEnum):
    """Where a row is stuck."""

    SERVICE = "service"
    """The config service does not say whether it is written."""
    NO_ROW = "no_row"
    """It does not exist."""
    UNREAD = "unread"
    """This build can't read the newest event of its partition, nor up to where that goes."""
    NATS = "nats"
    PUBLISH = "publish"
    """It is written and not published."""
    OWNER = "owner"
    """No worker owns its partition at this moment."""
    WORKER = "worker"
    """The owner does not answer, or does not take what the config service has."""
    EVENT = "event"
    """The owner has not heard of it, or has not fetched it."""
    HANDLER = "handler"
    BLOCKED = "blocked"
    DEAD_LETTERED = "dead_lettered"
    DROPPED = "dropped"
    NOWHERE = "nowhere"
    """It is applied."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The newest write to a row, as the config service has it. ``written_at_ms`` is Unix time."""

    version: int
    deleted: bool
    written_at_ms: int
    author: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RowFacts:
    """All that is known of a row. ``service_problem`` and ``bus_problem``: why the config service, or NATS with the
    workers, could not be asked; then ``stored``, or ``answers``, is ``None``. Without a problem, ``stored`` is ``None``
    for a row that the service does not know."""

    store: str
    key: str
    row_id: str
    stored: Stored | None
    answers: RowAnswers | None
    service_problem: str = ""
    bus_problem: str = ""
    releases: tuple[RowReleaseInfo, ...] = ()
    """Those that have the row, the newest first, as far as the service still knows their rows."""

    @property
    def release(self) -> RowReleaseInfo | None:
        """The release that the newest write to the row came by, or was undone by."""
        version = self.stored.version if self.stored is not None else 0
        found = (each for each in self.releases if version and version in (each.version, each.undo_version))
        return next(found, None)

    @property
    def awaited(self) -> tuple[RowReleaseInfo, ...]:
        """The releases that are to change the row, and have not."""
        states = {ReleaseState.STAGED, ReleaseState.PUBLISHING}
        return tuple(each for each in self.releases if each.outcome is ReleaseOutcome.WAITING and each.state in states)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """``sentence``: where the row is stuck, and what to do next. ``worker_id``: at which worker."""

    place: Place
    sentence: str
    worker_id: str | None = None


def conclude(facts: RowFacts) -> Conclusion:
    """The first place on the row's way past which it has not come."""
    stored, answers = facts.stored, facts.answers
    if facts.service_problem:
        todo = "see whether it runs, and whether --service is right"
        sentence = f"it is not known whether the row is written: {facts.service_problem}; {todo}"
        return Conclusion(Place.SERVICE, sentence)
    if stored is None:
        sentence = "no such row: it was never written, or deleted longer ago than the config service remembers"
        return Conclusion(Place.NO_ROW, sentence)
    if answers is None:
        sentence = f"{_what(stored)} is written, and waits in the outbox if NATS is away: {facts.bus_problem}"
        return Conclusion(Place.NATS, sentence)
    holders = _holders(answers)
    found = [_at_worker(facts, stored, answers, worker_id) for worker_id in holders]
    stuck = next((each for each in found if each.place is not Place.NOWHERE), None)
    has_arrived = bool(found) and (stuck is None or stuck.place is not Place.EVENT)
    if not has_arrived and answers.unread and answers.published is None:
        sentence = f"it is not known whether {_what(stored)} is published: {answers.unread}"
        return Conclusion(Place.UNREAD, sentence)
    if not has_arrived and not _is_published(stored, answers, holders):
        return Conclusion(Place.PUBLISH, f"{_what(stored)} is not published: {_unpublished(answers)}")
    if not found:
        return _without_holder(facts, answers)
    if stuck is None and answers.topology.settings.mode is Mode.FULL and answers.round.silent:
        return _silent(answers, answers.round.silent[0], "which has every partition")
    return stuck or _applied(facts, stored, answers, holders)


def concerned(answers: RowAnswers) -> tuple[str, ...]:
    """The workers that have, or should have, the partition of the row, and those that say something of the row."""
    reports = answers.round.reports
    owner = _owner(answers)
    told = {name for name, report in reports.items() if (row := report.row) is not None and (row.owned or row.state)}
    full = answers.topology.settings.mode is Mode.FULL
    others = {*answers.round.unreadable, *((*reports, *answers.round.silent) if full else ())}
    return tuple(sorted({*told, *others, *([owner] if owner is not None else [])}))


def _owner(answers: RowAnswers) -> str | None:
    """The worker that owns the partition by the buckets of the store; ``None`` in mode FULL."""
    return answers.topology.owners[answers.partition]


def _holders(answers: RowAnswers) -> tuple[str, ...]:
    """The workers at which the row should arrive, as far as they have answered that they own its partition."""
    owner = _owner(answers)
    reports = answers.round.reports
    owning = sorted(
        worker_id
        for worker_id, report in reports.items()
        if report.kind is not WorkerKind.OBSERVER and report.row is not None and report.row.owned
    )
    if answers.topology.settings.mode is Mode.FULL:
        return tuple(owning)
    return tuple(worker_id for worker_id in owning if owner in (None, worker_id))


def _is_published(stored: Stored, answers: RowAnswers, holders: Sequence[str]) -> bool:
    """Old events expire: where none is left, the row counts as published unless an owner lacks it."""
    if answers.published is None:
        return not holders
    return answers.published >= stored.version and not _differ(answers.history, answers.published_history)


def _unpublished(answers: RowAnswers) -> str:
    if answers.published is None:
        at = f"partition {answers.partition} has no event"
    elif _differ(answers.history, answers.published_history):
        at = f"the newest event of partition {answers.partition} is of another history of the key"
    else:
        at = f"the newest event of partition {answers.partition} is of revision {answers.published}"
    return f"the outbox of the config service waits for NATS ({at}); see the log of the service"


def _at_worker(facts: RowFacts, stored: Stored, answers: RowAnswers, worker_id: str) -> Conclusion:
    """Where the row is stuck at an owner of its partition that has answered."""
    report = answers.round.reports[worker_id]
    row = report.row
    assert row is not None
    if report.refused:
        return Conclusion(Place.WORKER, f"{worker_id} refuses what the config service has: {report.refused}", worker_id)
    if _differ(report.history, answers.history):
        sentence = f"{worker_id} has another history of the key than the config service: it has to fetch all rows again"
        return Conclusion(Place.WORKER, sentence, worker_id)
    if (failed := _failed(facts, stored, row, worker_id)) is not None:
        return failed
    if row.applied >= stored.version:
        return Conclusion(Place.NOWHERE, "", worker_id)
    if row.calling_ms:
        running = f"a handler call of row {facts.row_id} that runs for {_seconds(row.calling_ms)}"
        return Conclusion(Place.HANDLER, f"{worker_id} has {running}: see what its handler waits for", worker_id)
    if row.state.startswith("loading"):  # it may have heard of the write, and has no row of the partition
        why = report.failing or f"it still loads partition {row.partition}; see whether the config service answers it"
        return Conclusion(Place.EVENT, f"{worker_id} does not have {_what(stored)}: {why}", worker_id)
    if row.heard < stored.version:
        why = _unheard(report, row)
        return Conclusion(Place.EVENT, f"{worker_id} has not heard of {_what(stored)}: {why}", worker_id)
    if row.ahead:
        running = f"a handler call of row {row.ahead} that runs for {_seconds(row.ahead_ms)}"
        sentence = f"{worker_id} has {running}, and {_what(stored)} waits behind it: see what its handler waits for"
        return Conclusion(Place.HANDLER, sentence, worker_id)
    at = f"partition {row.partition} is applied up to revision {row.applied}"
    sentence = f"{worker_id} has heard of {_what(stored)} and not applied it: {at}; look again in a moment"
    return Conclusion(Place.HANDLER, sentence, worker_id)


def _failed(facts: RowFacts, stored: Stored, row: RowReport, worker_id: str) -> Conclusion | None:
    """What the handler did not take, if it is about what is stored now, or holds that up."""
    ago, error = _seconds(row.failed_ms), row.error
    match row.failure:
        case RowFailure.BLOCKED:
            todo = "mend the handler, then call Worker.unblock"
            return Conclusion(Place.BLOCKED, f"{worker_id} blocks the row since {ago}: {error}; {todo}", worker_id)
        case RowFailure.RETRYING:
            sentence = f"the handler of {worker_id} fails with the row, and is called again: {error}"
            return Conclusion(Place.HANDLER, sentence, worker_id)
        case None:
            return None
        case _ if row.failed_version < stored.version:
            return None  # that was about an earlier write
        case RowFailure.SENDING:
            todo = "see whether NATS is full"
            sentence = f"{worker_id} gave it up {ago} ago, and NATS does not take the dead letter: {error}; {todo}"
            return Conclusion(Place.DEAD_LETTERED, sentence, worker_id)
        case RowFailure.DEAD_LETTERED:
            of_row = f"--key {facts.key} --row {shlex.quote(facts.row_id)}"
            todo = f"see ringcast dead-letters list {facts.store} {of_row}"
            sentence = f"it was dead-lettered by {worker_id} {ago} ago: {error}; {todo}"
            return Conclusion(Place.DEAD_LETTERED, sentence, worker_id)
        case RowFailure.DROPPED:
            todo = "mend the handler, then write the row again"
            return Conclusion(Place.DROPPED, f"it was dropped by {worker_id} {ago} ago: {error}; {todo}", worker_id)


def _unheard(report: WorkerReport, row: RowReport) -> str:
    if report.failing:
        return report.failing
    if not row.delivered:
        return f"NATS does not deliver the events of partition {row.partition} to it yet; look again in a moment"
    at = f"it knows of partition {row.partition} up to revision {row.heard}"
    stale = f" and is stale for {_seconds(report.stale_ms)}: see its connection to NATS" if report.stale_ms else ""
    return at + (stale or ", and fetches what it missed when it next asks the config service")


def _without_holder(facts: RowFacts, answers: RowAnswers) -> Conclusion:
    """No worker has answered that it owns the partition of the row, or another than the one that is to."""
    topology, number = answers.topology, answers.partition
    if topology.settings.mode is Mode.FULL:
        if unreadable := sorted(answers.round.unreadable):
            return _unreadable(answers, unreadable[0])
        if answers.round.silent:
            return _silent(answers, answers.round.silent[0], "which has every partition")
        return Conclusion(Place.OWNER, "no worker answers: see whether one runs and is not halted")
    owner = _owner(answers)
    if owner is None:
        joining = [member.worker_id for member in topology.members if member.alive]
        todo = f"{joining[0]} is about to; look again in a moment" if joining else f"start a worker of key {facts.key}"
        return Conclusion(Place.OWNER, f"no worker owns partition {number}: {todo}")
    if owner in answers.round.unreadable:
        return _unreadable(answers, owner)
    report = answers.round.reports.get(owner)
    if report is not None:
        why = report.failing or report.refused or "it is being handed over; look again in a moment"
        return Conclusion(Place.OWNER, f"{owner} is to own partition {number} and does not yet: {why}", owner)
    member = next((each for each in topology.members if each.worker_id == owner), None)
    if member is None or not member.alive:
        todo = "another one gets the partition once that is proved"
        return Conclusion(Place.OWNER, f"the lease of {owner}, which owns partition {number}, has ended: {todo}", owner)
    return _silent(answers, owner, f"which owns partition {number}")


def _silent(answers: RowAnswers, worker_id: str, what: str) -> Conclusion:
    member = next(each for each in answers.topology.members if each.worker_id == worker_id)
    process = f"process {member.pid} on host {member.host}" if member.pid is not None else "its process"
    todo = f"see whether {process} is halted, or cut off from NATS"
    return Conclusion(Place.WORKER, f"{worker_id}, {what}, does not answer: {todo}", worker_id)


def _unreadable(answers: RowAnswers, worker_id: str) -> Conclusion:
    why = answers.round.unreadable[worker_id]
    return Conclusion(Place.WORKER, f"the answer of {worker_id} can't be read: {why}", worker_id)


def _applied(facts: RowFacts, stored: Stored, answers: RowAnswers, holders: Sequence[str]) -> Conclusion:
    first, more = holders[0], len(holders) - 1
    by = first if not more else f"{first} and {more} more"
    if stored.deleted:
        sentence = f"no such row: deleted at revision {stored.version} by {stored.author}, applied by {by}"
        return Conclusion(Place.NO_ROW, sentence, first if not more else None)
    if not more and answers.round.reports[first].kind is WorkerKind.GROUPS:
        todo = f"how far its groups are, says ringcast groups list {facts.store} {facts.key}"
        return Conclusion(Place.NOWHERE, f"{first} has it at revision {stored.version}: {todo}", first)
    sentence = f"applied by {by} at revision {stored.version}: nothing is stuck"
    return Conclusion(Place.NOWHERE, sentence, first if not more else None)


def _differ(one: str, other: str) -> bool:
    """Whether two histories are known, and not the same."""
    return "" not in (one, other) and one != other


def _what(stored: Stored) -> str:
    return f"the deletion at revision {stored.version}" if stored.deleted else f"revision {stored.version}"


def _seconds(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
