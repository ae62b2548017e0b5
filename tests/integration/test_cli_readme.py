"""The console examples of the command's README and of docs, run as they stand there against ``ringcast up``."""

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

from tests.integration.cli_process import Cli

ROOT = Path(__file__).parents[2]
README = ROOT / "packages/ringcast-cli/README.md"
ENCRYPTION = ROOT / "docs/encryption.md"
RELEASES = ROOT / "docs/releases.md"
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """``ringcast up``, and a shell that finds this checkout's ``ringcast`` and its addresses."""
    ready, folder = tmp_path / "ready.json", tmp_path / "bin"
    folder.mkdir()
    command = folder / "ringcast"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ringcast_cli "$@"\n')
    command.chmod(0o755)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    words = ["up", "--data-dir", tmp_path / "data", "--nats-port", 0, "--grpc-port", 0, "--ready-file", ready]
    cli = Cli(tmp_path)
    process: ManagedProcess = cli.start(*words)
    try:
        process.wait_until(ready.exists)
        addresses = json.loads(ready.read_text())
        settings = Cli(tmp_path, servers=addresses["nats"], service=addresses["service"]).env
        yield {**settings, "PATH": f"{folder}{os.pathsep}{settings['PATH']}"}
    finally:
        process.kill()


def _examples(page: Path) -> list[tuple[str, str]]:
    """Each command and what it prints, standard error included. Python runs as a program of its own."""
    examples: list[tuple[str, str]] = []
    for language, block in _BLOCK.findall(page.read_text()):
        if language == "python":
            examples.append((f"python -c {shlex.quote(block)}", ""))
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            examples.append((command, output))
    return examples


def _matches(wanted: str, got: str) -> bool:
    """Whether the output is as written; ``...`` stands for anything within a line."""
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(pattern, got) is not None


@pytest.mark.parametrize(
    ("page", "least"),
    [(README, 12), (ENCRYPTION, 16), (RELEASES, 10)],
    ids=["readme", "encryption", "releases"],
)
def test_every_console_example(page: Path, least: int, environment: dict[str, str], tmp_path: Path) -> None:
    examples = _examples(page)
    assert len(examples) >= least, "the page has lost its examples"
    for command, wanted in examples:
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        got = done.stdout + (f"[exit code {done.returncode}]\n" if done.returncode else "")
        assert _matches(wanted, got), f"$ {command}\n{got}"
