from __future__ import annotations

from pathlib import Path

from ringcast_testkit import run_readme_examples


def test_the_examples_of_the_readme_run() -> None:
    assert run_readme_examples(Path(__file__).parent.parent / "README.md") == 2
