"""Show that Pants itself refuses imports against the arrows, by planting some in a copy of the tree.

Usage: pants_refuses.py. Exit status 0 when every planted import was refused and the permitted one was not, and also,
saying so, where Pants can't run; 1 otherwise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_INTERPRETER = 69  # the same number stands in ./pants
DAEMON_STOP_S = 20.0
DAEMON_LATE = "seconds while waiting for pantsd to start"
DAEMON_STARTS = 5
"""How often Pants may wait for its daemon, for a minute each: on a busy machine one is not enough."""
REFUSED = "DependencyRuleActionDeniedError"

PERMITTED = ("packages/ringcast-wire/src/ringcast_wire", "ringcast_core")
FORBIDDEN = (
    ("packages/ringcast-wire/src/ringcast_wire", "ringcast"),
    ("packages/ringcast-sqlite/src/ringcast_sqlite", "ringcast_wire"),
    ("packages/ringcast-cli/src/ringcast_cli", "ringcast_config_service"),
    ("packages/ringcast/src/ringcast", "ringcast_testkit"),
    ("services/config-service/src/ringcast_config_service", "ringcast"),
    # Against the arrows between the rooms of a distribution.
    ("packages/ringcast/src/ringcast/_bus", "ringcast._worker.worker"),
    ("services/config-service/src/ringcast_config_service/repository", "ringcast_config_service.handlers"),
    ("services/heartbeat-agent/src/ringcast_heartbeat_agent/leases", "ringcast_heartbeat_agent.dispatch.groups"),
)


def copy_tree(target: Path) -> None:
    """Copy the files that git tracks or could track: what is ignored is no part of the tree."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def plant(tree: Path, directory: str, module: str) -> str:
    """Write a module in `directory` that imports `module`; returns where."""
    planted = tree / directory / f"planted_{module.replace('.', '_')}.py"
    planted.write_text(f"import {module}\n")
    return str(planted.relative_to(tree))


def ask_pants(tree: Path, path: str) -> subprocess.CompletedProcess[str]:
    """What Pants says to a file of the tree. Its daemon remembers the tree for the next question."""
    words = ["./pants", "--pantsd", f"--pants-subprocessdir={tree / '.pids'}", "dependencies", path]
    for _ in range(DAEMON_STARTS):
        answer = subprocess.run(words, cwd=tree, capture_output=True, text=True, check=False)
        if answer.returncode == 0 or DAEMON_LATE not in answer.stderr:
            break
    return answer


def stop_daemon(tree: Path) -> None:
    """End the daemon of this tree, by its process id, and wait until it writes no more."""
    for path in (tree / ".pids").rglob("pantsd/pid"):
        pid, give_up = int(path.read_text()), time.monotonic() + DAEMON_STOP_S
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            while time.monotonic() < give_up:
                os.kill(pid, 0)
                time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)


def problem(tree: Path) -> str | None:
    """What is wrong with the rules of Pants; None where all is well."""
    # Before the first question, since the daemon may not have noticed a file that has just been written.
    permitted = plant(tree, *PERMITTED)
    forbidden = [plant(tree, *wanted) for wanted in FORBIDDEN]
    answer = ask_pants(tree, permitted)
    if answer.returncode == NO_INTERPRETER:
        raise NoInterpreterError
    if answer.returncode != 0 or f"{PERMITTED[1]}/__init__.py" not in answer.stdout:
        return f"Pants does not see a permitted import:\n{answer.stdout}{answer.stderr}"
    for path, (_, module) in zip(forbidden, FORBIDDEN, strict=True):
        answer = ask_pants(tree, path)
        if answer.returncode == 0 or REFUSED not in answer.stderr:
            return f"Pants let {path} import {module}:\n{answer.stdout}{answer.stderr}"
    return None


class NoInterpreterError(Exception):
    """Pants can't run here."""


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        copy_tree(tree)
        try:
            found = problem(tree)
        except NoInterpreterError:
            sys.stdout.write("pants_refuses: skipped, for there is no interpreter for Pants here\n")
            return 0
        finally:
            stop_daemon(tree)
    if found:
        sys.stderr.write(f"pants_refuses: {found}\n")
        return 1
    sys.stdout.write(f"pants_refuses: Pants refused {len(FORBIDDEN)} imports against the arrows\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
