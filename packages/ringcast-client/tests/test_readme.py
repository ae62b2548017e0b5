"""What the README says is so."""

from __future__ import annotations

from pathlib import Path

import pytest
from ringcast_testkit import ConfigServiceProcess, run_readme_examples


def test_the_examples_run(config_service: ConfigServiceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGCAST_SERVICE", config_service.address)
    assert run_readme_examples(Path(__file__).parent.parent / "README.md") == 6
