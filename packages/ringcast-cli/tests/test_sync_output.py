"""What ``ringcast sync`` says about rows that somebody else changed while it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ringcast_cli._app import run
from ringcast_cli._rows import sync_command
from ringcast_client import SyncResult


class FakeClient:
    """Finds conflicts, which real servers don't give on demand."""

    def __init__(self, conflicts: int, first: tuple[str, ...]) -> None:
        self._found = {"conflicts": conflicts, "first_conflicts": first}

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def sync(self, store: str, key: str, rows: Any, **_: Any) -> SyncResult:
        found = tuple(row.row_id for row in rows)
        return SyncResult(store, key, 2, 2, 0, 0, 0, found, (), (), written=True, **self._found)  # type: ignore[arg-type]


def sync(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: FakeClient, *options: str) -> int:
    file = tmp_path / "rows.txt"
    file.write_text("a\nb\n")
    monkeypatch.setattr(sync_command, "service_client", lambda _: client)
    return run(["sync", "s", "k", str(file), *options])


def test_conflicts_are_named_and_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sync(monkeypatch, tmp_path, FakeClient(3, ("a", "b\n"))) == 1
    said = capsys.readouterr()
    assert said.out.startswith("s/k: 2 added, 0 changed, 0 deleted, 0 unchanged in ")
    assert said.err == (
        "ringcast: 3 rows were changed by another client meanwhile, and stay as they are: a, b\\n …; "
        "run it again to compare again\n"
    )


def test_without_conflicts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sync(monkeypatch, tmp_path, FakeClient(0, ()), "--json") == 0
    said = capsys.readouterr()
    assert '"conflicts":0' in said.out
    assert said.err == ""
