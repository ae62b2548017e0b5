"""A report round of few workers: every one of them answers, whatever they own."""

from __future__ import annotations

import pytest

from benchmarks.report_round import run


@pytest.mark.parametrize("full", [False, True])
def test_everybody_answers(full: bool) -> None:
    (found,), _ = run(3, 64, 1, full=full)
    assert not found.silent
    assert not found.unreadable
    assert sum(len(report.applied) for report in found.reports.values()) == (3 * 64 if full else 64)
