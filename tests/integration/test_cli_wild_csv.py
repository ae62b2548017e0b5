"""``ringcast import`` and ``ringcast sync`` of wild CSV files: what goes live is what the referee reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ringcast_cli._app import run
from ringcast_testkit.wild_csv import OTHERS, READABLE, REFUSED, WildCsv

from tests.integration.cli_process import Cli

COLUMNS = ("--id-column", "network", "--value-column", "owner")


@pytest.fixture(autouse=True)
def environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process: each file is one, and a process of its own would take most of the time."""
    for name, text in cli.env.items():
        monkeypatch.setenv(name, text)


def saved(directory: Path, file: WildCsv) -> list[str]:
    """The file and how it is to be read, as words of a command."""
    path = directory / f"{file.name}.csv"
    path.write_bytes(file.data)
    return [str(path), *COLUMNS, "--delimiter", file.delimiter]


def referee(file: WildCsv) -> dict[str, str]:
    rows = {row["network"]: row["owner"] for row in file.referee_rows()}
    assert rows or file.name == "only a header"
    return rows


def rows_of(store: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What the key has; a value may hold what ``splitlines`` takes for the end of a line."""
    capsys.readouterr()
    assert run(["list", store, "list", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.split("\n") if line]
    return {row["row_id"]: row["value"] for row in rows}


def test_an_import_writes_what_the_referee_reads(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ids of all files differ, so that one key has them all in the end; bad records are skipped."""
    wanted: dict[str, str] = {}
    for file in (*READABLE, *OTHERS):
        assert run(["import", store, "list", *saved(tmp_path, file), "--on-error", "skip"]) == (3 if file.bad else 0)
        wanted |= referee(file)
    assert rows_of(store, capsys) == wanted


def test_a_sync_makes_the_key_what_the_referee_reads(
    cli: Cli, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad record ends it before anything is written."""
    live = {"old": "1"}
    cli.ok("put", store, "list", "old", "1")
    for file in (*READABLE, *OTHERS):
        words = ["sync", store, "list", *saved(tmp_path, file), "--max-delete-share", "1", "--allow-empty"]
        assert run(words) == (1 if file.bad else 0), file.name
        live = live if file.bad else referee(file)
        assert rows_of(store, capsys) == live, file.name


@pytest.mark.parametrize("command", ["import", "sync"])
def test_a_file_that_can_t_be_read_right_is_refused(
    cli: Cli, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Each of these breaks before its first batch of rows is full: nothing is written, and the line is named."""
    cli.ok("put", store, "list", "old", "1")
    for file in REFUSED:
        assert run([command, store, "list", *saved(tmp_path, file)]) == 1, file.name
        assert f"{file.name}.csv, {file.refused}" in capsys.readouterr().err
    assert cli.rows(store) == {"old": "1"}
