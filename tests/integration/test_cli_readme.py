"""The console examples of the command's README and of docs, run as they stand there against ``ringcast up``."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ringcast_testkit import PATIENCE_S, ManagedProcess
from ringcast_testkit.forks import forking

from tests.integration.cli_process import MODULES, Cli
from tests.integration.console_pages import examples_of, is_printed

ROOT = Path(__file__).parents[2]
README = ROOT / "packages/ringcast-cli/README.md"
ENCRYPTION = ROOT / "docs/encryption.md"
RELEASES = ROOT / "docs/releases.md"
SCHEMAS = ROOT / "docs/schemas.md"
TUTORIAL = ROOT / "docs/tutorial.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """This checkout's ``ringcast``, its ``python``, and ``protoc``. The pages start the first two hundred times."""
    made = tmp_path_factory.mktemp("bin")
    with forking(made / "python", ["ringcast_cli"], MODULES) as python:
        command = made / "ringcast"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(str(python))} -m ringcast_cli "$@"\n')
        command.chmod(0o755)
        protoc = made / "protoc"
        protoc.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m grpc_tools.protoc "$@"\n')
        protoc.chmod(0o755)
        yield made


@pytest.fixture
def environment(folder: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """``ringcast up``, and a shell that finds this checkout's ``ringcast`` and its addresses."""
    ready = tmp_path / "ready.json"
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


@pytest.fixture
def typed(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Gives a command to a shell; what it prints. What a command leaves in the background ends with the test."""
    groups: list[int] = []

    def give(command: str) -> str:
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            groups.append(process.pid)
            printed, _ = process.communicate(timeout=PATIENCE_S)
        return printed + (f"[exit code {process.returncode}]\n" if process.returncode else "")

    try:
        yield give
    finally:
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


@pytest.mark.parametrize(
    ("page", "least"),
    [(README, 12), (ENCRYPTION, 16), (RELEASES, 10), (SCHEMAS, 33), (TUTORIAL, 30)],
    ids=["readme", "encryption", "releases", "schemas", "tutorial"],
)
def test_every_console_example(page: Path, least: int, typed: Callable[[str], str]) -> None:
    examples = examples_of(page)
    assert len(examples) >= least, "the page has lost its examples"
    for command, wanted in examples:
        got = typed(command)
        assert is_printed(wanted, got), f"$ {command}\n{got}"
