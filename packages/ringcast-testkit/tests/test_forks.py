"""A Python whose programs are forked, for what others start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ringcast_testkit import PATIENCE_S
from ringcast_testkit.forks import forking

SAYS = """\
import json, os, sys
if __name__ == "__main__":
    found = [sys.argv[1:], os.environ.get("SAID"), os.getcwd(), sys.stdin.read(), "{imported}" in sys.modules]
    print(json.dumps(found))
    print("to standard error", file=sys.stderr)
    sys.exit(int(sys.argv[1]))
"""
WAITS = """\
import os, signal
if __name__ == "__main__":
    print(os.getpid(), flush=True)
    signal.pause()
"""
IMPORTED = "xml.dom.minidom"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Where two programs are."""
    (tmp_path / "says.py").write_text(SAYS.replace("{imported}", IMPORTED))
    (tmp_path / "waits.py").write_text(WAITS)
    return tmp_path


@pytest.fixture
def python(programs: Path) -> Iterator[Path]:
    paths = os.pathsep.join([str(programs), *sys.path])
    with forking(programs / "python", ["says", "waits"], [IMPORTED], PYTHONPATH=paths) as executable:
        yield executable


def run(command: list[str | Path], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, input="asked", capture_output=True, text=True, check=False
    )


def started(python: Path, cwd: Path) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A program that waits: what was started, and what was forked in its place."""
    process = subprocess.Popen([python, "-m", "waits"], cwd=cwd, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    forked = psutil.Process(int(process.stdout.readline()))
    assert forked.pid != process.pid
    return process, forked


@pytest.mark.parametrize("code", ["0", "7"])
def test_it_does_as_python(python: Path, programs: Path, code: str) -> None:
    """Words, variables, directory, standard streams and exit status; only its modules are there already."""
    words: list[str | Path] = ["-m", "says", code, "ü"]
    done = run([python, *words], programs, SAID="this")
    expected = run([sys.executable, *words], programs, SAID="this")
    assert (done.returncode, done.stderr) == (expected.returncode, expected.stderr) == (int(code), expected.stderr)
    assert done.stdout == expected.stdout.replace("false]", "true]") != expected.stdout


def test_other_programs_are_started(python: Path, programs: Path) -> None:
    assert "false]" in run([python, programs / "says.py", "0"], programs).stdout
    assert run([python, "-c", "print(1)"], programs).stdout == "1\n"


def test_what_is_forked_ends_with_what_was_started(python: Path, programs: Path) -> None:
    process, forked = started(python, programs)
    process.kill()
    forked.wait(PATIENCE_S)
    process.communicate()


def test_what_was_started_ends_with_what_is_forked(python: Path, programs: Path) -> None:
    process, forked = started(python, programs)
    forked.kill()
    assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    process.communicate()


def test_nothing_outlives_the_context(programs: Path) -> None:
    paths = os.pathsep.join([str(programs), *sys.path])
    with forking(programs / "python", ["waits"], [IMPORTED], PYTHONPATH=paths) as python:
        process, forked = started(python, programs)
    forked.wait(PATIENCE_S)
    assert process.wait(PATIENCE_S) != 0
    process.communicate()


def test_imports_that_start_threads_are_refused(programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Their locks would be as they were at the time of a fork."""
    (programs / "threads.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=[99]).start()"
    )
    paths = os.pathsep.join([str(programs), *sys.path])
    with forking(programs / "python", ["says"], ["threads"], PYTHONPATH=paths) as python:
        assert run([python, "-m", "says", "0"], programs).returncode == 1
    assert "an import started a thread before a fork" in capfd.readouterr().err
