from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from demo.release import failed

GOOD: dict[str, Any] = {
    "bad_list_refused": True,
    "worse_rows_staged": 100,
    "worse_rows_published": 5,
    "worse_rows_undone": 5,
    "good_release_proven": True,
    "lost_rows": 0,
    "misplaced_rows": 0,
    "stale_rows": 0,
    "total_s": 60.0,
}
BUSY_S = 270.0
"""So long it may take beside all other tests."""
NOT_UNDONE = "the worse list was not undone after its first waves"


@pytest.mark.timeout(300)
def test_the_demo_of_releases_keeps_its_promise(tmp_path: Path) -> None:
    output, picture = tmp_path / "demo.json", tmp_path / "demo.svg"
    words: list[str | Path] = [sys.executable, "-m", "demo.release", "--output", output, "--picture", picture]
    words += ["--within", f"{BUSY_S:g}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BUSY_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(output.read_text())
    assert failed(figures, BUSY_S) == ""
    assert 0 < figures["total_s"] < BUSY_S
    assert (figures["rows"], figures["partitions"], figures["workers"]) == (2_000, 64, 3)
    assert figures["worse_rows_staged"] == figures["rows"]
    assert "the gate of wave 1 of 3 (5 %) failed" in " ".join(done.stdout.split())
    assert "</svg>" in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({}, ""),
        ({"bad_list_refused": False}, "the bad list was staged"),
        ({"worse_rows_published": 0, "worse_rows_undone": 0}, NOT_UNDONE),
        (
            {"worse_rows_published": 100, "worse_rows_undone": 100},
            NOT_UNDONE,
        ),
        ({"worse_rows_undone": 4}, NOT_UNDONE),
        ({"good_release_proven": False}, "the good list was not proven"),
        ({"lost_rows": 1}, "rows are lost, misplaced or stale"),
        ({"misplaced_rows": 1}, "rows are lost, misplaced or stale"),
        ({"stale_rows": 1}, "rows are lost, misplaced or stale"),
        ({"total_s": 60.1}, "it took longer than 60 s: 60.1 s"),
    ],
)
def test_each_way_in_which_it_can_fail_is_named(broken: dict[str, Any], said: str) -> None:
    assert failed(GOOD | broken) == said
