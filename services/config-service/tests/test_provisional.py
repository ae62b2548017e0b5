"""What the answers of the workers say of the provisional rows of a release."""

from __future__ import annotations

import pytest
from ringcast_config_service.releases.fleet import FleetRound
from ringcast_config_service.releases.proof import Fleet, Registration
from ringcast_config_service.releases.provisional import laid_by
from ringcast_wire import WIRE_VERSION
from ringcast_wire.reports import (
    DryRefusal,
    ProvisionalReport,
    ProvisionalRequest,
    ProvisionalState,
    ReportRound,
    WorkerKind,
    WorkerReport,
)

LABEL = "site=test"
ASKED = ProvisionalRequest(7, LABEL)
LAID = ProvisionalReport(7, ProvisionalState.LAID, 5)


def report(provisional: ProvisionalReport | None = None, *, label: bool = True) -> WorkerReport:
    words = WIRE_VERSION, "0" * 16, "i", "0", 1, WorkerKind.APPLICATION, "", "h", [0, 4], [0] * 4
    return WorkerReport(*words, labels=[LABEL] if label else [], provisional=provisional)


def asked(**reports: WorkerReport | None) -> FleetRound:
    """A round in which all take part and answer, but for those without a report."""
    fleet = Fleet({name: Registration(name, 1) for name in reports}, dict.fromkeys(reports, "i"))
    answers = {name: each for name, each in reports.items() if each is not None}
    return FleetRound(fleet, ReportRound(answers, (), {}, 0, 0.0), fleet)


OTHER = report(label=False)


def test_all_workers_with_the_label_have_laid_all_over() -> None:
    assert laid_by("k", ASKED, asked(a=report(LAID), b=report(LAID), c=OTHER)) == ((), (), ())


@pytest.mark.parametrize(
    ("found", "lack"),
    [
        (asked(), "no worker is registered and alive"),
        (asked(c=OTHER), "no worker has the label site=test"),
        (asked(a=report(LAID), c=None), "worker c does not answer"),
        (asked(a=report(LAID), b=report()), "worker b is of an older build, which lays no rows over"),
        (
            asked(a=report(ProvisionalReport(7, ProvisionalState.LAYING, 3)), c=OTHER),
            "worker a has laid 3 rows over, and is not done",
        ),
        (
            asked(a=report(ProvisionalReport(7, ProvisionalState.FAILED, why="gone")), c=OTHER),
            "worker a has not got the provisional rows: 'gone'",
        ),
        (
            asked(a=report(ProvisionalReport(6, ProvisionalState.LAID)), c=OTHER),
            "worker a has the rows of release 6 laid over",
        ),
    ],
)
def test_what_lacks_is_named(found: FleetRound, lack: str) -> None:
    look = laid_by("k", ASKED, found)
    assert [each.sentence for each in look.pending] == [lack]
    assert not look.given_up


def test_rows_that_a_handler_refuses_are_counted() -> None:
    said = ProvisionalReport(7, ProvisionalState.LAYING, 9, 3, [DryRefusal("r", "ValueError()")])
    look = laid_by("k", ASKED, asked(a=report(said), c=OTHER))
    assert [(each.sentence, each.rows) for each in look.given_up] == [
        ("provisional row 'r' was refused at worker a: 'ValueError()'", 1),
        ("worker a has refused 2 more provisional rows", 2),
    ]
    assert len(look.pending) == 1
