"""The judge of releases catches what it is there for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.integration.faults.histories import Findings, judge_writes
from tests.integration.faults.load import Ledger, Write
from tests.integration.faults.record import Revision
from tests.integration.faults.release_judge import judge_asked, judge_held, judge_releases
from tests.integration.faults.release_record import AskedRelease, AskedRow, FoundRelease, FoundRow

BEFORE = [
    Revision("k", 0, 1, "a", "a-old"),
    Revision("k", 0, 2, "b", "b-old"),
    Revision("k", 0, 3, "c", "c-old"),
]
"""The record when the release was staged; ``d`` is not there, and neither is ``e``."""
WRITTEN = [
    Revision("k", 0, 4, "c", "c-other"),  # by another writer, after the release had begun
    Revision("k", 0, 5, "a", "a-new"),
    Revision("k", 0, 6, "b", None),
    Revision("k", 0, 7, "d", "d-new"),
]
UNDONE = [
    Revision("k", 0, 8, "d", "d-other"),  # by another writer
    Revision("k", 0, 9, "b", "b-old"),
    Revision("k", 0, 10, "a", "a-old"),
]
ASKED = AskedRelease(
    "one",
    [
        AskedRow("k", "a", "a-new", 1, "a-old"),
        AskedRow("k", "b", None, 2, "b-old"),
        AskedRow("k", "c", "c-new", 3, "c-old"),
        AskedRow("k", "d", "d-new", 0, None),
    ],
    number=1,
    published=True,
)
A = FoundRow(1, "k", 0, "a", "a-new", 1, "a-old", "published", 5)
B = FoundRow(2, "k", 0, "b", None, 2, "b-old", "published", 6)
C = FoundRow(3, "k", 0, "c", "c-new", 3, None, "skipped")
D = FoundRow(4, "k", 0, "d", "d-new", 0, None, "published", 7)
PUBLISHED = FoundRelease(1, "one", "published", "", 4, 3, 0, 1, rows=(A, B, C, D))
A_BACK = A._replace(outcome="undone", undo_version=10)
B_BACK = B._replace(outcome="undone", undo_version=9)
D_KEPT = D._replace(outcome="kept")
BACK = FoundRelease(1, "one", "undone", "", 4, 3, 2, 1, rows=(A_BACK, B_BACK, C, D_KEPT))
HELD_THEN = {"w": {"k": {"a": ("a-new", 5, 0), "c": ("c-other", 4, 0), "d": ("d-new", 7, 0)}}}


def found_in(release: FoundRelease, revisions: list[Revision], asked: AskedRelease = ASKED) -> Findings:
    findings = Findings()
    judge_releases([release], revisions, findings)
    judge_asked([asked], [release], revisions, findings)
    return findings


def rows(release: FoundRelease, **changed: FoundRow) -> FoundRelease:
    """The same with other rows, by their ids."""
    return replace(release, rows=tuple(changed.get(row.row_id, row) for row in release.rows))


def test_a_release_that_is_whole_or_undone_has_no_findings() -> None:
    assert found_in(PUBLISHED, BEFORE + WRITTEN).sentences == []
    asked = replace(ASKED, undone=True)
    assert found_in(BACK, BEFORE + WRITTEN + UNDONE, asked).sentences == []
    assert found_in(replace(BACK, failure="not proven"), BEFORE + WRITTEN + UNDONE).sentences == []
    findings = Findings()
    judge_held([PUBLISHED], BEFORE + WRITTEN, HELD_THEN, findings)
    assert findings.sentences == []


@pytest.mark.parametrize("gone", range(len(WRITTEN)))
def test_a_record_in_which_one_row_of_a_published_release_is_missing(gone: int) -> None:
    written = [revision for index, revision in enumerate(WRITTEN) if index != gone]
    kinds = set(found_in(PUBLISHED, BEFORE + written).counts)
    assert kinds == ({"conflict"} if gone == 0 else {"half_release"}), "the first one is what made the release skip it"


@pytest.mark.parametrize("gone", range(len(UNDONE)))
def test_a_record_in_which_one_row_of_an_undone_release_is_not_written_back(gone: int) -> None:
    undone = [revision for index, revision in enumerate(UNDONE) if index != gone]
    kinds = set(found_in(BACK, BEFORE + WRITTEN + undone, replace(ASKED, undone=True)).counts)
    assert kinds == ({"conflict"} if gone == 0 else {"half_release"})


@pytest.mark.parametrize(
    ("release", "kind"),
    [
        # A wave that was published in part, and nobody knows: the release says that it is done.
        (rows(PUBLISHED, d=D._replace(outcome="waiting", version=0)), "half_release"),
        (rows(PUBLISHED, a=A._replace(version=4)), "half_release"),
        (replace(PUBLISHED, state="undone"), "half_release"),
        (replace(PUBLISHED, state="publishing", work="wave"), "release_state"),
        (replace(PUBLISHED, work="publish"), "release_state"),
        (replace(PUBLISHED, published=2), "release_state"),
        (replace(PUBLISHED, skipped=0), "release_state"),
        (replace(PUBLISHED, rows=(A, B, C)), "release_state"),
        (rows(PUBLISHED, a=A._replace(outcome="skipped")), "half_release"),
        (rows(PUBLISHED, a=A._replace(old="a-other")), "overwritten_row"),
    ],
)
def test_a_release_whose_state_is_not_what_its_rows_say(release: FoundRelease, kind: str) -> None:
    assert kind in found_in(release, BEFORE + WRITTEN).counts


def test_a_row_that_another_writer_has_changed_and_the_release_overwrote() -> None:
    other = Revision("k", 0, 4, "a", "a-other")
    assert set(found_in(PUBLISHED, [*BEFORE, other, *WRITTEN[1:]]).counts) == {"overwritten_row", "conflict"}
    undone = [Revision("k", 0, 8, "a", "a-other"), *UNDONE[1:]]
    counts = found_in(BACK, BEFORE + WRITTEN + undone, replace(ASKED, undone=True)).counts
    assert counts == {"overwritten_row": 1, "conflict": 1}


@pytest.mark.parametrize(
    ("asked", "release", "kind"),
    [
        (ASKED, None, "lost_release"),
        (ASKED, replace(PUBLISHED, number=2), "lost_release"),
        (replace(ASKED, published=False), PUBLISHED, "lost_release"),
        (replace(ASKED, undone=True), PUBLISHED, "lost_release"),
        (ASKED, BACK, "lost_release"),  # nobody has asked for that, and no gate has failed
        (replace(ASKED, rows=ASKED.rows[:3]), PUBLISHED, "lost_release"),
        (replace(ASKED, dropped=True), replace(PUBLISHED, state="dropped", rows=()), "half_release"),
        (replace(ASKED, name="two", number=0), PUBLISHED, "invented_release"),
    ],
)
def test_what_was_acknowledged_of_a_release(asked: AskedRelease, release: FoundRelease | None, kind: str) -> None:
    findings = Findings()
    judge_asked([asked], [release] if release else [], BEFORE + WRITTEN, findings)
    assert findings.counts == {kind: 1}
    ledger = Ledger(releases=[replace(asked)])
    ledger.take_back([], [])
    findings = Findings()
    judge_asked(ledger.releases, [], [], findings)
    assert not findings.counts, "a database that has gone back may have lost it"


@pytest.mark.parametrize(
    "held",
    [
        {"a": ("a-old", 1, 0), "d": ("d-new", 7, 0), "c": ("c-other", 4, 0)},
        {"a": ("a-new", 5, 0), "c": ("c-other", 4, 0)},
        {"a": ("a-new", 5, 0), "b": ("b-old", 2, 0), "c": ("c-other", 4, 0), "d": ("d-new", 7, 0)},
    ],
)
def test_workers_that_hold_a_release_in_part(held: dict[str, Any]) -> None:
    findings = Findings()
    judge_held([PUBLISHED], BEFORE + WRITTEN, {"w": {"k": held}}, findings)
    assert findings.counts == {"release_not_held": 1}


def test_a_row_of_a_release_is_in_the_record_once_and_what_it_was_once_more() -> None:
    others = [*BEFORE, WRITTEN[0], UNDONE[0]]
    theirs = [Write(each.key, each.row_id, each.value, attempts=1, acknowledged=True) for each in others]
    record = BEFORE + WRITTEN + UNDONE
    twice = Revision("k", 0, 11, "a", "a-new")
    for more, kinds in [([], set()), ([twice], {"invented_write"})]:
        findings = Findings()
        judge_writes(theirs, record + more, findings, [ASKED])
        assert set(findings.counts) == kinds
