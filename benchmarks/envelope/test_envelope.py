"""The whole harness as a process, at sizes that only prove that it runs. Nothing here looks at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from benchmarks.envelope.__main__ import arguments
from benchmarks.envelope.goals import GOALS, Goal, missed_by
from benchmarks.envelope.processes import ROOT
from benchmarks.envelope.report import SECTIONS, write_report
from benchmarks.envelope.results import Case, Figure, read
from benchmarks.envelope.scenarios import SCENARIOS
from benchmarks.envelope.system import DATABASES

MAY_BE_SKIPPED = {"peers"}
# Two a run: each start of the harness costs, and a test may take only so long on a machine that is busy.
_NAMES = [scenario.name for scenario in SCENARIOS]
RUNS = [_NAMES[start : start + 2] for start in range(0, len(_NAMES), 2)]
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.envelope", *map(str, words)]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), env=_ENVIRONMENT, capture_output=True, text=True, check=False)


def check_report(directory: Path, cases: Sequence[Case]) -> None:
    """It has a section for each scenario that was measured, and plots that are there."""
    report = (directory / "report.md").read_text()
    for section in SECTIONS:
        assert (f"## {section.title}" in report) == any(case.scenario == section.scenario for case in cases)
    plots = [line.partition("](")[2].rstrip(")") for line in report.splitlines() if line.startswith("![")]
    for plot in plots:
        assert ElementTree.parse(directory / plot).getroot().tag.endswith("svg")


@pytest.mark.parametrize("scenarios", RUNS, ids=",".join)
def test_scenarios(scenarios: list[str], tmp_path: Path) -> None:
    done = run("--quick", "--only", ",".join(scenarios), "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    about, cases = read(tmp_path)
    assert about["complete"]
    assert {case.scenario for case in cases} == set(scenarios)
    for case in cases:
        skipped = case.scenario in MAY_BE_SKIPPED and case.status == "skipped"
        assert case.status == "ok" or skipped, f"{case.name}: {case.note}"
        assert case.figures or skipped
        if "unheard" in case.figures:
            assert case.figures["unheard"].value == 0
    check_report(tmp_path, cases)


def test_stops_when_asked_to(tmp_path: Path) -> None:
    """What it had started is gone, and what it had measured is kept."""
    words = command("--quick", "--only", "sustained", "--out", tmp_path)
    with subprocess.Popen(words, env=_ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any(" …" in line for line in process.stderr)  # reads up to the beginning of the first case
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    gone, alive = psutil.wait_procs(started, timeout=30)
    assert gone
    assert not alive
    about, cases = read(tmp_path)
    assert not about["complete"]
    assert [case.status for case in cases] == ["stopped"]
    assert "was stopped before its end" in (tmp_path / "report.md").read_text()


def test_a_report_of_single_operations_alone(tmp_path: Path) -> None:
    found = {"name": "test_encode", "group": "wire", "stats": {"median": 0.002}, "extra_info": {"peer_over_ours": 3}}
    (tmp_path / "bench.json").write_text(json.dumps({"datetime": "2026-11-22T05:00:00.1", "benchmarks": [found]}))
    report = write_report(tmp_path).read_text()
    assert "| `test_encode` | wire | 2 ms | peer_over_ours 3 |" in report
    assert "was stopped" not in report


def test_a_goal_that_was_missed_says_by_how_much_and_why() -> None:
    goals = [Goal("speed", "s", "c", "f", 10, at_least=True, why="It is slow."), Goal("wait", "s", "c", "f", 1)]
    case = Case("s", "c", figures={"f": Figure(5, "1/s")})
    fast, short = (next(goal.judge([case])) for goal in goals)
    assert [fast.reached, short.reached] == [False, False]
    assert [fast.missed_by, short.missed_by] == [2, 5]
    assert all(goal.why for goal in GOALS if goal.scenario in ("latency", "peers"))


def test_an_undo_that_takes_longer_than_five_seconds_misses_its_goal() -> None:
    found = [
        Case("undo", f"{database}, 100000 rows", figures={"undone at the handlers": Figure(seconds, "s")})
        for database in DATABASES
        for seconds in (4.9, 5.1)
    ]
    assert [verdict.value for verdict in missed_by(found)] == [5.1] * len(DATABASES)


def test_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--help"])
    said = capsys.readouterr().out
    assert all(scenario.name in said for scenario in SCENARIOS)


def test_refuses_what_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--only", "latency,nonsense"])
    assert "nonsense" in capsys.readouterr().err
