"""The judge of the fault tests catches what it is there for."""

from __future__ import annotations

from typing import Any

import pytest
from ringcast_testkit import Report

from tests.integration.faults.histories import (
    Findings,
    covered,
    double_ownership,
    judge_order,
    judge_reports,
    judge_revisions,
    judge_state,
    judge_writes,
)
from tests.integration.faults.load import Ledger, Write
from tests.integration.faults.record import Revision

RECORD = [Revision("k", 0, 1, "a", "1"), Revision("k", 0, 2, "b", "2"), Revision("k", 0, 3, "a", None)]


def sent(row_id: str, value: str | None, *, version: int = 0, attempts: int = 1, ok: bool = True) -> Write:
    return Write("k", row_id, value, attempts=attempts, acknowledged=ok, version=version)


def report(at_ms: float, worker_id: str, event: str, **fields: Any) -> Report:
    return Report(worker_id, 1, event, int(at_ms * 1e6), {"key": "k", **fields})


def row(at_ms: float, row_id: str, version: int, value: str | None = None, *, deleted: bool = False) -> Report:
    value = None if deleted else value or str(version)
    return report(at_ms, "w", "row", partition=0, row_id=row_id, value=value, version=version, deleted=deleted)


OWNED = report(0, "w", "assigned", partitions=[0])
LOST = report(50, "w", "revoked", partitions=[0])


def test_a_true_history_has_no_findings() -> None:
    findings = Findings()
    writes = [sent("a", "1", version=1), sent("b", "2"), sent("a", None, version=3), sent("c", "9", ok=False)]
    judge_writes(writes, RECORD, findings)
    judge_revisions(RECORD, findings)
    judge_reports([OWNED, row(1, "a", 1), row(2, "b", 2), row(3, "a", 3, deleted=True)], RECORD, findings)
    judge_state({"b": ("2", 2, 0)}, {"w": {"b": ("2", 2, 0)}}, {"w": frozenset({0})}, findings)
    assert findings.sentences == []


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (sent("a", "other", version=1), "lost_write"),
        (sent("z", "1", version=9), "lost_write"),
        (sent("z", "bulk"), "lost_write"),
        (sent("a", None, version=2), "lost_write"),
    ],
)
def test_an_acknowledged_write_that_is_not_in_the_record(write: Write, kind: str) -> None:
    findings = Findings()
    judge_writes([write, sent("a", "1"), sent("b", "2"), sent("a", None)], RECORD, findings)
    assert findings.counts == {kind: 1}


def test_a_write_that_nobody_asked_for_or_that_landed_too_often() -> None:
    findings = Findings()
    judge_writes([sent("a", "1"), sent("a", None)], [*RECORD, Revision("k", 0, 4, "a", "1")], findings)
    assert findings.counts == {"invented_write": 2}
    again = Findings()
    judge_writes([sent("a", "1", attempts=2, ok=False)], [RECORD[0], Revision("k", 0, 2, "a", "1")], again)
    assert not again.counts


@pytest.mark.parametrize("versions", [[1, 3], [1, 1], [2]])
def test_revisions_with_a_gap_or_a_repeat(versions: list[int]) -> None:
    findings = Findings()
    judge_revisions([Revision("k", 0, version, "a", "x") for version in versions], findings)
    assert findings.counts == {"revision_gap": 1}


@pytest.mark.parametrize(
    ("reports", "kind"),
    [
        ([OWNED, row(2, "a", 3, deleted=True), row(3, "a", 1)], "fallen_version"),
        ([row(1, "a", 1)], "foreign_row"),
        ([OWNED, LOST, row(60, "a", 1)], "foreign_row"),
        ([OWNED, row(1, "b", 7)], "invented_row"),
        ([OWNED, row(1, "z", 1)], "invented_row"),
        ([OWNED, row(1, "a", 1, "other")], "invented_row"),
    ],
)
def test_what_a_worker_must_not_be_given(reports: list[Report], kind: str) -> None:
    findings = Findings()
    judge_reports(reports, RECORD, findings)
    assert set(findings.counts) == {kind}


WENT_BACK = [RECORD[0], Revision("k", 0, 2, "c", "new"), Revision("k", 0, 3, "c", "newer")]
"""What became of the record when it had lost all but its first revision."""


def test_a_worker_goes_over_to_what_is_left_of_the_record() -> None:
    findings = Findings()
    before, after = [row(1, "a", 1), row(2, "b", 2)], [row(3, "b", 1, deleted=True), row(4, "c", 2, "new")]
    judge_reports([OWNED, *before, *after, row(5, "c", 3, "newer")], WENT_BACK, findings, [RECORD])
    assert not findings.counts


@pytest.mark.parametrize(
    ("reports", "kind"),
    [
        ([row(1, "c", 2, "new"), row(2, "b", 2)], "invented_row"),  # back to what is lost
        ([row(1, "c", 3, "newer"), row(2, "c", 2, "new")], "fallen_version"),
        ([row(1, "b", 2), row(2, "c", 2, "new"), row(3, "a", 3, deleted=True), row(4, "a", 1)], "fallen_version"),
        ([row(1, "b", 2, "new")], "invented_row"),  # a revision of the one record with the content of the other
    ],
)
def test_a_worker_does_not_go_back_with_the_record_twice(reports: list[Report], kind: str) -> None:
    findings = Findings()
    judge_reports([OWNED, *reports], WENT_BACK, findings, [RECORD])
    assert set(findings.counts) == {kind}


def test_what_the_database_has_lost_is_not_asked_for_and_all_else_is() -> None:
    ledger = Ledger([sent("a", "1", version=1), sent("b", "2"), sent("a", None, version=3), sent("z", "9", version=4)])
    ledger.take_back(RECORD, WENT_BACK[:1])
    assert [write.taken_back for write in ledger.writes] == [False, True, True, False]
    ledger.writes += [sent("c", "new", version=2), sent("c", "newer", version=3)]
    findings = Findings()
    judge_writes(ledger.writes, WENT_BACK, findings)
    assert findings.counts == {"lost_write": 1}, "what neither record has was lost by the service"


def test_a_write_that_lands_before_one_that_was_acknowledged_when_it_began() -> None:
    first, second = sent("a", "1", version=1), sent("b", "2", version=2)
    for times, kinds in [((1, 3, 2, 4), set()), ((1, 2, 3, 4), set()), ((3, 4, 1, 2), {"misordered_write"})]:
        first.begun, first.ended, second.begun, second.ended = times
        findings = Findings()
        judge_order([first, second], RECORD, findings)
        assert set(findings.counts) == kinds


def test_a_bulk_write_has_its_place_in_the_order_too() -> None:
    bulk, single = sent("a", "1"), sent("b", "2", version=2)
    single.begun, single.ended, bulk.begun, bulk.ended = 1, 2, 3, 4
    findings = Findings()
    judge_order([bulk, single], RECORD, findings)
    assert findings.counts == {"misordered_write": 1}
    single.taken_back = True
    again = Findings()
    judge_order([bulk, single], RECORD, again)
    assert not again.counts


def test_a_version_may_start_low_again_with_a_new_ownership() -> None:
    findings = Findings()
    again = report(70, "w", "assigned", partitions=[0])
    judge_reports([OWNED, row(1, "a", 3, deleted=True), LOST, again, row(80, "a", 1)], RECORD, findings)
    assert not findings.counts


@pytest.mark.parametrize(
    ("held", "kind"),
    [
        ({"w": {}}, "lost"),
        ({"w": {"b": ("old", 1, 0)}}, "stale"),
        ({"w": {"b": ("2", 2, 0), "a": ("1", 1, 0)}}, "stale"),
        ({"w": {"b": ("2", 2, 0)}, "v": {"b": ("2", 2, 0)}}, "misplaced"),
        ({"v": {"b": ("2", 2, 0)}}, "misplaced"),
    ],
)
def test_a_state_that_is_not_the_record(held: dict[str, Any], kind: str) -> None:
    findings = Findings()
    verdict = judge_state({"b": ("2", 2, 0)}, held, {"w": frozenset({0})}, findings)
    assert not verdict.kept
    assert set(findings.counts) == {kind}


def ms(reports: list[Report], *, end_ms: int = 1_000) -> float:
    return covered(double_ownership(reports, end_ms * 1_000_000)) / 1e6


def test_the_time_of_two_owners_is_measured() -> None:
    reports = [
        report(0, "a", "assigned", partitions=[0, 1]),
        report(100, "b", "assigned", partitions=[0, 1]),
        report(130, "a", "revoked", partitions=[0]),
        report(150, "a", "revoked", partitions=[1]),
        report(500, "a", "assigned", partitions=[0]),
        report(510, "b", "revoked", partitions=[0]),
    ]
    assert ms(reports) == pytest.approx(60)


def test_a_worker_that_is_stopped_or_dead_owns_nothing() -> None:
    reports = [
        report(0, "a", "assigned", partitions=[0]),
        report(10, "a", "paused"),
        report(20, "b", "assigned", partitions=[0]),
        report(100, "a", "resumed"),
        report(107, "a", "revoked", partitions=[0]),
        report(200, "b", "killed"),
        report(200, "c", "assigned", partitions=[0]),
    ]
    assert ms(reports) == pytest.approx(7)


def test_two_owners_until_the_end_count_until_the_end() -> None:
    reports = [report(0, "a", "assigned", partitions=[0]), report(10, "b", "assigned", partitions=[0])]
    assert ms(reports, end_ms=40) == pytest.approx(30)
