"""Show that Pants itself refuses imports against the arrows, by planting some in a copy of the tree.

Usage: pants_refuses.py. Exit status 0 when every planted import was refused and the permitted one was not, and also,
saying so, where Pants can't run; 1 otherwise.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_INTERPRETER = 69  # the same number stands in ./pants
REFUSED = "DependencyRuleActionDeniedError"

PERMITTED = ("packages/ringcast-wire/src/ringcast_wire", "ringcast_core")
FORBIDDEN = (
    ("packages/ringcast-wire/src/ringcast_wire", "ringcast"),
    ("packages/ringcast-sqlite/src/ringcast_sqlite", "ringcast_wire"),
    ("packages/ringcast-cli/src/ringcast_cli", "ringcast_config_service"),
    ("packages/ringcast/src/ringcast", "ringcast_testkit"),
    ("services/config-service/src/ringcast_config_service", "ringcast"),
)


def copy_tree(target: Path) -> None:
    """Copy the files that git tracks or could track: what is ignored is no part of the tree."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def ask_pants(tree: Path, directory: str, module: str) -> subprocess.CompletedProcess[str]:
    """What Pants says to a module in `directory` that imports `module`."""
    planted = tree / directory / "planted.py"
    planted.write_text(f"import {module}\n")
    try:
        return subprocess.run(
            ["./pants", "--no-pantsd", "dependencies", str(planted.relative_to(tree))],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        planted.unlink()


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        copy_tree(tree)
        answer = ask_pants(tree, *PERMITTED)
        if answer.returncode == NO_INTERPRETER:
            sys.stdout.write("pants_refuses: skipped, for there is no interpreter for Pants here\n")
            return 0
        if answer.returncode != 0 or f"{PERMITTED[1]}/__init__.py" not in answer.stdout:
            sys.stderr.write(f"pants_refuses: Pants does not see a permitted import:\n{answer.stdout}{answer.stderr}\n")
            return 1
        for where, module in FORBIDDEN:
            answer = ask_pants(tree, where, module)
            if answer.returncode == 0 or REFUSED not in answer.stderr:
                sys.stderr.write(f"pants_refuses: Pants let {where} import {module}:\n{answer.stdout}{answer.stderr}\n")
                return 1
    sys.stdout.write(f"pants_refuses: Pants refused {len(FORBIDDEN)} imports against the arrows\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
