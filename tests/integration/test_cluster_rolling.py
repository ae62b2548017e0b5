"""Each kind of process of a running system is replaced, and no call fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.rolling.system import Build, System

TREE = Build("tree")


def test_no_call_fails_while_processes_of_every_kind_are_replaced(tmp_path: Path, postgres_url: str) -> None:
    with System(tmp_path, postgres_url, TREE, (TREE,)) as system:
        for name in ("service-1", "agent", "gateway-0", "orders-0"):
            before = system.process_of(name).pid
            system.roll(name, TREE)
            assert system.process_of(name).pid != before
        verdict = system.judge()
    assert verdict.kept, verdict
    assert verdict.calls > 500


def test_what_is_no_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"is no build: .*ringcast"):
        Build("empty", tmp_path).check()
    words = [
        sys.executable,
        "-m",
        "tests.integration.rolling",
        str(tmp_path),
        "--output",
        str(tmp_path / "figures.json"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"demo-upgrade: {tmp_path} is no build: ")
    assert not (tmp_path / "figures.json").exists()
