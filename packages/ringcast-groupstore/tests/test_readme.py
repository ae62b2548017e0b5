from __future__ import annotations

from pathlib import Path

import pytest
from ringcast_testkit import run_readme_examples


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = Path(__file__).resolve().parents[1] / "README.md"
    monkeypatch.chdir(tmp_path)
    assert run_readme_examples(readme) == 3
    assert {path.name for path in tmp_path.glob("*.db")} == {"app.db", "copy.db", "events.db", "async.db"}
