"""The agent's systemd unit, and the settings beside it, say what the agent really takes."""

from __future__ import annotations

import configparser
import shlex
import tomllib
from pathlib import Path

import click
from ringcast_heartbeat_agent.__main__ import main
from ringcast_testkit import AgentProcess, NatsServer
from ringcast_wire import names

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "infra/systemd"
PREFIX = "RINGCAST_AGENT_"


def settings(*, commented: bool = False) -> dict[str, str]:
    """agent.env.example, as systemd reads it; with what is commented out there, if asked."""
    lines = (SYSTEMD / "agent.env.example").read_text().splitlines()
    wanted = [line.removeprefix("#") if commented else line for line in lines]
    return dict(line.split("=", 1) for line in wanted if line.startswith(PREFIX))


def words() -> list[str]:
    """The command line of the unit."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((SYSTEMD / "ringcast-heartbeat-agent.service").read_text())
    assert unit["Service"]["EnvironmentFile"] == "/etc/ringcast/agent.env"
    return shlex.split(unit["Service"]["ExecStart"])


def test_the_unit_and_its_settings_are_ones_that_the_command_has() -> None:
    scripts = tomllib.loads((ROOT / "services/heartbeat-agent/pyproject.toml").read_text())["project"]["scripts"]
    program, *given = words()
    assert Path(program).name in scripts
    options = {option.opts[0] for option in main.params if isinstance(option, click.Option)}
    assert {word for word in given if word.startswith("--")} <= options
    named = settings(commented=True)
    assert len(named) >= 10
    assert {f"--{name.removeprefix(PREFIX).lower().replace('_', '-')}" for name in named} <= options


def test_the_agent_runs_with_them(tmp_path: Path, shared_nats: NatsServer) -> None:
    given = words()[1:]
    at = given.index("--ready-file")
    del given[at : at + 2]
    example = settings()
    assert example[PREFIX + "CLUSTER_STORE"] == f"{example[PREFIX + 'NATS']}/{names.CLUSTER_BUCKET}"
    env = example | {PREFIX + "CLUSTER_STORE": f"{shared_nats.url}/{names.CLUSTER_BUCKET}"}
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=tuple(given), env=env) as agent:
        assert agent.terminate() == 0
