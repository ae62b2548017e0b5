"""What the README says is so."""

from __future__ import annotations

from pathlib import Path

import pytest
import ringcast_sqlite
from ringcast_testkit import run_readme_examples


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_readme_examples(Path(__file__).parent.parent / "README.md") == 1


def test_the_public_names_are_frozen() -> None:
    assert ringcast_sqlite.__all__ == [
        "BUSY_TIMEOUT_S",
        "Database",
        "Snapshot",
        "StoreBusyError",
        "StoreClosedError",
        "StoreCorruptError",
        "StoreError",
        "StoreFullError",
        "StoreOpenError",
        "Threads",
        "Work",
        "connect",
        "transaction",
        "translate",
        "translated",
    ]
    assert all(hasattr(ringcast_sqlite, name) for name in ringcast_sqlite.__all__)
