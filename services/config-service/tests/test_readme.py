"""What the README says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ringcast_config_service.__main__ import main
from ringcast_testkit import ConfigServiceProcess, flags_table, run_readme_examples
from ringcast_wire import ErrorCode
from ringcast_wire.grpc import STATUS

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_run(
    config_service: ConfigServiceProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RINGCAST_SERVICE", config_service.address)
    assert run_readme_examples(README) == 1
    assert "partition_count 4097 is out of range: 1 to 4096" in capsys.readouterr().out


def test_the_command_line_is_accepted() -> None:
    (command,) = re.findall(r"```sh\nringcast-config-service (.*?)\n```", README.read_text())
    assert main.make_context("ringcast-config-service", command.split()).params["database"] == "sqlite:ringcast.db"


def test_the_table_of_settings_is_made_from_them() -> None:
    table = flags_table(main)
    assert table in README.read_text(), f"this table is to stand there:\n{table}"


def test_the_table_of_errors_is_right() -> None:
    rows = re.findall(r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \| ([A-Z_]+) \|", README.read_text(), re.MULTILINE)
    documented = {code: status for codes, status in rows for code in re.findall(r"[A-Z_]+", codes)}
    assert len(documented) >= 8
    assert {code: STATUS[ErrorCode(code)].name for code in documented} == documented
