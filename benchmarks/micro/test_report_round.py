"""A proof round of few workers: every one of them answers, whatever they own, and the release is proven."""

from __future__ import annotations

import pytest
from ringcast_config_service.releases.proof import Lack, Verdict

from benchmarks.report_round import GOAL_S, missed, run


@pytest.mark.parametrize("full", [False, True])
def test_everybody_answers(full: bool) -> None:
    (found,), _ = run(3, 64, 1, full=full)
    reports = found.asked.found.reports
    assert sum(len(report.applied) for report in reports.values()) == (3 * 64 if full else 64)
    assert found.verdict.certificate is not None, found.verdict.lacks
    assert len(found.verdict.certificate.workers) == 3
    assert missed([found._replace(took_s=GOAL_S)]) == ""
    late = [found._replace(took_s=took_s) for took_s in (0.001, 0.0512, 0.0513)]
    assert missed(late) == "the median of a round is 51.2 ms, and to be 50 ms at most"
    silent = found._replace(verdict=Verdict(None, (Lack("list", "worker a does not answer"),)))
    assert missed([found, silent]) == "1 of 2 rounds prove nothing, the first because worker a does not answer"
