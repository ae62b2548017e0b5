from __future__ import annotations

from pathlib import Path

import pytest
from ringcast_testkit import run_readme_examples

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_of_the_readme_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_readme_examples(README) == 1
    assert "127.0.0.1:" in capsys.readouterr().out


def test_a_readme_without_examples_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Nothing\n")
    with pytest.raises(ValueError, match="no Python example"):
        run_readme_examples(tmp_path / "README.md")


def test_a_failing_example_says_where(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Title\n\n```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run_readme_examples(tmp_path / "README.md")
    assert caught.traceback[-1].lineno == 3
