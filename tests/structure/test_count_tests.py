"""The closing line of a test run is counted from the reports, and a run without tests does not pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = ROOT / "build-support/checks/count_tests.py"

PASSED = '<testcase name="a"/>'
RUST = '<testcase name="r"><properties><property name="rust_tests_passed" value="40"/></properties></testcase>'
SKIPPED = '<testcase name="s"><skipped/></testcase>'
FAILED = '<testcase name="f"><failure/></testcase>'
BROKEN = '<testcase name="e"><error/></testcase>'


def summary(directory: Path, *reports: str) -> subprocess.CompletedProcess[str]:
    for number, cases in enumerate(reports):
        path = directory / f"{number}" / "report.xml"
        path.parent.mkdir(parents=True)
        path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return subprocess.run([sys.executable, str(SUMMARY), str(directory)], capture_output=True, text=True, check=False)


def test_reports_are_added_up(tmp_path: Path) -> None:
    result = summary(tmp_path, PASSED + SKIPPED, PASSED + RUST)
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "43 passed, 0 failed"
    assert "1 skipped" in result.stdout


def test_failures_and_errors_fail(tmp_path: Path) -> None:
    result = summary(tmp_path, PASSED + FAILED, BROKEN)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "1 passed, 2 failed"


def test_no_report_fails(tmp_path: Path) -> None:
    result = summary(tmp_path)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "0 passed, 0 failed"
