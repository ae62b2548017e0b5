"""The judge of key-shared dispatch catches what it is there for."""

from __future__ import annotations

from typing import Any

import pytest
from ringcast_testkit import Report

from tests.integration.faults.deliveries import Answers, Done, judge_deliveries, judge_done, judge_group
from tests.integration.faults.histories import Findings
from tests.integration.faults.record import Revision

RECORD = [Revision("k", 0, version, "a", str(version)) for version in (1, 2, 3)]
COUNTS = {"offered": 5, "acked": 4, "skipped": 1, "dropped": 0, "dead_lettered": 0}
GROUP = {"cursor": 5, "last": 5, "blocked": [], "counts": COUNTS}


def report(at_ms: int, event: str, version: int, *, who: str = "c0", life: int = 1, **changed: Any) -> Report:
    """A delivery of version n has offset n, as its first attempt, unless said otherwise."""
    fields = {"key": "k", "partition": 0, "row_id": "a", "version": version, "value": str(version), "agent": "x"}
    fields |= {"offset": version, "attempt": 1, "rejected": False} | changed
    return Report(who, life, event, at_ms * 1_000_000, fields)


def worked(at_ms: int, version: int, **changed: Any) -> list[Report]:
    """A delivery that took 5 ms."""
    return [report(at_ms, "delivered", version, **changed), report(at_ms + 5, "answered", version, **changed)]


def found(*reports: Report) -> dict[str, int]:
    findings = Findings()
    judge_deliveries(reports, RECORD, findings)
    return dict(findings.counts)


def test_what_is_right() -> None:
    killed = Report("c0", 1, "killed", 24_000_000, {})
    assert found(*worked(0, 1), *worked(10, 2), report(20, "delivered", 3), killed, *worked(30, 3, attempt=2)) == {}
    again = worked(12, 1, agent="y", who="c1")  # another life of the agent: the row is told anew
    assert found(report(10, "delivered", 1), *again, *worked(20, 2, agent="y", offset=2)) == {}


@pytest.mark.parametrize(
    ("kind", "reports"),
    [
        ("two_at_once", [*worked(0, 1), *worked(3, 2, who="c1")]),
        ("two_at_once", [report(0, "delivered", 1), *worked(50, 2, who="c1")]),
        ("two_at_once", [report(0, "delivered", 1), *worked(50, 1, who="c1", attempt=2)]),
        ("fallen_version", [*worked(0, 2), *worked(10, 1, offset=7)]),
        ("fallen_version", [*worked(0, 2), *worked(10, 1, agent="y")]),
        ("invented_row", worked(0, 1, value="other")),
        ("invented_row", worked(0, 1, row_id="b")),
        ("invented_row", worked(0, 9)),
        ("misnumbered", [*worked(0, 1), *worked(10, 2, offset=1, attempt=2)]),
        ("misnumbered", [*worked(0, 1), *worked(10, 1, who="c1")]),
    ],
)
def test_what_is_wrong(kind: str, reports: list[Report]) -> None:
    assert found(*reports).keys() == {kind}


def test_rows_that_nobody_acknowledged_or_only_an_older_version_of() -> None:
    answers = Answers()
    for each in (*worked(0, 2), *worked(10, 1), report(20, "answered", 3, rejected=True)):
        answers.take(each)
    assert (answers.newest, answers.count) == ({("k", "a"): Done("2", 2)}, 2)
    for truth, kinds in (
        ({"a": ("2", 2, 0)}, {}),
        ({"a": ("3", 3, 0)}, {"stale": 1}),
        ({"a": ("2", 2, 0), "b": ("1", 1, 0)}, {"lost": 1}),
    ):
        findings = Findings()
        judge_done(truth, "k", answers.newest, findings)
        assert findings.counts == kinds


@pytest.mark.parametrize(
    "wrong",
    [
        {"cursor": 4},
        {"blocked": [{"row_id": "a"}]},
        {"counts": COUNTS | {"acked": 3}},
        {"counts": COUNTS | {"acked": 3, "dropped": 1}},
    ],
)
def test_a_group_with_messages_that_are_not_accounted_for(wrong: dict[str, Any]) -> None:
    findings = Findings()
    judge_group(GROUP, findings)
    assert not findings.counts
    judge_group(GROUP | wrong, findings)
    assert findings.counts == {"unaccounted": 1}
