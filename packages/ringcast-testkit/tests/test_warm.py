"""Programs that are forked from a process which has imported their modules."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ringcast_testkit import PATIENCE_S, ManagedProcess, WarmProgram

SAYS = """\
import json, os, sys
if __name__ == "__main__":
    print(json.dumps([sys.argv[1:], os.environ.get("SAID"), sys.flags.optimize, sys.stdin.read()]))
    print("to standard error", file=sys.stderr)
    sys.exit(7)
"""
WAITS = """\
import signal, sys
if __name__ == "__main__":
    print("waits", flush=True)
    signal.pause()
"""


@pytest.fixture
def says(tmp_path: Path) -> WarmProgram:
    (tmp_path / "says.py").write_text(SAYS)
    return WarmProgram(str(tmp_path / "says.py"), ("json",))


@pytest.fixture
def waits(tmp_path: Path) -> WarmProgram:
    (tmp_path / "waits.py").write_text(WAITS)
    return WarmProgram(str(tmp_path / "waits.py"), ("signal",))


def run(program: WarmProgram, *words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return program.run(words, stdin=b"asked", env={**os.environ, **env}, timeout_s=PATIENCE_S)


def test_it_does_as_its_command(says: WarmProgram) -> None:
    """Words, variables, standard streams and exit status."""
    done = run(says, "a", "ü\udcff", SAID="this")
    command = [*says.command, "a", "ü\udcff"]
    env = {**os.environ, "SAID": "this"}
    expected = subprocess.run(command, input=b"asked", capture_output=True, env=env, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)
    assert done.returncode == 7


def test_what_an_interpreter_reads_at_its_start_starts_one(says: WarmProgram) -> None:
    """Such a variable would have no effect on what was started before."""
    assert json.loads(run(says).stdout) == [[], None, 0, "asked"]
    assert json.loads(run(says, PYTHONOPTIMIZE="2").stdout) == [[], None, 2, "asked"]


def test_signals(waits: WarmProgram) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = ManagedProcess("waits", [], program=waits)
        process.wait_until(lambda process=process: "waits\n" in process.log)  # type: ignore[misc]
        process.stop()
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        assert process.returncode is None
        process.signal(number)
        process.signal(signal.SIGCONT)
        assert process.wait(PATIENCE_S) == -number


def test_it_ends_with_the_process_that_asked_for_it(tmp_path: Path, waits: WarmProgram) -> None:
    code = (
        "import os, threading\n"
        "from ringcast_testkit import ManagedProcess, WarmProgram\n"
        "WarmProgram.forks = True\n"
        f"program = WarmProgram({waits.command[-1]!r}, ('signal',))\n"
        "process = ManagedProcess('waits', [], program=program)\n"
        "process.wait_until(lambda: 'waits\\n' in process.log)\n"
        "print(process.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    process = psutil.Process(pid)
    parent.kill()
    parent.wait()
    psutil.wait_procs([process], timeout=PATIENCE_S)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_imports_that_fail(says: WarmProgram, capfd: pytest.CaptureFixture[str]) -> None:
    broken = WarmProgram(says.command[-1], ("no_such_module",))
    with pytest.raises(RuntimeError, match="can't be forked: standard error says why"):
        run(broken)
    assert "No module named 'no_such_module'" in capfd.readouterr().err
