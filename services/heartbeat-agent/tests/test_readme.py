"""What the README says is so."""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ringcast_heartbeat_agent
from ringcast.dispatch import ADDRESS_VARIABLE
from ringcast_heartbeat_agent.__main__ import main
from ringcast_heartbeat_agent.telemetry import AGENT
from ringcast_testkit import AgentProcess, ConfigServiceProcess, NatsServer, flags_table, run_readme_examples
from ringcast_wire import agent_token

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs(
    tmp_path: Path,
    nats_server: NatsServer,
    config_service: ConfigServiceProcess,
    writer_to: Callable[[ConfigServiceProcess], Any],
    sidecar: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = writer_to(config_service)
    writer.create("gateway")
    writer.put("gateway", "blocklist", "mailinator.com", "block")
    # What the example calls "somebody".
    monkeypatch.setattr(
        builtins, "write", lambda row_id, value: writer.put("gateway", "blocklist", row_id, value), raising=False
    )
    options = ("--retry-first", "0.1", "--trusted-users", str(os.getuid()))
    with AgentProcess(tmp_path, nats_url=nats_server.url, options=options) as agent:
        sidecar(agent)
        monkeypatch.setenv(ADDRESS_VARIABLE, agent.grpc_address)
        monkeypatch.setenv(agent_token.VARIABLE, str(tmp_path / "agent.token"))
        assert run_readme_examples(README) == 2


def test_the_command_line_is_accepted() -> None:
    (command,) = re.findall(r"```sh\nringcast-heartbeat-agent (.*?)\n```", README.read_text())
    assert main.make_context("agent", command.split()).params["nats"] == "nats://127.0.0.1:4222"


def test_the_table_of_settings_is_made_from_them() -> None:
    table = flags_table(main)
    assert table in README.read_text(), f"this table is to stand there:\n{table}"


def test_the_table_of_metrics_is_right() -> None:
    rows = re.findall(r"^\| `(ringcast_agent_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", README.read_text(), re.MULTILINE)
    labels = (tuple(re.findall(r"`(\w+)`", text)) for _, _, text, _ in rows)
    documented = {(name, kind, names, text) for (name, kind, _, text), names in zip(rows, labels, strict=True)}
    assert documented == {(metric.name, metric.kind, metric.labels, metric.help) for metric in AGENT}


def test_the_table_of_error_codes_is_whole() -> None:
    source = Path(ringcast_heartbeat_agent.__file__).parent
    used = {code for path in source.rglob("*.py") for code in re.findall(r'"(ERR_[A-Z_]+)"', path.read_text())}
    documented = set(re.findall(r"`(ERR_[A-Z_]+)`", README.read_text()))
    assert documented == used
    assert len(used) > 10
