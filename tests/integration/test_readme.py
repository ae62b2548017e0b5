"""The commands and the example of the front page, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ringcast_testkit import PATIENCE_S, ManagedProcess

README = Path(__file__).parents[2] / "README.md"
CHANGED = "changed.example"


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """`ringcast up` on free ports, and the environment that points the other commands at it."""
    ready = tmp_path / "ready.json"
    words: list[str | Path] = [
        "up",
        "--data-dir",
        tmp_path / "data",
        "--nats-port",
        "0",
        "--grpc-port",
        "0",
        "--ready-file",
        ready,
    ]
    process = ManagedProcess("ringcast up", [sys.executable, "-m", "ringcast_cli", *words])
    try:
        process.wait_until(ready.exists)
        addresses = json.loads(ready.read_text())
        yield {**os.environ, "RINGCAST_SERVERS": addresses["nats"], "RINGCAST_SERVICE": addresses["service"]}
        assert process.terminate() == 0
    finally:
        process.kill()


def ringcast(command: str, environment: dict[str, str], directory: Path) -> str:
    words = shlex.split(command, comments=True)
    done = subprocess.run(
        [sys.executable, "-m", "ringcast_cli", *words[1:]],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_the_front_page_does_what_it_says(environment: dict[str, str], tmp_path: Path) -> None:
    text = README.read_text()
    commands = [line for line in re.findall(r"^ringcast .*$", text, re.MULTILINE) if not line.startswith("ringcast up")]
    assert len(commands) == 5
    (tmp_path / "domains.txt").write_text("mailinator.com\n0-mail.com\n")
    output = {command.split()[1]: ringcast(command, environment, tmp_path) for command in commands}
    assert "block" in output["get"]

    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    worker = ManagedProcess("worker", [sys.executable, "-u", "-c", example], env=environment)
    try:
        worker.wait_until(lambda: any("mailinator.com block" in line for line in list(worker.log)))
        ringcast(f"ringcast put gateway blocklist {CHANGED} block", environment, tmp_path)
        worker.wait_until(lambda: any(CHANGED in line for line in list(worker.log)))
        ringcast(f"ringcast delete gateway blocklist {CHANGED}", environment, tmp_path)
        worker.wait_until(lambda: any(f"{CHANGED} deleted" in line for line in list(worker.log)))
        topology = json.loads(ringcast(f"{commands[-1].split('#')[0]} --json", environment, tmp_path))
        assert [len(member["partitions"]) for member in topology["members"]] == [256]
    finally:
        worker.kill()
