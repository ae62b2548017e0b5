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

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DEPLOYMENT = ROOT / "docs/deployment.md"
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


def paste(page: str, environment: dict[str, str], directory: Path) -> str:
    """Give the block of the other terminal to a shell as a whole; what it prints."""
    (block,) = [one for one in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "ringcast store create" in one]
    activate, _, rest = block.partition("\n")
    assert activate == "source .venv/bin/activate"
    command = f'{shlex.quote(sys.executable)} -m ringcast_cli "$@"'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"ringcast() {{ {command}; }}\n{rest}"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_accounts_are_made_as_the_page_on_deployment_says(tmp_path: Path) -> None:
    installed = "/opt/ringcast/bin/"
    page = DEPLOYMENT.read_text()
    lines = re.findall(r"^.*python make_accounts\.py .*$", page, re.MULTILINE)
    assert len(lines) == 3
    assert all(line.startswith(f"{installed}python ") for line in lines), "the script needs ringcast-wire"
    assert page.index(f"{installed}pip install") < page.index(lines[0])
    for file in (ROOT / "infra/nats").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    command = lines[0].replace(f"{installed}python", shlex.quote(sys.executable))
    subprocess.run(["bash", "-euc", command], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    accounts = (tmp_path / "accounts.conf").read_text()
    assert "NATS_WORKER_WORKER_1_PASSWORD" in accounts
    assert "NATS_WORKER_WORKER_2_PASSWORD" not in accounts


def test_keys_and_tokens_are_made_as_the_page_on_deployment_says(tmp_path: Path) -> None:
    (block,) = [
        one for one in re.findall(r"```sh\n(.*?)```", DEPLOYMENT.read_text(), re.DOTALL) if "--new-keys ." in one
    ]
    (tmp_path / "infra").symlink_to(ROOT / "infra")
    command = f'{shlex.quote(sys.executable)} -m ringcast_cli "$@"'
    done = subprocess.run(
        ["bash", "-euc", f"ringcast() {{ {command}; }}\n{block.replace('/opt/ringcast/bin/python', sys.executable)}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "issuer.seed").exists()
    assert re.search(r"^--callout A\w{55} --xkey X\w{55}$", done.stdout, re.MULTILINE)
    text = done.stdout + done.stderr
    assert "deploy sha256:" in text
    assert "worker=gateway-worker-* gateway/blocklist" in text


def test_a_token_of_agents_is_made_as_the_page_on_deployment_says(tmp_path: Path) -> None:
    (line,) = re.findall(r"^ringcast token agent .*$", DEPLOYMENT.read_text(), re.MULTILINE)
    words = shlex.split(line, comments=True)
    done = subprocess.run(
        [sys.executable, "-m", "ringcast_cli", *words[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "agent=heartbeat-agent-* gateway/blocklist" in done.stdout + done.stderr


def test_the_front_page_does_what_it_says(environment: dict[str, str], tmp_path: Path) -> None:
    text = README.read_text()
    commands = [line for line in re.findall(r"^ringcast .*$", text, re.MULTILINE) if not line.startswith("ringcast up")]
    assert len(commands) == 5
    assert "\nblock\n" in paste(text, environment, tmp_path)

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
