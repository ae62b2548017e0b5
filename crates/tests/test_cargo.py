"""The Rust tests, so that one command runs every test there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULT = re.compile(r"^test result: (?P<verdict>\w+)\. (?P<passed>\d+) passed; (?P<failed>\d+) failed", re.MULTILINE)


# A cold machine builds every dependency first.
@pytest.mark.timeout(1200)
def test_cargo_test(record_property: Callable[[str, object], None]) -> None:
    cargo = shutil.which("cargo")
    assert cargo is not None, "cargo is not on PATH: install a Rust toolchain"
    run = subprocess.run(
        [cargo, "test", "--workspace", "--locked", "--jobs", "2"],
        cwd=ROOT,
        # A sandbox has a new path each time: what cargo keeps for the next build of ours would only pile up.
        env={**os.environ, "CARGO_INCREMENTAL": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    results = [(match["verdict"], int(match["passed"])) for match in RESULT.finditer(run.stdout)]
    assert all(verdict == "ok" for verdict, _ in results), run.stdout
    passed = sum(count for _, count in results)
    # Where cargo finds no test it is content too.
    assert passed > 0, run.stdout
    record_property("rust_tests_passed", passed)
