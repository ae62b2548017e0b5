"""The judge: what was promised, what the system of record says, and what every worker was given, put side by side.

It trusts nobody's word but the record's for what is true, the service's answers for what was promised, and the reports
of the applications for what they were given.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ringcast_testkit import Report

from demo.judge import Held, Verdict, judge
from tests.integration.faults.load import Landed, Write
from tests.integration.faults.mirror import Place
from tests.integration.faults.record import Revision
from tests.integration.faults.release_record import AskedRelease

_MOST_SHOWN = 20


@dataclass
class Findings:
    """What is wrong, counted by kind, with the first sentences of each."""

    counts: Counter[str] = field(default_factory=Counter)
    sentences: list[str] = field(default_factory=list)

    def add(self, kind: str, sentence: str) -> None:
        """Notes something wrong."""
        self.counts[kind] += 1
        if self.counts[kind] <= _MOST_SHOWN:
            self.sentences.append(f"{kind}: {sentence}")


def judge_writes(
    writes: Iterable[Write],
    revisions: Sequence[Revision],
    findings: Findings,
    releases: Iterable[AskedRelease] = (),
) -> None:
    """Every acknowledged write is in the record where the service said; nothing is there that nobody asked for.

    A write that got no answer may be there as often as it was sent, or not at all. So may one that a database has
    acknowledged and lost since. A row of a release may be there once, and once more what it was before.
    """
    record = Landed(revisions)
    allowed: Counter[tuple[str, str, str | None]] = Counter()
    for write in writes:
        what = (write.key, write.row_id, write.value)
        allowed[what] += write.attempts
        if not write.acknowledged or write.taken_back or write in record:
            continue
        found = record.at.get((write.key, write.partition, write.version)) if write.version else None
        findings.add("lost_write", f"{what} was acknowledged at {write.version}, the record has {found}")
    for release in releases:
        for row in release.rows:
            allowed.update([(row.key, row.row_id, row.value), (row.key, row.row_id, row.old)])
    for what, times in record.times.items():
        if times > allowed[what]:
            findings.add("invented_write", f"{what} is {times} times in the record, and was sent {allowed[what]} times")


def judge_order(writes: Iterable[Write], revisions: Sequence[Revision], findings: Findings) -> None:
    """A write that was begun after another of its partition was acknowledged has the higher revision.

    Of two that were under way together, either may come first, whoever they went through.
    """
    landed: dict[tuple[str, str, str], tuple[int, int]] = {}
    for revision in revisions:
        if revision.value is not None:
            landed.setdefault((revision.key, revision.row_id, revision.value), (revision.partition, revision.version))
    moments: list[tuple[int, bool, Place, int, Write]] = []
    for write in writes:
        at = (write.partition, write.version)
        if not at[1]:  # a bulk write is known by its values, and by where they landed first
            at = landed.get((write.key, write.row_id, write.value or ""), (0, 0))
        if write.acknowledged and not write.taken_back and at[1]:
            place = (write.key, at[0])
            moments += [(write.begun, False, place, at[1], write), (write.ended, True, place, at[1], write)]
    reached: defaultdict[Place, int] = defaultdict(int)
    for _, over, place, version, write in sorted(moments, key=lambda moment: moment[0]):
        if over:
            reached[place] = max(reached[place], version)
        elif version <= reached[place]:
            what = f"{write.row_id} of {place} at {version}"
            findings.add("misordered_write", f"{what} was begun when {reached[place]} was acknowledged")


def judge_revisions(revisions: Iterable[Revision], findings: Findings) -> None:
    """The revisions of a partition are 1, 2, 3 … without a gap or a repeat."""
    by_place: defaultdict[Place, list[int]] = defaultdict(list)
    for revision in revisions:
        by_place[revision.key, revision.partition].append(revision.version)
    for place, versions in by_place.items():
        if sorted(versions) != list(range(1, len(versions) + 1)):
            findings.add("revision_gap", f"{place} has {len(versions)} revisions up to {max(versions)}")


def judge_reports(
    reports: Iterable[Report],
    revisions: Iterable[Revision],
    findings: Findings,
    former: Sequence[Sequence[Revision]] = (),
) -> None:
    """What each life of a worker was given: only what it owned, only what is in the record, and nothing falling.

    Where the record has gone back, ``former`` has what it was before, oldest first. In the life of each partition there
    may then be one moment for each of them at which the worker goes over from that record to the next, and never back.
    """
    records = [_by_place(record) for record in (*former, revisions)]
    owned: defaultdict[tuple[str, int], set[Place]] = defaultdict(set)
    holdings: defaultdict[tuple[str, int], dict[Place, _Holding]] = defaultdict(dict)
    for report in reports:
        who = (report.worker_id, report.life)
        fields = report.fields
        if report.event == "assigned":
            owned[who].update((fields["key"], number) for number in fields["partitions"])
        elif report.event == "revoked":
            for number in fields["partitions"]:
                owned[who].discard((fields["key"], number))
                holdings[who].pop((fields["key"], number), None)
        elif report.event == "row":
            place = (fields["key"], fields["partition"])
            if place not in owned[who]:
                findings.add("foreign_row", f"{who} was given {place} {fields['row_id']} without owning the partition")
            if wrong := holdings[who].setdefault(place, _Holding(records, place)).take(fields):
                findings.add(wrong[0], f"{who} {place} {wrong[1]}")


_Record = dict[tuple[str, int, int], tuple[str, str | None]]


def _by_place(revisions: Iterable[Revision]) -> _Record:
    return {(r.key, r.partition, r.version): (r.row_id, r.value) for r in revisions}


class _Holding:
    """One partition in the hands of one life of a worker."""

    def __init__(self, records: Sequence[_Record], place: Place) -> None:
        self._records = records
        self._place = place
        self._record = 0
        self._newest: dict[str, int] = {}

    def take(self, fields: dict[str, Any]) -> tuple[str, str] | None:
        """Takes a row; says what is wrong with it in every record that the worker may be at."""
        first: tuple[str, str] | None = None
        for number in range(self._record, len(self._records)):
            newest = self._newest if number == self._record else {}
            wrong = self._check(fields, self._records[number], newest.get(fields["row_id"], 0))
            if wrong is None:
                self._record, self._newest = number, newest
                newest[fields["row_id"]] = fields["version"]
                return None
            first = first or wrong
        self._newest[fields["row_id"]] = fields["version"]
        return first

    def _check(self, fields: dict[str, Any], record: _Record, newest: int) -> tuple[str, str] | None:
        row_id, version = fields["row_id"], fields["version"]
        if version < newest:
            return "fallen_version", f"{row_id} went from {newest} to {version}"
        found = record.get((*self._place, version))
        if fields["deleted"]:
            # Of a row that a whole partition lacks, no revision says when it went.
            return None
        if found != (row_id, fields["value"]):
            return "invented_row", f"{row_id} was given at {version}, where the record has {found}"
        return None


def judge_state(truth: Held, held: dict[str, Held], owned: dict[str, frozenset[int]], findings: Findings) -> Verdict:
    """At rest every live row is held once, by the owner of its partition, as the record has it."""
    verdict = judge(truth, held, owned)
    holders: defaultdict[str, list[str]] = defaultdict(list)
    for worker_id, rows in held.items():
        for row_id, row in rows.items():
            holders[row_id].append(worker_id)
            if truth.get(row_id, ("", 0, 0))[:2] != row[:2]:
                findings.add("stale", f"{worker_id} holds {row_id} as {row}, the record has {truth.get(row_id)}")
    for row_id in truth.keys() - holders.keys():
        findings.add("lost", f"nobody holds {row_id}, the record has {truth[row_id]}")
    if verdict.misplaced_rows:
        findings.add("misplaced", f"{verdict.misplaced_rows} rows are held twice or by a worker that does not own them")
    return verdict


class _Span(NamedTuple):
    at_ns: int
    step: int
    place: Place


def double_ownership(reports: Sequence[Report], end_ns: int) -> list[tuple[int, int]]:
    """When partitions had two owners that both were running: one that is killed or stopped owns nothing.

    A span for each partition and time, from and to in ns of the reports' clock.
    """
    depth: Counter[Place] = Counter()
    since: dict[Place, int] = {}
    overlaps: list[tuple[int, int]] = []
    for span in sorted(_ownership(reports)):
        depth[span.place] += span.step
        if span.step > 0 and depth[span.place] == 2:
            since[span.place] = span.at_ns
        elif span.step < 0 and depth[span.place] == 1:
            overlaps.append((since.pop(span.place), span.at_ns))
    return overlaps + [(began, end_ns) for began in since.values()]


def _ownership(reports: Sequence[Report]) -> Iterator[_Span]:
    """The moments at which a running worker begins (+1) and ends (-1) to own a partition."""
    owned: defaultdict[tuple[str, int], set[Place]] = defaultdict(set)
    paused: set[tuple[str, int]] = set()
    for report in sorted(reports, key=lambda report: report.at_ns):
        who, mine = (report.worker_id, report.life), owned[report.worker_id, report.life]
        match report.event:
            case "assigned" | "revoked":
                places = {(report.fields["key"], number) for number in report.fields["partitions"]}
                step = 1 if report.event == "assigned" else -1
                for place in places - mine if step > 0 else places & mine:
                    if who not in paused:
                        yield _Span(report.at_ns, step, place)
                mine ^= places - mine if step > 0 else places & mine
            case "paused" | "killed" | "ended" | "failed":
                if who not in paused:
                    yield from (_Span(report.at_ns, -1, place) for place in mine)
                paused.add(who)
                if report.event != "paused":
                    mine.clear()
            case "resumed":
                paused.discard(who)
                yield from (_Span(report.at_ns, 1, place) for place in mine)


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """How much time a set of spans takes, where they overlap counted once."""
    total, reached = 0, 0
    for began, end in sorted(spans):
        total += max(0, end - max(began, reached))
        reached = max(reached, end)
    return total
