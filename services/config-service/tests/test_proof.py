"""What a certificate says of a round of reports, and what lacks where there is none.

``test_proof_schedules.py`` has random rounds, and each condition broken.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from ringcast_config_service.releases.proof import MAX_NAMED, Fleet, ProofTarget, Registration, judge
from ringcast_wire import WIRE_VERSION
from ringcast_wire.reports import Refusal, ReportRound, RowFailure, WorkerKind, WorkerReport


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


def test_a_row_that_a_handler_still_gets_again_is_pending_and_not_given_up() -> None:
    """It has had one of its tries, and may take the row yet."""
    found = reports("a", refusals=[Refusal(0, "r", 3, RowFailure.RETRYING, "ValueError('no')")])
    verdict = judge(WANTED, fleet("a"), found, fleet("a"), {"r": 3})
    assert (verdict.certificate, verdict.given_up) == (None, ())
    assert [lack.sentence for lack in verdict.pending] == ["row 'r' is handed over again at worker a: ValueError('no')"]


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
