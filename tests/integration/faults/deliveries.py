"""The judge of key-shared dispatch: what consumers were given and what they answered, beside the record.

Reports are those of :mod:`tests.integration.faults.consumer_main`. Offsets are counted, and rows given one at a time,
within one life of the agent; versions never fall beyond that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ringcast_testkit import Report

from tests.integration.faults.histories import Findings
from tests.integration.faults.record import Revision


class Done(NamedTuple):
    """What a consumer acknowledged last of a row."""

    value: str | None
    version: int


class Answers:
    """Follows a history as it grows: the newest version of each row that some consumer has acknowledged."""

    def __init__(self) -> None:
        self.newest: dict[tuple[str, str], Done] = {}
        """By config key and row id."""
        self.count = 0

    def take(self, report: Report) -> None:
        """The listener for a :class:`~ringcast_testkit.History`."""
        if report.event == "answered" and not report.fields["rejected"]:
            self.count += 1
            row = (report.fields["key"], report.fields["row_id"])
            if row not in self.newest or self.newest[row].version < report.fields["version"]:
                self.newest[row] = Done(report.fields["value"], report.fields["version"])


class _Given(NamedTuple):
    """One delivery: to which life of a consumer, and from when to when it was worked on (0: it never answered)."""

    at_ns: int
    who: tuple[str, int]
    fields: Mapping[str, Any]
    answered_ns: int


def judge_deliveries(reports: Sequence[Report], revisions: Iterable[Revision], findings: Findings) -> None:
    """Each row in order and one at a time, and nothing that the record does not have."""
    record = {(revision.key, revision.partition, revision.version): revision for revision in revisions}
    killed = {(each.worker_id, each.life): each.at_ns for each in reports if each.event == "killed"}
    for row, given in _by_row(reports).items():
        for one in given:
            fields = one.fields
            kept = record.get((fields["key"], fields["partition"], fields["version"]))
            if kept is None or (kept.row_id, kept.value) != (fields["row_id"], fields["value"]):
                findings.add("invented_row", f"{one.who} was given {row} as {fields}, the record has {kept}")
        for before, after in pairwise(given):
            if after.fields["version"] < before.fields["version"]:
                findings.add("fallen_version", f"{row} went from {before.fields['version']} to {after.fields}")
            if after.fields["agent"] != before.fields["agent"]:
                continue  # what an agent that is gone had given is beyond the next one's reach
            over_ns = before.answered_ns or killed.get(before.who, after.at_ns + 1)
            if over_ns > after.at_ns:
                findings.add("two_at_once", f"{row}: {before} was not over when {after} began")
        _judge_numbers(row, given, findings)


def _judge_numbers(row: tuple[str, str], given: Sequence[_Given], findings: Findings) -> None:
    """A message keeps its offset, and its deliveries are counted."""
    seen: dict[tuple[str, int], tuple[int, int]] = {}
    for one in given:
        message = (one.fields["agent"], one.fields["offset"])
        version, attempt = one.fields["version"], one.fields["attempt"]
        if message in seen and (seen[message][0] != version or seen[message][1] >= attempt):
            findings.add("misnumbered", f"{row}: {message} was version and attempt {seen[message]}, then {one.fields}")
        seen[message] = (version, attempt)


def _by_row(reports: Sequence[Report]) -> dict[tuple[str, str], list[_Given]]:
    def delivery(report: Report) -> tuple[Any, ...]:
        fields = report.fields
        return (report.worker_id, report.life, fields["agent"], fields["offset"], fields["attempt"])

    answered = {delivery(report): report.at_ns for report in reports if report.event == "answered"}
    rows: defaultdict[tuple[str, str], list[_Given]] = defaultdict(list)
    for report in sorted(reports, key=lambda report: report.at_ns):
        if report.event == "delivered":
            who = (report.worker_id, report.life)
            given = _Given(report.at_ns, who, report.fields, answered.get(delivery(report), 0))
            rows[report.fields["key"], report.fields["row_id"]].append(given)
    return rows


def judge_done(
    truth: Mapping[str, tuple[str, int, int]], key: str, newest: Mapping[tuple[str, str], Done], findings: Findings
) -> None:
    """Of each live row that the host owns, the last acknowledged version is that of the record."""
    for row_id, (value, version, _) in truth.items():
        done = newest.get((key, row_id))
        if done is None:
            findings.add("lost", f"nobody acknowledged {row_id}, the record has version {version}")
        elif done != (value, version):
            findings.add("stale", f"{row_id} was last acknowledged as {done}, the record has {(value, version)}")


def judge_group(group: Mapping[str, Any], findings: Findings) -> None:
    """At rest every message of the agent's last life is accounted for, and none was given up."""
    counts = group["counts"]
    settled = counts["acked"] + counts["skipped"]
    whole = group["cursor"] == group["last"] == counts["offered"] == settled
    if not whole or group["blocked"] or counts["dropped"] or counts["dead_lettered"]:
        findings.add("unaccounted", f"the group is at rest with {dict(group)}")
