"""The Rust tests, so that one command runs every test there is."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "crates/ringcast-core-py"
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


def linked_crates() -> dict[str, str]:
    """Name and licence of each crate that is compiled into the extension; macros and build scripts are not."""
    run = subprocess.run(
        [shutil.which("cargo") or "cargo", "metadata", "--format-version=1", "--locked"],
        cwd=CORE,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(run.stdout)
    packages = {package["id"]: package for package in answer["packages"]}
    nodes = {node["id"]: node for node in answer["resolve"]["nodes"]}
    waiting, seen = [answer["resolve"]["root"]], set()
    while waiting:
        current = waiting.pop()
        if current in seen or any("proc-macro" in target["kind"] for target in packages[current]["targets"]):
            continue
        seen.add(current)
        needs = [one for one in nodes[current]["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])]
        waiting += [dependency["pkg"] for dependency in needs]
    return {packages[one]["name"]: packages[one]["license"] for one in seen if packages[one]["source"] is not None}


def test_the_licences_of_linked_crates_are_shipped() -> None:
    table = dict(
        re.findall(r"^\| ([a-z0-9_-]+) \| ([A-Za-z0-9.-]+)", (CORE / "THIRD-PARTY.md").read_text(), re.MULTILINE)
    )
    table.pop("crate")
    linked = linked_crates()
    assert len(linked) >= 5
    assert table.keys() == linked.keys()
    for name, licence in table.items():
        assert licence in linked[name].split(" OR "), f"{name} is under {linked[name]}"
