from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FIGURES = {
    "rows",
    "partitions",
    "workers",
    "load_rows_per_s",
    "change_p50_ms",
    "change_p99_ms",
    "moved_on_leave",
    "ideal_moved_on_leave",
    "recovery_s",
    "lost_rows",
    "misplaced_rows",
    "stale_rows",
}


@pytest.mark.timeout(400)
def test_the_demo_keeps_its_promise(tmp_path: Path) -> None:
    output = tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--output", output], capture_output=True, text=True, timeout=360, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(output.read_text())
    assert figures.keys() >= FIGURES
    assert figures["rows"] > 18_000
    assert figures["partitions"] == 256
    assert figures["changes"] >= 200
    assert figures["moved_on_leave"] >= figures["ideal_moved_on_leave"] > 0
    assert (figures["lost_rows"], figures["misplaced_rows"], figures["stale_rows"]) == (0, 0, 0)
