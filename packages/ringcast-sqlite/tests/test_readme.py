"""What the README says is so."""

from __future__ import annotations

from pathlib import Path

import pytest
from ringcast_testkit import run_readme_examples


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_readme_examples(Path(__file__).parent.parent / "README.md") == 1
